"""The memory pass: each case in a fresh process, its peaks beside those that its counters predict."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from model.precision import PRECISIONS
from perf_tests.case_counters import Counters
from perf_tests.cases import Case
from perf_tests.expectation import expect
from perf_tests.memory_process import MemoryWorker, MemoryWorkerError
from perf_tests.models import ModelShelf
from perf_tests.outcomes import Outcome
from perf_tests.records import row_flags
from perf_tests.records.record import Json
from perf_tests.records.screen import case_name
from perf_tests.stash import OUTCOME
from perf_tests.workbench import Workbench

ROOT = Path(__file__).parents[1]

ALL_ROUNDS = 3
"""One that makes what the others find there, one for the allocator's figures, one to see who holds what."""


@dataclass
class MemoryPass:
    """Called by a test with the timing whose rounds are to be examined; keeps what the worker says of them."""

    node: pytest.Item
    case: Case
    workbench: Workbench
    worker: MemoryWorker
    keep: Callable[[Json], None]

    def __call__(self, timing: Callable[..., Any]) -> None:
        """Skips the test where the case has no rounds to examine, and fails it where they failed."""
        start = time.perf_counter()
        snapshot, no_snapshot = self._snapshot_path()
        settings = replace(self.workbench.settings, passes=(), memory_snapshot=False)
        task = {
            "benchmark": f"{self._file_of(timing)}::{timing.__name__}[{self.node.callspec.id}]",  # type: ignore[attr-defined]  # public on every parametrized pytest.Function
            "settings": asdict(settings),
            "snapshot": None if snapshot is None else str(snapshot),
        }
        try:
            answer = self.worker.ask(task)
        except MemoryWorkerError as error:
            self._tell(Outcome("error", str(error)))
        if "died" in answer:
            self._tell(_death(answer["died"]))
        if "outcome" in answer:
            self._tell(Outcome(**answer["outcome"]))
        expectation = expect(self.case, None, None)
        workspace_bytes = workspace_bytes_of(self.case, self.workbench.settings.threads)
        values = with_prediction(answer["values"], expectation.counters, expectation.counters_reason, workspace_bytes)
        self.keep(values | no_snapshot)
        self.workbench.time_spent.passes_seconds += time.perf_counter() - start

    def _file_of(self, timing: Callable[..., Any]) -> Path:
        return Path(timing.__code__.co_filename).relative_to(ROOT)

    def _snapshot_path(self) -> tuple[Path | None, Json]:
        """Where the snapshot goes, if there is to be one; and why it does not, where the folder cannot be made."""
        if not self.workbench.settings.memory_snapshot or self.workbench.session is None:
            return None, {}
        try:
            folder = self.workbench.session.side_folder()
        except OSError as error:
            return None, {"snapshot_reason": f"the folder of the snapshot cannot be made: {error}; make room."}
        return folder / f"{case_name(self.node.nodeid).replace(' ', '-')}.pickle", {}

    def _tell(self, outcome: Outcome) -> NoReturn:
        self.node.stash[OUTCOME] = outcome
        if outcome.outcome == "error":
            pytest.fail(outcome.in_words, pytrace=False)
        pytest.skip(outcome.in_words)


def workspace_bytes_of(case: Case, threads: int) -> int:
    """What libraries may take beside the tensors of the case; float32 products on a CPU take nothing of it."""
    if case.device == "cuda":
        return row_flags.WORKSPACE_BYTES
    takes_some = case.attention != "naive" or PRECISIONS[case.precision].autocast_dtype is not None
    return threads * row_flags.CPU_WORKSPACE_BYTES_PER_THREAD if takes_some else 0


def with_prediction(values: Json, counters: Counters | None, reason: str | None, workspace_bytes: int) -> Json:
    """The row's values with what the counters say of the same round, and a flag where they disagree."""
    predicted = None if counters is None else counters.peak_bytes
    measured = values["peak_allocated_bytes"]
    peaks = {} if counters is None else {_phase(peak.part): peak.peak_bytes for peak in counters.parts}
    is_off = row_flags.peak_is_off(measured, predicted, workspace_bytes)
    return {
        **values,
        "predicted_peak_bytes": predicted,
        "prediction_reason": reason,
        "prediction_error": measured / predicted - 1 if predicted else None,
        "parts": [{**part, "predicted_peak_bytes": peaks.get(part["phase"])} for part in values["parts"]],
        "flags": [*values["flags"], *(["peak_off"] if is_off else [])],
    }


def _phase(part: str) -> str:
    """A part of the counters by the name that it has in a row."""
    return "forward" if part == "inference" else part.removeprefix("attention_")


def _death(of: str) -> Outcome:
    """Linux ends with SIGKILL what takes the machine's last memory."""
    if of == "SIGKILL":
        reason = "its process was ended by SIGKILL, as the system does when memory runs out; give a --memory-budget."
        return Outcome("out_of_memory", reason)
    return Outcome("error", f"its process ended with {of}; run the case alone to see why.")


@pytest.fixture(scope="module")
def memory_worker() -> Iterator[MemoryWorker]:
    worker = MemoryWorker(ROOT)
    yield worker
    worker.end()


@pytest.fixture
def examine(
    request: pytest.FixtureRequest,
    case: Case,
    workbench: Workbench,
    shelf: ModelShelf,
    memory_worker: MemoryWorker,
    keep: Callable[[Json], None],
) -> MemoryPass:
    shelf.leave_memory_to_others()
    return MemoryPass(request.node, case, workbench, memory_worker, keep)


def memory_of(timing: Callable[..., Any]) -> Callable[..., None]:
    """The test that examines what `timing` times."""

    def test(case: Case, examine: MemoryPass) -> None:
        examine(timing)

    test.__doc__ = timing.__doc__
    (phase,) = (mark for mark in timing.pytestmark if mark.name == "phase")  # type: ignore[attr-defined]
    return pytest.mark.phase(*phase.args)(test)
