"""Log times of recorded launches, and whether two sets of them are comparable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf_tests.gate.recorded_sides import FEWEST_BASE_LAUNCHES, FEWEST_HEAD_LAUNCHES
from perf_tests.gate.rules import Clock
from perf_tests.gate.statistics import Floats
from perf_tests.records.compare import identity_difference
from perf_tests.records.record import machine_differences
from perf_tests.records.store import StoredRecord

QUANTILE = 0.25
"""Of a launch's rounds: spikes are one-sided, and the minimum depends on the number of rounds."""

Records = Sequence[StoredRecord]


@dataclass(frozen=True)
class Launches:
    """Log times of one side by both clocks, (cases, launches), and log times of the sentinel, (launches,)."""

    wall: Floats
    cpu: Floats
    sentinel: Floats


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
        revisions = {str((r.data.get("commit_info") or {}).get("id")) for r in side}
        if len(revisions) > 1:
            return f"The records beside {side[0].name} are of several commits ({', '.join(sorted(revisions))})."
    return ""


def launches_of(records: Records, names: Sequence[str]) -> Launches:
    place = {name: number for number, name in enumerate(names)}
    wall, cpu = np.full((2, len(names), len(records)), np.nan)
    sentinel = np.full(len(records), np.nan)
    for launch, record in enumerate(records):
        for row in record.data["benchmarks"]:
            wall[place[row["fullname"]], launch] = math.log(float(np.quantile(row["stats"]["data"], QUANTILE)))
            cpu_seconds = row["extra_info"].get("cpu_seconds")
            if isinstance(cpu_seconds, list) and cpu_seconds and all(_is_positive(value) for value in cpu_seconds):
                cpu[place[row["fullname"]], launch] = math.log(float(np.quantile(cpu_seconds, QUANTILE)))
        ceilings = [row["extra_info"].get("matmul_ceiling_tflops_per_second") for row in record.data["benchmarks"]]
        known = [-math.log(ceiling) for ceiling in dict.fromkeys(ceilings) if _is_positive(ceiling)]
        sentinel[launch] = float(np.mean(known)) if known else math.nan
    if np.any(np.isnan(sentinel)):
        sentinel = np.zeros(len(records))
    return Launches(wall, cpu, sentinel)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def launch_counts(values: Floats) -> Floats:
    return np.sum(~np.isnan(values), axis=-1).astype(float)


def rounds_of(record: StoredRecord, name: str, clock: Clock = "wall") -> list[float]:
    """Seconds of a case's measured rounds by this clock; empty where the record has none."""
    row = next((row for row in record.data["benchmarks"] if row["fullname"] == name), None)
    if row is None:
        return []
    return row["stats"]["data"] if clock == "wall" else row["extra_info"].get("cpu_seconds") or []


def outcomes_of(records: Records) -> dict[str, str]:
    """By case without a timing, from the last launch."""
    return {row["id"]: row["outcome"] for record in records for row in record.data["outcomes"]}


def too_few_launches(name: str, base: Records, head: Records) -> str:
    counts = [sum(bool(rounds_of(record, name)) for record in side) for side in (base, head)]
    if counts[0] >= FEWEST_BASE_LAUNCHES and counts[1] >= FEWEST_HEAD_LAUNCHES:
        return ""
    return (
        f"measured in {counts[0]} launches of base and {counts[1]} of head; a verdict needs at least "
        f"{FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES}"
    )
