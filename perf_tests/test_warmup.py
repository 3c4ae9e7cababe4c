"""How many warm-up rounds each phase needs on this machine, and what its first round is spent on (`--warmup-study`)."""

import pytest

from perf_tests.warmup import study as warmup_study
from perf_tests.warmup.study import WarmupStudy

pytestmark = pytest.mark.extra_pass("warmup")

study = warmup_study.study


@pytest.mark.phase("inference")
def test_warmup_of_inference(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("forward")
def test_warmup_of_forward(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("backward")
def test_warmup_of_backward(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("forward_backward")
def test_warmup_of_forward_backward(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("optimizer")
def test_warmup_of_optimizer(study: WarmupStudy) -> None:
    study()


@pytest.mark.phase("full_step")
def test_warmup_of_full_step(study: WarmupStudy) -> None:
    study()
