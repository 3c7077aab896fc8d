"""Part 3: runs on verified nodes, from start to report. Knows torchrun on many nodes; no cloud."""
