"""The files that answer questions: records of one machine, the ledger of exact counters, published figures."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from perf_tests.predict.ledger import LedgerKey, read_ledger
from perf_tests.records.columns import Cell, cells_of, machine_line, pairs_along, pass_cells
from perf_tests.records.published import published_rows
from perf_tests.records.store import StoredRecord, each_readable
from perf_tests.report.cs336_parts.played import Played

ROOT = Path(__file__).parents[3]
LEDGER = "perf_tests/predict/exact_counters"
GIT_IGNORES = re.compile(r"-(CPython|PyPy)-")
"""Folders of records that are not committed."""
SIZES = ("small", "medium", "large", "xl", "2.7B")
CONTEXTS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class Found:
    """A case, and the file of the record that has it."""

    cell: Cell
    file: str


Pair = tuple[Found, Found]


@dataclass(frozen=True)
class Shape:
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int


@dataclass(frozen=True)
class Sources:
    """The files below `root`; `left_out` has a sentence for each file that is not a record."""

    root: Path
    played: Played = field(default_factory=Played)
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def records(self) -> list[StoredRecord]:
        """Of the named machine with the newest record, newest first."""
        paths = sorted((self.root / ".benchmarks").glob("*/*.json"))
        named = (path for path in paths if not GIT_IGNORES.search(path.parent.name))
        found = list(each_readable(named, self.left_out))
        found.sort(key=lambda record: (str(record.data.get("datetime")), record.name), reverse=True)
        return [record for record in found if _folder(record) == _folder(found[0])]

    @property
    def machines(self) -> list[str]:
        """Each record with its machine."""
        return [f"{_file(record)}: {machine_line(record.data)}" for record in self.records]

    def timed(self, fits: Callable[[Cell], object] = bool) -> list[Found]:
        """Of each case its newest timing, or why it has none."""
        return list(_newest_of_each(self._cells(cells_of), fits))

    def passed(self, name: str, fits: Callable[[Cell], object] = bool) -> list[Found]:
        """Of each case the newest result of that pass."""
        return [one for one in self.passed_or_lost(name, fits) if not one.cell.outcome]

    def passed_or_lost(self, name: str, fits: Callable[[Cell], object] = bool) -> list[Found]:
        """The same with cases of which the pass has an outcome instead, such as too little memory."""
        return list(_newest_of_each(self._cells(lambda data: pass_cells(data, name)), fits))

    def pairs(self, axis: str, base: str, other: str, fits: Callable[[Cell], object] = bool) -> list[Pair]:
        """Timed cases that differ along one axis alone, each pair from one record, the newest that has it."""
        pairs: dict[str, Pair] = {}
        for record in self.records:
            cells = [cell for cell in cells_of(record.data) if cell.is_timed and fits(cell)]
            for one, two in pairs_along(cells, axis, base, other):
                pairs.setdefault(one.id, (Found(one, _file(record)), Found(two, _file(record))))
        return list(pairs.values())

    def _cells(self, read: Callable[..., Iterable[Cell]]) -> Iterator[Found]:
        return (Found(cell, _file(record)) for record in self.records for cell in read(record.data))

    @cached_property
    def ledger_name(self) -> str:
        versions = sorted(
            (self.root / LEDGER).glob("torch-*.csv"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)]
        )
        return f"{LEDGER}/{versions[-1].name}"

    @cached_property
    def _ledger(self) -> dict[LedgerKey, dict[str, int | None]]:
        return read_ledger(self.root / self.ledger_name)

    def counted(self, phase: str, case_id: str, counter: str) -> int:
        """One counter of the ledger. Raises KeyError for a case that it lacks."""
        value = self._ledger[phase, case_id][counter]
        if value is None:
            raise KeyError(f"{self.ledger_name} has no {counter} of {phase} {case_id}")
        return value

    def published(self, name: str) -> Sequence[Mapping[str, str]]:
        return _rows(name, self.root / "published")

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The course's sizes, smallest first, from a published table."""
        found: dict[str, Shape] = {}
        for row in self.published("e2e_timing.csv"):
            names = ("d_model", "d_ff", "n_layers", "n_heads")
            if row["size"] in SIZES and row["edition"] == "2025" and all(row[name].isdigit() for name in names):
                found.setdefault(row["size"], Shape(*(int(row[name]) for name in names)))
        return {size: found[size] for size in SIZES if size in found}


_rows = cache(published_rows)


def _newest_of_each(found: Iterable[Found], fits: Callable[[Cell], object]) -> Iterable[Found]:
    """A case is its test and its identity without nulls, which an older record lacks; a timing goes before none."""
    newest: dict[str, Found] = {}
    for one in found:
        if fits(one.cell):
            known = {name: value for name, value in one.cell.identity.items() if value is not None}
            key = f"{one.cell.id} {known}"
            if key not in newest or (newest[key].cell.outcome and not one.cell.outcome):
                newest[key] = one
    return newest.values()


def _folder(record: StoredRecord) -> str:
    return record.name.rpartition("/")[0]


def _file(record: StoredRecord) -> str:
    return f".benchmarks/{record.name}.json"
