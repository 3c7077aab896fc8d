"""Part 2: machines into verified nodes, over SSH. Knows SSH and one node; no cloud SDK, no torch."""
