"""An extra pass: a benchmark run again with the same axes and rounds, observed and not timed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.workbench import OUTCOME, PASS_VALUES, Workbench
from perf_tests.bench.workers import WorkerEndedError
from perf_tests.cases.case import Case
from perf_tests.records.record import Json

ROOT = Path(__file__).parents[2]

Timing = Callable[..., None]
"""The test function of a benchmark."""


@dataclass
class ExtraPass(ABC):
    """Called by a test with the timing that it repeats; `request` is the test's."""

    request: pytest.FixtureRequest
    case: Case
    workbench: Workbench
    uses_profiler: ClassVar[bool] = False
    """Whether it needs PyTorch's profiler, which another profiler of the process would block."""

    @staticmethod
    @abstractmethod
    def rounds_of(phase: str, rounds: int) -> int:
        """Rounds of the pass over a case whose timing measures `rounds`."""

    @abstractmethod
    def look(self, timing: Timing) -> Json | None:
        """The values of the pass, for the record; None where nothing is kept."""

    def __call__(self, timing: Timing) -> None:
        with self.workbench.spending("passes"):
            values = self.look(timing)
        if values is not None:
            self.request.node.stash[PASS_VALUES] = values

    def benchmark_id(self, timing: Timing) -> str:
        """Node id of `timing` with the axes of this test."""
        path = Path(timing.__code__.co_filename).relative_to(ROOT).as_posix()
        return f"{path}::{timing.__name__}[{self.request.node.callspec.id}]"

    def answered_by(self, worker: Callable[[], Json]) -> Json:
        """The `values` of a worker's answer; an outcome ends the test instead: an error fails it, another skips it."""
        self.request.getfixturevalue("shelf").leave_memory_to_others()
        try:
            answer = worker()
        except WorkerEndedError as error:
            self._end_with(Outcome("error", str(error)))
        if "outcome" in answer:
            self._end_with(Outcome(**answer["outcome"]))
        values: Json = answer["values"]
        return values

    def _end_with(self, outcome: Outcome) -> NoReturn:
        self.request.node.stash[OUTCOME] = outcome
        if outcome.outcome == "error":
            pytest.fail(outcome.in_words, pytrace=False)
        pytest.skip(outcome.in_words)


def repeated(timing: Timing, extra_pass: str) -> Timing:
    """The test that runs `timing` under the pass of this name."""

    def test(case: Case, look: ExtraPass) -> None:
        look(timing)

    test.__doc__ = timing.__doc__
    (phase,) = (mark for mark in timing.pytestmark if mark.name == "phase")  # type: ignore[attr-defined]
    marked: Any = pytest.mark.extra_pass(extra_pass)(pytest.mark.phase(*phase.args)(test))
    return marked
