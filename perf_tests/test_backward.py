"""Time of the backward pass, alone and after a forward pass. Not timed: clearing old gradients."""

import pytest
from torch import Tensor

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.checked_rounds import GradientCheck
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_gradients, check_tokens
from perf_tests_suite.perf_tests.hardware.clock import Clock


@pytest.mark.phase("backward")
def test_backward(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """`loss.backward()` alone, on a graph made in each round's set-up."""

    def forward_and_loss() -> tuple[Tensor]:
        training.clear_gradients()
        return (training.loss(training.forward(batch.tokens_BT), batch.targets_BT),)

    measure(training.backward, setup=forward_and_loss, renew=batch.renew, check=lambda: GradientCheck(training))
    check_gradients(training)
    check_tokens(batch.tokens_BT, batch.targets_BT)


@pytest.mark.phase("forward_backward")
def test_forward_backward(
    case: LanguageModelCase, training: Training, batch: Batch, measure: Measure, clock: Clock
) -> None:
    """Forward, loss and backward."""

    def forward_backward() -> None:
        logits_BTV = training.forward(batch.tokens_BT)
        clock.mark("forward")
        loss = training.loss(logits_BTV, batch.targets_BT)
        clock.mark("loss")
        training.backward(loss)
        clock.mark("backward")

    measure(forward_backward, setup=training.clear_gradients, renew=batch.renew, check=lambda: GradientCheck(training))
    check_gradients(training)
    check_tokens(batch.tokens_BT, batch.targets_BT)
