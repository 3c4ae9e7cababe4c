"""Whether the precision of the model, of PyTorch's kernels here and of a training step is right.

test_* -> the claims, test_softmax.py first; harness/ -> what goes in and what theory allows; machine/ -> what kernels
and autocast do here. `within_bounds` judges a kernel of one's own, see within_bounds.md.
"""

from perf_tests_suite.numerics_tests.harness.within import within_bounds

__all__ = ["within_bounds"]
