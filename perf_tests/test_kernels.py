"""Where the time of each phase goes, kernel by kernel (`--kernels`): the benchmarks of the timings, traced."""

import pytest

from perf_tests import kernel_pass, test_backward, test_forward, test_full_step

pytestmark = pytest.mark.extra_pass("kernels")

measure = kernel_pass.measure

test_kernels_of_inference = test_forward.test_inference
test_kernels_of_forward = test_forward.test_forward
test_kernels_of_backward = test_backward.test_backward
test_kernels_of_forward_backward = test_backward.test_forward_backward
test_kernels_of_optimizer = test_full_step.test_optimizer
test_kernels_of_full_step = test_full_step.test_full_step
