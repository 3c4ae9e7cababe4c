"""The warm-up study of one case: a fresh process after each number of warm-up rounds, and one for the first round."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf_tests import test_attention, test_backward, test_forward, test_full_step
from perf_tests.cases import Case
from perf_tests.models import ModelShelf
from perf_tests.outcomes import Outcome
from perf_tests.records.record import Json
from perf_tests.records.warmup_study import (
    LEAVING_OUT_ROUNDS,
    STUDIED_WARMUP_ROUNDS,
    WITH_SET_UP,
    warmup_values,
)
from perf_tests.stash import OUTCOME
from perf_tests.warmup import fresh_process
from perf_tests.warmup.task import Task
from perf_tests.workbench import Workbench

BENCHMARKS: dict[str, Callable[..., None]] = {
    "inference": test_forward.test_inference,
    "forward": test_forward.test_forward,
    "backward": test_backward.test_backward,
    "forward_backward": test_backward.test_forward_backward,
    "optimizer": test_full_step.test_optimizer,
    "full_step": test_full_step.test_full_step,
    "attention_forward": test_attention.test_attention_forward,
    "attention_backward": test_attention.test_attention_backward,
}
"""What times each phase."""


@dataclass
class WarmupStudy:
    """Called by a test in the place of its rounds; none of them is run in this process."""

    item: pytest.Item
    case: Case
    workbench: Workbench
    keep: Callable[[Json], None]

    def __call__(self) -> None:
        start = time.perf_counter()
        rounds = self.workbench.rounds(self.case)
        if self.workbench.disabled:
            self._answer(warmup_rounds=0, rounds=1)
            return
        series = [
            {
                "warmup_rounds": count,
                "leaves_out_timed_phase": False,
                **self._answer(warmup_rounds=count, rounds=rounds),
            }
            for count in STUDIED_WARMUP_ROUNDS
        ]
        if self.case.phase in WITH_SET_UP:
            answer = self._answer(LEAVING_OUT_ROUNDS, rounds, leaves_out_timed_phase=True)
            series.append({"warmup_rounds": LEAVING_OUT_ROUNDS, "leaves_out_timed_phase": True, **answer})
        first_round = self._answer(0, 1, traces_first_round=True)
        self.keep(warmup_values(series, first_round, self.workbench.settings.warmup_rounds))
        self.workbench.time_spent.passes_seconds += time.perf_counter() - start

    def _answer(
        self, warmup_rounds: int, rounds: int, leaves_out_timed_phase: bool = False, traces_first_round: bool = False
    ) -> Json:
        task = Task(
            self.workbench.settings,
            benchmark_id(self.case.phase, self.item.nodeid),
            warmup_rounds,
            rounds,
            leaves_out_timed_phase,
            traces_first_round,
        )
        answer = fresh_process.in_fresh_process(task, Path(self.item.config.rootpath))
        if "outcome" in answer:
            self._end_with(Outcome(**answer["outcome"]))
        return answer

    def _end_with(self, outcome: Outcome) -> None:
        """What ended the fresh process is what is told of the case."""
        if outcome.outcome == "error":
            pytest.fail(f"a fresh process: {outcome.reason}", pytrace=False)
        self.item.stash[OUTCOME] = outcome
        pytest.skip(outcome.in_words)


def benchmark_id(phase: str, study_id: str) -> str:
    """Node id of the benchmark whose rounds are studied: same axes, another function."""
    function = BENCHMARKS[phase]
    _, bracket, axes = study_id.partition("[")
    return f"{function.__module__.replace('.', '/')}.py::{function.__name__}{bracket}{axes}"


@pytest.fixture
def study(
    request: pytest.FixtureRequest,
    case: Case,
    workbench: Workbench,
    shelf: ModelShelf,
    keep: Callable[[Json], None],
) -> WarmupStudy:
    shelf.leave_memory_to_others()
    return WarmupStudy(request.node, case, workbench, keep)
