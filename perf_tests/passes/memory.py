"""The memory pass: each case in a fresh process, its peaks beside those that its counters predict."""

from pathlib import Path

from model.precision import PRECISIONS
from perf_tests.audit import row_flags
from perf_tests.bench.outcomes import Outcome
from perf_tests.cases import Case
from perf_tests.counting.case_counters import Counters
from perf_tests.passes.extra_pass import ExtraPass, Timing
from perf_tests.prediction.expectation import expect
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import case_name
from perf_tests.workers.memory import MemoryWorkerError
from perf_tests.workers.settings import sent

ALL_ROUNDS = 3
"""One that makes what the others find there, one for the allocator's figures, one to see who holds what."""


class MemoryPass(ExtraPass):
    """Asks a worker to play the rounds in a process of their own; keeps what it says of them."""

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return ALL_ROUNDS

    def look(self, timing: Timing) -> Json:
        """Skips the test where the case has no rounds to examine, and fails it where they failed."""
        self.request.getfixturevalue("shelf").leave_memory_to_others()
        snapshot, no_snapshot = self._snapshot_path()
        task = {
            "benchmark": self.benchmark_id(timing),
            "settings": sent(self.workbench.settings),
            "snapshot": None if snapshot is None else str(snapshot),
        }
        try:
            answer = self.request.getfixturevalue("memory_worker").ask(task)
        except MemoryWorkerError as error:
            self.end_with(Outcome("error", str(error)))
        if "died" in answer:
            self.end_with(_death(answer["died"]))
        if "outcome" in answer:
            self.end_with(Outcome(**answer["outcome"]))
        expectation = expect(self.case, None, None)
        workspace_bytes = workspace_bytes_of(self.case, self.workbench.settings.threads)
        values = with_prediction(answer["values"], expectation.counters, expectation.counters_reason, workspace_bytes)
        return values | no_snapshot

    def _snapshot_path(self) -> tuple[Path | None, Json]:
        """Where the snapshot goes, if there is to be one; and why it does not, where the folder cannot be made."""
        if not self.workbench.settings.memory_snapshot or self.workbench.session is None:
            return None, {}
        try:
            folder = self.workbench.session.side_folder()
        except OSError as error:
            return None, {"snapshot_reason": f"the folder of the snapshot cannot be made: {error}; make room."}
        return folder / f"{case_name(self.request.node.nodeid).replace(' ', '-')}.pickle", {}


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
