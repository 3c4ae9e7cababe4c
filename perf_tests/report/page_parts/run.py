"""Recorded runs as a page shows them: the chosen ones in full, of all others what their history needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_tests.history.commits import Launch, Machine, moment
from perf_tests.records.columns import PASSES, Cell, cells_of, collectives_of, machine_line, pass_cells, phase_order
from perf_tests.records.format import distinct
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord
from perf_tests.report.page_parts.figure import Figure, Series, bars

Numbers = Mapping[Path, int]
"""Of runs by date, from 1 on."""

MOST_IN_FULL = 10
"""Of the named runs, the newest: each is a screenful of tables for every case."""


@dataclass(frozen=True)
class RecordedRun:
    """One record, without what no page shows."""

    number: int
    name: str
    record: Json
    """Without `benchmarks`, `outcomes` and `passes`."""
    cells: list[Cell]
    collectives: int
    """Rows of collectives alone."""
    passes: dict[str, list[Cell]]

    @property
    def conditions(self) -> str:
        return machine_line(self.record)

    @property
    def title(self) -> str:
        return f"run {self.number}, {self.name}"

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


def run_of(stored: StoredRecord, number: int) -> RecordedRun:
    data = stored.data
    facts = {name: value for name, value in data.items() if name not in ("benchmarks", "outcomes", "passes")}
    passes = {name: found for name in PASSES if (found := pass_cells(data, name))}
    return RecordedRun(number, stored.name, facts, cells_of(data), len(collectives_of(data)), passes)


def numbered(machines: Iterable[Machine]) -> Numbers:
    launches = sorted((launch for machine in machines for launch in machine.launches), key=_place)
    return {launch.path: number for number, launch in enumerate(launches, 1)}


def in_full(machines: Sequence[Machine], are_named: bool) -> list[Launch]:
    """The newest launch of each machine and its newest with cases, or the newest of those named; oldest first."""
    chosen = [launch for machine in machines for launch in _newest(machine)]
    if are_named:
        chosen = [launch for machine in machines for launch in machine.launches]
    return sorted(chosen, key=_place)[-MOST_IN_FULL:] if are_named else sorted(chosen, key=_place)


def _newest(machine: Machine) -> list[Launch]:
    newest = max(machine.launches, key=_place)
    with_cases = [launch for launch in machine.launches if launch.has_cases]
    return [newest] if newest in with_cases or not with_cases else [max(with_cases, key=_place), newest]


def _place(launch: Launch) -> tuple[float, str]:
    return moment(launch.written), launch.name
