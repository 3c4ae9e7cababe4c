"""A benchmark once more, under an extra pass: the same axes and the same rounds, looked at and not timed."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.stash import OUTCOME, PASS_VALUES
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
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

    @staticmethod
    @abstractmethod
    def rounds_of(phase: str, rounds: int) -> int:
        """How many rounds the pass runs of a case whose timing has `rounds` measured ones."""

    @abstractmethod
    def look(self, timing: Timing) -> Json | None:
        """What the rounds of `timing` show, for the record; None where nothing is to be kept."""

    def __call__(self, timing: Timing) -> None:
        start = time.perf_counter()
        values = self.look(timing)
        if values is not None:
            self.request.node.stash[PASS_VALUES] = values
        self.workbench.time_spent.passes_seconds += time.perf_counter() - start

    def benchmark_id(self, timing: Timing) -> str:
        """Node id of `timing` with the axes of this test."""
        path = Path(timing.__code__.co_filename).relative_to(ROOT).as_posix()
        return f"{path}::{timing.__name__}[{self.request.node.callspec.id}]"

    def end_with(self, outcome: Outcome) -> NoReturn:
        """What ended the rounds is what is told of the case: an error fails the test, anything else skips it."""
        self.request.node.stash[OUTCOME] = outcome
        if outcome.outcome == "error":
            pytest.fail(outcome.in_words, pytrace=False)
        pytest.skip(outcome.in_words)


def repeated(timing: Timing, extra_pass: str) -> Timing:
    """The test that looks at the rounds of `timing` under the pass of this name."""

    def test(case: Case, look: ExtraPass) -> None:
        look(timing)

    test.__doc__ = timing.__doc__
    (phase,) = (mark for mark in timing.pytestmark if mark.name == "phase")  # type: ignore[attr-defined]
    marked: Any = pytest.mark.extra_pass(extra_pass)(pytest.mark.phase(*phase.args)(test))
    return marked
