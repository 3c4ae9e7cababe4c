"""Where the memory of each phase goes (`--memory`): the rounds of the timings, each case in a process of its own."""

import pytest

from perf_tests import memory_pass, test_backward, test_forward, test_full_step
from perf_tests.memory_pass import memory_of

pytestmark = pytest.mark.extra_pass("memory")

examine, memory_worker = memory_pass.examine, memory_pass.memory_worker

test_memory_of_inference = memory_of(test_forward.test_inference)
test_memory_of_forward = memory_of(test_forward.test_forward)
test_memory_of_backward = memory_of(test_backward.test_backward)
test_memory_of_forward_backward = memory_of(test_backward.test_forward_backward)
test_memory_of_optimizer = memory_of(test_full_step.test_optimizer)
test_memory_of_full_step = memory_of(test_full_step.test_full_step)
