"""Where the time of each phase goes, kernel by kernel (`--kernels`): the timed benchmarks, traced."""

from perf_tests_suite.perf_tests import test_backward, test_forward, test_full_step
from perf_tests_suite.perf_tests.passes.extra_pass import repeated

test_kernels_of_inference = repeated(test_forward.test_inference, "kernels")
test_kernels_of_forward = repeated(test_forward.test_forward, "kernels")
test_kernels_of_backward = repeated(test_backward.test_backward, "kernels")
test_kernels_of_forward_backward = repeated(test_backward.test_forward_backward, "kernels")
test_kernels_of_optimizer = repeated(test_full_step.test_optimizer, "kernels")
test_kernels_of_full_step = repeated(test_full_step.test_full_step, "kernels")
