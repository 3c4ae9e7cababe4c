"""The exact counters of a case on both sides of a gate, as lines of its samples.

They depend on the program alone, so one count of either side is enough and any rise is real.
"""

from collections.abc import Mapping

from perf_tests.gate.events import SIDES, ExactFinding, Side, Uncounted
from perf_tests.records.record import Json

COUNTERS = {
    "parameters": "parameters",
    "model_flops": "model_flops",
    "executed_flops": "executed_flops",
    "kernel_launches": "kernel_launches",
    "bytes_touched": "bytes_touched",
    "saved_bytes": "saved_bytes",
    "predicted_peak_bytes": "peak_bytes",
    "host_reads": "host_reads",
}
"""What the gate compares: a record's name of each counter to its name among the case's counters."""


def exact_events(case: str, answers: Mapping[Side, Json]) -> list[ExactFinding] | list[Uncounted]:
    """A finding for each counter that both sides know, or which side has none and why.

    `answers` are base's and head's: `counters`, null with a `reason` where there are none.
    """
    for side in SIDES[::-1]:
        if answers[side]["counters"] is None:
            return [Uncounted(case, side, str(answers[side]["reason"]))]
    old, new = (answers[side]["counters"] for side in SIDES)
    return [
        ExactFinding(case, name, old[name], new[name])
        for name in COUNTERS
        if old.get(name) is not None and new.get(name) is not None
    ]
