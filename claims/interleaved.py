"""Benchmarks that take turns with a loop written by hand; `against_loop.py` runs them by name, nothing else does."""

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from perf_tests_suite.model.attention import ATTENTION, naive_attention
from perf_tests_suite.model.parallel import KEEPS_BUFFERS
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import MAX_GRADIENT_NORM, Training, cross_entropy
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.bench.loop import TimedMeasure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.bench.ranks import RankClock, SharedStepMeasure
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase

pytest_plugins = ("perf_tests_suite.perf_tests.conftest",)
"""The fixtures of a benchmark, which this file does not stand beside."""

Target = Callable[..., Any]
SetUp = Callable[[], tuple[Any, ...]]


class Loop:
    """A loop written by hand, one round at a time: collector off, wait, read, call, wait, read."""

    def __init__(self, measure: TimedMeasure) -> None:
        self.measure = measure
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.suite_rounds = 0

    def beside(self, target: Target, setup: SetUp = tuple, by_hand: tuple[Target, SetUp] | None = None) -> None:
        """Measure `target` by the suite, and by hand in its untimed set-ups: two rounds before every other one.

        `by_hand` is what the loop runs, where that is something else.
        """
        loop_target, loop_setup = by_hand or (target, setup)

        def turn() -> tuple[Any, ...]:
            if self.suite_rounds % 2 == 0:
                self.round(loop_target, loop_setup)
                self.round(loop_target, loop_setup)
            self.suite_rounds += 1
            return setup()

        self.measure(target, setup=turn)
        self.round(loop_target, loop_setup)
        self.measure.benchmark.extra_info["loop_seconds"] = self.seconds
        self.measure.benchmark.extra_info["loop_cpu_seconds"] = self.cpu_seconds

    def round(self, target: Target, setup: SetUp) -> None:
        arguments = setup()
        gc.disable()
        self.measure.device.synchronize()
        cpu_start = time.process_time()
        start = time.perf_counter()
        result = target(*arguments)
        self.measure.device.synchronize()
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(time.process_time() - cpu_start)
        gc.enable()
        del result


@pytest.fixture
def loop(measure: TimedMeasure) -> Loop:
    return Loop(measure)


def forward_by_hand(case: LanguageModelCase, training: Training, batch: Batch) -> tuple[Target, SetUp] | None:
    """A call of a model of transformers itself, past what the suite put around it; None for our own."""
    return None if case.user_model is None else (lambda: training.model.forward(batch.tokens_BT).logits, tuple)


@pytest.mark.phase("inference")
def test_inference(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    with torch.no_grad():
        loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=forward_by_hand(case, training, batch))


@pytest.mark.phase("forward")
def test_forward(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=forward_by_hand(case, training, batch))


def forward_and_loss(training: Training, batch: Batch) -> SetUp:
    """Make the set-up of a backward pass."""

    def setup() -> tuple[Tensor]:
        training.clear_gradients()
        return (training.loss(training.forward(batch.tokens_BT), batch.targets_BT),)

    return setup


@pytest.mark.phase("backward")
def test_backward(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    setup = forward_and_loss(training, batch)
    loop.beside(training.backward, setup, None if case.user_model is None else (Tensor.backward, setup))


@pytest.mark.phase("inference")
def test_nothing(case: LanguageModelCase, measure: TimedMeasure) -> None:
    """No work: the time between two set-ups is the suite's own cost."""
    assert measure.row is not None
    # The lower bound of the case's phase does not apply to a round without work.
    measure.row = replace(measure.row, expectation=None)
    moments: list[float] = []
    measure(lambda: None, setup=lambda: moments.append(time.perf_counter()))
    measure.benchmark.extra_info["between_seconds"] = [later - earlier for earlier, later in pairwise(moments)]


@pytest.fixture
def ours(case: LanguageModelCase, workbench: Workbench) -> Training:
    """Our model of the case's shape with fused attention, which the loop runs."""
    torch.manual_seed(workbench.settings.seed)
    model = TransformerLM(case.config, ATTENTION["sdpa"].build())
    return Training(model, PRECISIONS[case.precision], workbench.device.torch_device, workbench.settings.optimizer)


@pytest.mark.phase("forward")
def test_llama_forward(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=(lambda: ours.forward(batch.tokens_BT), tuple))


@pytest.mark.phase("backward")
def test_llama_backward(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    by_hand = (ours.backward, forward_and_loss(ours, batch))
    loop.beside(training.backward, forward_and_loss(training, batch), by_hand)


@pytest.mark.phase("full_step")
def test_llama_full_step(training: Training, ours: Training, batch: Batch, loop: Loop) -> None:
    training.create_optimizer_state()
    ours.create_optimizer_state()
    loop.beside(
        lambda: training.step(batch.tokens_BT, batch.targets_BT),
        by_hand=(lambda: ours.step(batch.tokens_BT, batch.targets_BT), tuple),
    )


class RankLoop(Loop):
    """The ranks wait for each other before a round; its time is the slowest one's."""

    def round(self, target: Target, setup: SetUp) -> None:
        assert isinstance(self.measure.clock, RankClock)
        if len(self.seconds) > self.measure.warmup_rounds + self.measure.rounds + 1:
            return  # what follows the measured rounds needs no loop beside it
        dist.barrier(group=self.measure.clock.group)
        super().round(target, setup)


def step_by_hand(case: LanguageModelCase, batch: Batch, group: Any) -> Callable[[], torch.Tensor]:
    """What a training script has, with the suite's shape, loss and options of DDP and AdamW."""
    model = DistributedDataParallel(
        TransformerLM(case.config, naive_attention), process_group=group, **KEEPS_BUFFERS
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=False)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(batch.tokens_BT), batch.targets_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM, foreach=False)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.phase("full_step")
def test_ddp_full_step(
    case: LanguageModelCase, training: Training, batch: Batch, measure: SharedStepMeasure, workbench: Workbench
) -> None:
    assert workbench.groups is not None
    loop, by_hand = RankLoop(measure), step_by_hand(case, batch, workbench.groups.case(2))
    training.create_optimizer_state()
    loop.beside(lambda: training.step(batch.tokens_BT, batch.targets_BT), by_hand=(by_hand, tuple))
    assert isinstance(measure.clock, RankClock)
    of_ranks = measure.clock.from_all(loop.seconds)
    measure.benchmark.extra_info["loop_seconds"] = [max(seconds) for seconds in zip(*of_ranks, strict=True)]
