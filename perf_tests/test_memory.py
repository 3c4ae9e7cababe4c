"""Where the memory of each phase goes (`--memory`): the timed benchmarks, each case in a process of its own."""

from perf_tests_suite.perf_tests import test_backward, test_first_step, test_forward, test_full_step
from perf_tests_suite.perf_tests.passes.extra_pass import repeated

test_memory_of_inference = repeated(test_forward.test_inference, "memory")
test_memory_of_forward = repeated(test_forward.test_forward, "memory")
test_memory_of_backward = repeated(test_backward.test_backward, "memory")
test_memory_of_forward_backward = repeated(test_backward.test_forward_backward, "memory")
test_memory_of_optimizer = repeated(test_full_step.test_optimizer, "memory")
test_memory_of_first_step = repeated(test_first_step.test_first_step, "memory")
test_memory_of_full_step = repeated(test_full_step.test_full_step, "memory")
