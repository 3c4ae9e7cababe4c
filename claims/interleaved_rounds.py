"""Benchmarks that take turns with a hand-written loop; `suite_against_loop` runs them by name, nothing else does."""

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from model.training import Training
from perf_tests.bench.loop import TimedMeasure
from perf_tests.bench.models import Batch
from perf_tests.cases.language_model import LanguageModelCase

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


def rounds_between(loop_seconds: list[float], warmup_rounds: int, count: int) -> list[float]:
    """The loop's measured rounds, so that each two rounds of the suite lie between two of them.

    The loop's come in twos before each two of the suite's, so its first measured one is the second of such two.
    """
    return loop_seconds[warmup_rounds + 1 :][:count]


@pytest.fixture
def loop(measure: TimedMeasure) -> Loop:
    return Loop(measure)


def forward_by_hand(case: LanguageModelCase, training: Training, batch: Batch) -> tuple[Target, SetUp] | None:
    """Of a model of transformers its own call, past what the suite put around it."""
    return None if case.own is None else (lambda: training.model.forward(batch.tokens_BT).logits, tuple)


@pytest.mark.phase("inference")
def test_inference(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    with torch.no_grad():
        loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=forward_by_hand(case, training, batch))


@pytest.mark.phase("forward")
def test_forward(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    loop.beside(lambda: training.forward(batch.tokens_BT), by_hand=forward_by_hand(case, training, batch))


@pytest.mark.phase("backward")
def test_backward(case: LanguageModelCase, training: Training, batch: Batch, loop: Loop) -> None:
    def forward_and_loss() -> tuple[Tensor]:
        training.clear_gradients()
        return (training.loss(training.forward(batch.tokens_BT), batch.targets_BT),)

    by_hand = None if case.own is None else (Tensor.backward, forward_and_loss)
    loop.beside(training.backward, forward_and_loss, by_hand)


@pytest.mark.phase("inference")
def test_nothing(case: LanguageModelCase, measure: TimedMeasure) -> None:
    """No work: the time between two set-ups is the suite's own cost."""
    assert measure.row is not None
    # The lower bound of the case's phase does not apply to a round without work.
    measure.row = replace(measure.row, expectation=None)
    moments: list[float] = []
    measure(lambda: None, setup=lambda: moments.append(time.perf_counter()))
    measure.benchmark.extra_info["between_seconds"] = [later - earlier for earlier, later in pairwise(moments)]
