"""The memory of attention alone (`--memory`): what grows with the sequence length, and what with its square."""

from perf_tests_suite.perf_tests import test_attention
from perf_tests_suite.perf_tests.passes.extra_pass import repeated

case = test_attention.case

test_memory_of_attention_forward = repeated(test_attention.test_attention_forward, "memory")
test_memory_of_attention_backward = repeated(test_attention.test_attention_backward, "memory")
