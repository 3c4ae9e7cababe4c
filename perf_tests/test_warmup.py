"""How many warm-up rounds each phase needs on this machine, and where its first round goes (`--warmup-study`)."""

from perf_tests_suite.perf_tests import test_backward, test_forward, test_full_step
from perf_tests_suite.perf_tests.passes.extra_pass import repeated

test_warmup_of_inference = repeated(test_forward.test_inference, "warmup")
test_warmup_of_forward = repeated(test_forward.test_forward, "warmup")
test_warmup_of_backward = repeated(test_backward.test_backward, "warmup")
test_warmup_of_forward_backward = repeated(test_backward.test_forward_backward, "warmup")
test_warmup_of_optimizer = repeated(test_full_step.test_optimizer, "warmup")
test_warmup_of_full_step = repeated(test_full_step.test_full_step, "warmup")
