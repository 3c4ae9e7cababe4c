"""Planted faults: each a wrong version of one function, with the claim that must notice it.

A new fault is one line in the table of its area.
"""

from numerics_tests.faults import accumulation, autocast, layers, norms, softmax_and_loss, training

FAULTS = (
    *accumulation.FAULTS,
    *autocast.FAULTS,
    *norms.FAULTS,
    *softmax_and_loss.FAULTS,
    *layers.FAULTS,
    *training.FAULTS,
)
