"""Planted faults: each a wrong version of one function, with the claim that must notice it.

A new fault is one line in the table of its area.
"""

from numerics_tests.harness.faults import arithmetic, layers, training

FAULTS = (*arithmetic.FAULTS, *layers.FAULTS, *training.FAULTS)
