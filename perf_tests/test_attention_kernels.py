"""The same for attention alone (`--kernels`)."""

import pytest

from perf_tests import kernel_pass, test_attention

pytestmark = pytest.mark.extra_pass("kernels")

measure = kernel_pass.measure
case, head_dim, sequence_length = test_attention.case, test_attention.head_dim, test_attention.sequence_length

test_kernels_of_attention_forward = test_attention.test_attention_forward
test_kernels_of_attention_backward = test_attention.test_attention_backward
