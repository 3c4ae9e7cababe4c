"""Log times of recorded launches, and whether two sets of them are comparable."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perf_tests.gate.recorded_sides import code_of
from perf_tests.gate.rules import Clock
from perf_tests.gate.statistics import Floats
from perf_tests.records.compare import identity_difference
from perf_tests.records.record import machine_differences
from perf_tests.records.store import StoredRecord

QUANTILE = 0.25
"""Of a launch's rounds: spikes are one-sided, and the minimum depends on the number of rounds."""

Records = Sequence[StoredRecord]


LARGEST = 1e100
"""A figure beyond is damaged, and its square would overflow."""


@dataclass(frozen=True)
class Launches:
    """One side: log times by clock, (cases, launches), and of the sentinel, (launches,); NaN where unknown."""

    logs: dict[Clock, Floats]
    sentinel: Floats
    rounds: dict[Clock, dict[str, list[float]]]
    """By clock and case, of all launches together."""
    outcomes: dict[str, str]
    """Of each case without a timing, from the last launch."""

    @property
    def counts(self) -> NDArray[np.int_]:
        """Launches with a timing, (cases,)."""
        return np.sum(~np.isnan(self.logs["wall"]), axis=-1)

    @property
    def is_timed(self) -> NDArray[np.bool_]:
        """Whether a launch timed any case, (launches,)."""
        return np.any(~np.isnan(self.logs["wall"]), axis=0)


def why_incomparable(base: Records, head: Records) -> str:
    """Why the two sets cannot be compared, in one sentence; empty if they can."""
    first = base[0]
    for record in (*base, *head):
        differences = machine_differences(record.data["machine_info"], first.data["machine_info"])
        if differences:
            return f"{record.name} and {first.name} differ in machine, build or settings: {'; '.join(differences)}."
    rows = {row["fullname"]: row for row in first.data["benchmarks"]}
    for record in (*base, *head):
        for row in record.data["benchmarks"]:
            difference = identity_difference(rows.setdefault(row["fullname"], row), row)
            if difference:
                return f"{row['fullname']} is another case in {record.name}: {difference}."
    for side in (base, head):
        codes = {code_of(record.data) for record in side}
        if len(codes) > 1:
            versions = ", ".join(sorted(codes))
            return f"The records beside {side[0].name} ran several versions of the code ({versions})."
    return ""


def sentinels_of(base: Launches, head: Launches) -> tuple[Floats, Floats]:
    """Log times of the sentinel, (launches,) each, NaN in a launch without timings.

    All zero where a launch with timings lacks it, on either side: zero beside log times would be a shift.
    """
    if any(np.any(np.isnan(side.sentinel) & side.is_timed) for side in (base, head)):
        return np.zeros_like(base.sentinel), np.zeros_like(head.sentinel)
    return base.sentinel, head.sentinel


def launches_of(records: Records, names: Sequence[str]) -> Launches:
    place = {name: number for number, name in enumerate(names)}
    logs: dict[Clock, Floats] = {clock: np.full((len(names), len(records)), np.nan) for clock in get_args(Clock)}
    rounds: dict[Clock, dict[str, list[float]]] = {clock: defaultdict(list) for clock in get_args(Clock)}
    sentinel = np.full(len(records), np.nan)
    for launch, record in enumerate(records):
        for row in record.data["benchmarks"]:
            times: dict[Clock, object] = {"wall": row["stats"]["data"], "cpu": row["extra_info"].get("cpu_seconds")}
            for clock, seconds in times.items():
                if isinstance(seconds, list) and seconds and all(map(_is_positive, seconds)):
                    logs[clock][place[row["fullname"]], launch] = math.log(float(np.quantile(seconds, QUANTILE)))
                    rounds[clock][row["fullname"]] += seconds
        ceilings = [row["extra_info"].get("matmul_ceiling_tflops_per_second") for row in record.data["benchmarks"]]
        known = [-math.log(ceiling) for ceiling in dict.fromkeys(filter(_is_positive, ceilings))]
        sentinel[launch] = float(np.mean(known)) if known else math.nan
    outcomes = {row["id"]: row["outcome"] for record in records for row in record.data["outcomes"]}
    return Launches(logs, sentinel, rounds, outcomes)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < LARGEST
