"""The same for attention alone (`--memory`): what grows with the square of the sequence, and what with its length."""

import pytest

from perf_tests import memory_pass, test_attention
from perf_tests.memory_pass import memory_of

pytestmark = pytest.mark.extra_pass("memory")

examine, memory_worker = memory_pass.examine, memory_pass.memory_worker
case, head_dim, sequence_length = test_attention.case, test_attention.head_dim, test_attention.sequence_length

test_memory_of_attention_forward = memory_of(test_attention.test_attention_forward)
test_memory_of_attention_backward = memory_of(test_attention.test_attention_backward)
