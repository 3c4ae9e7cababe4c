"""The first training step, which makes the optimizer's state. It is never timed: `--memory` examines it."""

from collections.abc import Callable

import pytest

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.outputs import check_update


@pytest.mark.phase("first_step")
def test_first_step(case: LanguageModelCase, training: Training, batch: Batch, measure: Measure) -> None:
    """A full step that finds neither gradients nor moments; an optimizer's state from before its first step stays."""
    state = training.optimizer.state
    from_before = {parameter: dict(values) for parameter, values in state.items()}

    def forget_steps() -> None:
        training.release()
        state.update({parameter: dict(values) for parameter, values in from_before.items()})

    def step() -> object:
        return training.step(batch.tokens_BT, batch.targets_BT)

    _settle_loss_scale(training, step)
    forget_steps()
    measure(step, forget_more=forget_steps)
    if case.updates:
        check_update(training)


def _settle_loss_scale(training: Training, step: Callable[[], object]) -> None:
    """Step until none is skipped: a step whose scaled gradients overflow makes no state, and its scale is halved."""
    while training.precision.scales_loss and (scale := training.loss_scale()) > 1:
        step()
        if training.loss_scale() >= scale:
            return
