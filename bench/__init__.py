"""Ratios against peers, each measured within one run on one machine.

Figures go to bench/RESULTS.md by hand, with date and hardware.
"""
