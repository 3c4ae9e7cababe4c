"""Recorded runs as a page needs them: some in full, of all others the medians."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf_tests.records.record import Json, identity_of, machine_differences, parts_of, run_of, timing_outcomes
from perf_tests.records.store import StoredRecord
from perf_tests.views.report.figure import Figure, Series, bars
from perf_tests.views.tables.cells import PASSES, Cell, cells_of, distinct, pass_cells, phase_order
from perf_tests.views.tables.conditions import commit_of, machine_line, machine_name

FULL_RUNS_OF_A_MACHINE = 2
"""The newest is shown in full and compared with the one before; the history needs only medians of older ones."""

LAUNCHES_OF_A_COMMIT = 20
"""The newest: more sharpen a verdict little, and older ones describe the machine of another day."""
READ_BY_THE_GATE = ("cpu_seconds", "matmul_ceiling_tflops_per_second")


@dataclass
class RecordedRun:
    """One record, without what no page shows; `cells` and `passes` are empty once only its medians are needed."""

    name: str
    record: Json
    """Without `benchmarks` and `outcomes`."""
    cells: list[Cell]
    medians: dict[str, tuple[float, tuple[Any, ...]]]
    """Median in seconds and identity of each timed case, by id."""
    timed: int
    untimed: int
    flags: int
    passes: dict[str, list[Cell]]
    launch: StoredRecord | None = None
    """What the gate reads of the record: rounds and identities. None for a commit that is unknown or has changes."""
    number: int = 0

    @property
    def written(self) -> str:
        return str(self.record.get("datetime"))

    @property
    def commit(self) -> str:
        return commit_of(self.record)

    @property
    def conditions(self) -> str:
        return machine_line(self.record)

    def passed(self, name: str) -> list[Cell]:
        return self.passes.get(name, [])

    def figures(
        self, name: str, title: str, axes: tuple[str, str], series: Sequence[Series], notes: Sequence[str], **more: Any
    ) -> list[Figure]:
        """One figure above the conditions of this run; none without points."""
        drawn = [one for one in series if one.points]
        if not drawn:
            return []
        return [Figure(f"run{self.number}-{name}", title, *axes, drawn, [*notes, self.conditions], **more)]

    def phase_bars(
        self,
        name: str,
        titles: tuple[str, str],
        found: Iterable[tuple[Cell, str, float]],
        colour: Callable[[str], int],
        notes: Sequence[str],
        beside: Sequence[Series] = (),
    ) -> list[Figure]:
        """One figure of `bars`, phases in the order of a step; `titles` are its own and the heights'."""
        rows = list(found)
        phases = distinct(cell.phase for cell, _, _ in sorted(rows, key=lambda row: phase_order(row[0])))
        axes, series = ("phase", titles[1]), [*bars(rows, colour), *beside]
        return self.figures(name, titles[0], axes, series, notes, picks_one=True, x_values=phases)

    @property
    def title(self) -> str:
        return f"run {self.number}, {self.name}"


@dataclass
class MachineRuns:
    """Runs of one machine, build and setting: the only ones whose times compare. Oldest first."""

    runs: list[RecordedRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        return machine_name(self.runs[0].record)

    @property
    def newest(self) -> RecordedRun:
        return self.runs[-1]


def machines_of(records: Iterable[StoredRecord], keeps_all: bool) -> list[MachineRuns]:
    """Runs by machine, numbered by date, each once and without shards of a merged run.

    `keeps_all` keeps each of them in full.
    """
    machines: list[MachineRuns] = []
    identities: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    parts: set[str] = set()
    shown: set[str | None] = set()
    for record in records:
        parts |= parts_of(record.data)
        if record.name in parts or run_of(record.data) in parts | shown:
            continue
        shown |= {run_of(record.data)} - {None}
        run = _run_of(record, identities)
        machine = _machine_of(run, machines)
        kept = [earlier for earlier in machine.runs if not {earlier.name, run_of(earlier.record)} & parts]
        machine.runs[:] = [*kept, run]
        machine.runs.sort(key=lambda run: (run.written, run.name))
        _forget_old_launches(machine.runs)
        if not keeps_all:
            for older in machine.runs[:-FULL_RUNS_OF_A_MACHINE]:
                older.cells, older.passes = [], {}
    machines.sort(key=lambda machine: (machine.newest.written, machine.newest.name))
    every = sorted((run for machine in machines for run in machine.runs), key=lambda run: (run.written, run.name))
    for number, run in enumerate(every, 1):
        run.number = number
    return machines


def _machine_of(run: RecordedRun, machines: list[MachineRuns]) -> MachineRuns:
    info = run.record["machine_info"]
    for machine in machines:
        if not machine_differences(info, machine.newest.record["machine_info"]):
            return machine
    machines.append(MachineRuns())
    return machines[-1]


def _run_of(stored: StoredRecord, identities: dict[tuple[Any, ...], tuple[Any, ...]]) -> RecordedRun:
    """Hundreds of runs have the same few identities, so `identities` keeps each once."""
    data = stored.data
    cells = cells_of(data)
    medians = {}
    for cell in cells:
        if cell.is_timed:
            key = tuple((name, str(value)) for name, value in cell.identity.items())
            medians[sys.intern(cell.id)] = (cell.median_seconds, identities.setdefault(key, key))
    facts = {name: value for name, value in data.items() if name not in ("benchmarks", "outcomes", "passes")}
    return RecordedRun(
        stored.name, facts, cells, medians, len(data["benchmarks"]), len(data["outcomes"]),
        sum(len(cell.flags) for cell in cells),
        {name: found for name in PASSES if (found := pass_cells(data, name))}, _launch_of(stored),
    )  # fmt: skip


def _launch_of(stored: StoredRecord) -> StoredRecord | None:
    """Only what the gate reads, because hundreds of launches stay in memory together."""
    data, commit = stored.data, stored.data.get("commit_info")
    if not isinstance(commit, dict) or not isinstance(commit.get("id"), str) or commit.get("dirty") is not False:
        return None
    rows = [
        {
            "fullname": row["fullname"],
            "stats": {"data": row["stats"]["data"]},
            "extra_info": {**identity_of(row), **{name: row["extra_info"].get(name) for name in READ_BY_THE_GATE}},
        }
        for row in data["benchmarks"]
    ]
    outcomes = [{"id": row["id"], "outcome": row["outcome"]} for row in timing_outcomes(data)]
    known = {"machine_info": data["machine_info"], "commit_info": {"id": commit["id"]}}
    return StoredRecord(stored.path, {**known, "benchmarks": rows, "outcomes": outcomes})


def _forget_old_launches(runs: Sequence[RecordedRun]) -> None:
    counts: Counter[str] = Counter()
    for run in reversed(runs):
        if run.launch is not None:
            commit = run.launch.data["commit_info"]["id"]
            counts[commit] += 1
            if counts[commit] > LAUNCHES_OF_A_COMMIT:
                run.launch = None
