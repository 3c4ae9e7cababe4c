"""An extra pass: a benchmark run again with the same axes and rounds, observed and not timed.

A pass is one file of this folder. It says how many rounds it runs and what it keeps of them; a benchmark's file makes
its tests by `repeated(timing, name)`, and its values are a row of the record's `passes`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.session import benchmark_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import write_whole

ROOT = Path(__file__).parents[2]
"""The folder that holds the suite, in which workers start."""

Timing = Callable[..., None]
"""The test function of a benchmark."""


def repeated(timing: Timing, extra_pass: str) -> Timing:
    """Return the test that runs `timing` under the pass of this name."""

    def test(case: Case, pass_of_test: ExtraPass) -> None:
        pass_of_test(timing)

    test.__doc__ = timing.__doc__
    (phase,) = (mark for mark in timing.pytestmark if mark.name == "phase")  # type: ignore[attr-defined]
    marked: Any = pytest.mark.extra_pass(extra_pass)(pytest.mark.phase(*phase.args)(test))
    return marked


def kept_beside(kind: str, path: Path, content: bytes) -> Json:
    """Write a file of a pass; returns its path from the folder of the record, or why it has none.

    A full disk costs the file alone.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        reason = f"the {kind} of {len(content):,} bytes cannot be written: {error}; free disk space and run again."
        return {kind: None, f"{kind}_reason": reason}
    return {kind: f"{path.parent.name}/{path.name}"}


def pass_named(name: str) -> "type[ExtraPass]":
    # Imported here, because each of them builds on this file.
    from perf_tests_suite.perf_tests.passes.kernels import KernelPass
    from perf_tests_suite.perf_tests.passes.memory import MemoryPass
    from perf_tests_suite.perf_tests.passes.warmup import WarmupPass

    every: dict[str, type[ExtraPass]] = {"kernels": KernelPass, "memory": MemoryPass, "warmup": WarmupPass}
    return every[name]


@dataclass
class ExtraPass(ABC):
    """Examine a case; called by a test with the timing that it repeats; `request` is the test's."""

    request: pytest.FixtureRequest
    case: Case
    workbench: Workbench
    uses_profiler: ClassVar[bool] = False
    """Whether it needs PyTorch's profiler, which another profiler of the process would block."""

    rounds_of: ClassVar["staticmethod[[str, int], int]"]
    """Takes a phase and the rounds of its timing; returns those of the pass."""

    @abstractmethod
    def examine(self, timing: Timing) -> Json | None:
        """Return the values of the pass, for the record; None where nothing is kept."""

    def __call__(self, timing: Timing) -> None:
        with self.workbench.spending("passes"):
            values = self.examine(timing)
        if values is not None:
            benchmark_of(self.request.node).values = values

    def benchmark_id(self, timing: Timing) -> str:
        """Return the node id of `timing` with the axes of this test."""
        path = Path(timing.__code__.co_filename).relative_to(ROOT).as_posix()
        return f"{path}::{timing.__name__}[{self.request.node.callspec.id}]"

    def answered_by(self, worker: Callable[[], Json]) -> Json:
        """Return the `values` of a worker's answer; an outcome ends the test instead."""
        self.request.getfixturevalue("model_cache").leave_memory_to_others()
        try:
            answer = worker()
        except WorkerEndedError as error:
            self.end_with(Outcome("error", str(error)))
        if "outcome" in answer:
            self.end_with(Outcome(**answer["outcome"]))
        values: Json = answer["values"]
        return values

    def end_with(self, outcome: Outcome) -> NoReturn:
        """End the test: an error fails it, any other outcome skips it."""
        benchmark_of(self.request.node).outcome = outcome
        if outcome.outcome == "error":
            pytest.fail(outcome.sentence, pytrace=False)
        pytest.skip(outcome.sentence)
