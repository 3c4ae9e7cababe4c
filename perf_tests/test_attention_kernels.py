"""The kernels of attention alone (`--kernels`)."""

from perf_tests_suite.perf_tests import test_attention
from perf_tests_suite.perf_tests.passes.extra_pass import repeated

case = test_attention.case

test_kernels_of_attention_forward = repeated(test_attention.test_attention_forward, "kernels")
test_kernels_of_attention_backward = repeated(test_attention.test_attention_backward, "kernels")
