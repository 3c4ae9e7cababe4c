"""The same for attention alone (`--warmup-study`)."""

import pytest

from perf_tests import test_attention
from perf_tests.warmup import study as warmup_study
from perf_tests.warmup.study import WarmupStudy

pytestmark = pytest.mark.extra_pass("warmup")

study = warmup_study.study
case, head_dim, sequence_length = test_attention.case, test_attention.head_dim, test_attention.sequence_length


@pytest.mark.phase("attention_forward")
def test_warmup_of_attention_forward(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("attention_backward")
def test_warmup_of_attention_backward(study: WarmupStudy) -> None:
    study()
