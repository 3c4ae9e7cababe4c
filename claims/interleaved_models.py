"""Benchmarks of the model that --model names, taking turns with ours; `against_llama` runs them by name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from claims.interleaved_rounds import Loop
from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.bench.loop import TimedMeasure
from perf_tests.bench.models import Batch
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.language_model import LanguageModelCase


@pytest.fixture
def loop(measure: TimedMeasure) -> Loop:
    return Loop(measure)


@pytest.fixture
def ours(case: LanguageModelCase, workbench: Workbench) -> Training:
    """Our model of the case's shape with fused attention, which the loop runs."""
    torch.manual_seed(workbench.settings.seed)
    model = TransformerLM(case.config, ATTENTION["sdpa"].build())
    return Training(model, PRECISIONS[case.precision], workbench.device.torch_device, workbench.settings.optimizer)


@pytest.mark.phase("forward")
def test_forward(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=(lambda: ours.forward(batch.tokens_BT), tuple))


@pytest.mark.phase("backward")
def test_backward(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    def forward_and_loss(training: Training) -> Callable[[], tuple[Tensor]]:
        def setup() -> tuple[Tensor]:
            training.clear_gradients()
            return (training.loss(training.forward(batch.tokens_BT), batch.targets_BT),)

        return setup

    loop.beside(training.backward, forward_and_loss(training), by_hand=(ours.backward, forward_and_loss(ours)))


@pytest.mark.phase("full_step")
def test_full_step(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    training.create_optimizer_state()
    ours.create_optimizer_state()
    loop.beside(
        lambda: training.step(batch.tokens_BT, batch.targets_BT),
        by_hand=(lambda: ours.step(batch.tokens_BT, batch.targets_BT), tuple),
    )
