"""Time of the optimizer's update, and of a whole training step. AdamW's state exists before the first timed round."""

import pytest

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.checked_rounds import StepCheck
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_tokens, check_update, require
from perf_tests_suite.perf_tests.hardware.clock import Clock


@pytest.mark.phase("optimizer")
def test_optimizer(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """Unscaling, clipping and the AdamW step; forward and backward are set-up."""

    def forward_and_backward() -> None:
        training.clear_gradients()
        training.backward(training.loss(training.forward(batch.tokens_BT), batch.targets_BT))

    training.create_optimizer_state()
    measure(
        training.update,
        setup=forward_and_backward,
        loss_scale=training.loss_scale,
        renew=batch.renew,
        check=lambda: StepCheck(training),
    )
    check_update(training)
    check_tokens(batch.tokens_BT, batch.targets_BT)


@pytest.mark.phase("full_step")
def test_full_step(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure, clock: Clock) -> None:
    """zero_grad, forward, loss, backward, clipping, AdamW step; the time of each part is recorded too.

    With `--zero-grad before-step` nothing is ever updated, so that there is no optimizer state.
    """
    if case.updates:
        training.create_optimizer_state()
    loss = measure(
        lambda: training.step(batch.tokens_BT, batch.targets_BT, clock.mark),
        loss_scale=training.loss_scale,
        renew=batch.renew,
        check=(lambda: StepCheck(training)) if case.updates else None,
    )
    require(loss.isfinite(), f"the loss after the last round is {loss.item()}")
    check_tokens(batch.tokens_BT, batch.targets_BT)
    if case.updates:
        check_update(training)
