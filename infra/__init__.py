"""Part 1: machines and their network, created and destroyed by Pulumi. Knows clouds; no SSH, no torch."""
