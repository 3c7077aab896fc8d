"""Data: where documents come from, and which windows of them a step reads."""
