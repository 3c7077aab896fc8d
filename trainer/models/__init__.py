"""Models that the trainer can train."""
