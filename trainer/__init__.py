"""The trainer: one training loop for one process or many, on one node or many; needs nothing but what torchrun sets."""
