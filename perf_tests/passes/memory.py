"""The memory pass: each case in a fresh process, its peaks beside those that its counters predict."""

from functools import partial
from pathlib import Path

from model.precision import PRECISIONS
from perf_tests.audit.row_flags import CPU_WORKSPACE_BYTES_PER_THREAD, RowFacts, raised
from perf_tests.cases.case import Case
from perf_tests.counting.case_counters import Counters
from perf_tests.passes.extra_pass import ExtraPass, Timing
from perf_tests.phases import label_of
from perf_tests.prediction.expectation import expect
from perf_tests.records.record import Json
from perf_tests.workers.settings import sent_elsewhere

ALL_ROUNDS = 3
"""The first allocates what later ones reuse, the second gives the allocator's figures, the third the holders."""


class MemoryPass(ExtraPass):
    """A worker runs the rounds of each case in a process of their own."""

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return ALL_ROUNDS

    def look(self, timing: Timing) -> Json:
        snapshot, no_snapshot = self._snapshot_path()
        task = {
            "benchmark": self.benchmark_id(timing),
            "settings": sent_elsewhere(self.workbench.settings),
            "snapshot": None if snapshot is None else str(snapshot),
        }
        values = self.answered_by(partial(self.request.getfixturevalue("memory_worker").ask, task))
        expectation = expect(self.case, None, None, self.workbench.libraries)
        workspace_bytes = workspace_bytes_of(self.case, self.workbench.settings.threads)
        predicted = with_prediction(values, expectation.counters, expectation.counters_reason, workspace_bytes)
        return predicted | no_snapshot

    def _snapshot_path(self) -> tuple[Path | None, Json]:
        """The path of the snapshot where one is asked for, and why there is none where its folder cannot be made."""
        if not self.workbench.settings.memory_snapshot or self.workbench.session is None:
            return None, {}
        try:
            return self.workbench.session.side_file(self.request.node.nodeid, "pickle"), {}
        except OSError as error:
            reason = f"the folder of the snapshot cannot be made: {error}; free disk space."
            return None, {"snapshot_reason": reason}


def workspace_bytes_of(case: Case, threads: int) -> int:
    """What libraries may allocate beside the predicted peak, which has cuBLAS's workspaces on a GPU.

    Float32 products on a CPU allocate nothing.
    """
    if case.device == "cuda":
        return 0
    takes_some = case.attention != "naive" or PRECISIONS[case.precision].autocast_dtype is not None
    return threads * CPU_WORKSPACE_BYTES_PER_THREAD if takes_some else 0


def with_prediction(values: Json, counters: Counters | None, reason: str | None, workspace_bytes: int) -> Json:
    """The row's values with the peaks that the counters predict, and a flag where the two disagree."""
    predicted = None if counters is None else counters.peak_bytes
    held = None if counters is None else counters.highest_part.bytes_by_category
    measured = values["peak_allocated_bytes"]
    peaks = {} if counters is None else {_region_of(peak.part): peak.peak_bytes for peak in counters.parts}
    facts = RowFacts(peak_allocated_bytes=measured, predicted_peak_bytes=predicted, workspace_bytes=workspace_bytes)
    return {
        **values,
        "predicted_peak_bytes": predicted,
        "predicted_by_category_bytes": held,
        "prediction_reason": reason,
        "prediction_error": measured / predicted - 1 if predicted else None,
        "parts": [{**part, "predicted_peak_bytes": peaks.get(part["phase"])} for part in values["parts"]],
        "flags": [*values["flags"], *raised(facts)],
    }


def _region_of(part: str) -> str:
    """The region that a part of the counters runs in: an inference is a forward pass too."""
    return "forward" if part == "inference" else label_of(part)
