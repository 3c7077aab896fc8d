"""What can go wrong while the loop runs: wishes to stop, bad steps, hangs."""
