"""What the course's questions are answered from: records of one machine, exact counters, and published tables."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from model.sizes import SIZES as KNOWN_SIZES
from model.sizes import ModelConfig
from perf_tests.records.columns import Cell, cells_of, collectives_of, machine_line, pairs_along, pass_cells
from perf_tests.records.format import GIB, MIB, finite, significant
from perf_tests.records.ledger import LedgerKey, read_ledger
from perf_tests.records.published import published_rows
from perf_tests.records.record import Json
from perf_tests.records.store import StoredRecord, each_readable, record_files
from perf_tests.user_code.named import is_installed

ROOT = Path(__file__).parents[2]
LEDGER = "perf_tests/predict/exact_counters"
GIT_IGNORES = re.compile(r"-(CPython|PyPy)-")
"""Folders of records that are not committed."""
SIZES = ("small", "medium", "large", "xl", "2.7B")
E2E, MEMORY = "e2e_timing.csv", "memory.csv"
ATTENTION_BATCH = 8
UNITS = {"ms": 1e3, "us": 1e6, "MiB": 1 / MIB, "GiB": 1 / GIB, "TFLOP": 1e-12}
"""How many of each unit a second, a byte or a FLOP is."""
NAME_CHARACTERS = 60
"""Shown of a kernel's name, which may be a page of template arguments."""


@dataclass(frozen=True)
class Figure:
    """A text in a row, which is named by its labels, and a column."""

    row: tuple[str, ...]
    column: str
    text: str
    file: str = ""
    """The file that it comes from; several files with commas between them."""


@dataclass(frozen=True)
class PeakBeside:
    """A published peak, and what is predicted under the conditions of its code, in the source's own unit."""

    source: str
    size: str
    context: int
    precision: str
    mode: str
    published: str
    unit: str
    predicted: float


@dataclass(frozen=True)
class Counted:
    """Figures that take no measurement: steps counted on fake tensors, and exercises computed at once."""

    figures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)
    peaks: Sequence[PeakBeside] = ()


@dataclass(frozen=True)
class Found:
    """A case, and the file of the record that has it."""

    cell: Cell
    file: str


Fits = Callable[[Cell], object]


@dataclass(frozen=True)
class Sources:
    """The files below `root`; `left_out` has a sentence for each file that is not a record."""

    root: Path
    counted: Counted = field(default_factory=Counted)
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def records(self) -> list[StoredRecord]:
        """Records of the named machine that has the newest one, newest first."""
        paths = record_files((Path() if is_installed(self.root) else self.root) / ".benchmarks")
        named = (path for path in paths if not GIT_IGNORES.search(path.parent.name))
        found = list(each_readable(named, self.left_out))
        found.sort(key=lambda record: (str(record.data.get("datetime")), record.name), reverse=True)
        return [record for record in found if record.name.rpartition("/")[0] == found[0].name.rpartition("/")[0]]

    @property
    def machines(self) -> list[str]:
        """Lines that name each record and its machine."""
        return [f"{_file(record)}: {machine_line(record.data)}" for record in self.records]

    def timed(self, fits: Fits = bool) -> list[Found]:
        """Return the newest timing of each case and collective, or why it has none."""
        return self._newest(lambda data: [*cells_of(data), *collectives_of(data)], fits)

    def passed(self, name: str, fits: Fits = bool, or_lost: bool = False) -> list[Found]:
        """Return the newest result of that pass for each case, or the outcome that it has instead."""
        found = self._newest(lambda data: pass_cells(data, name), fits)
        return [one for one in found if or_lost or not one.cell.outcome]

    def _newest(self, read: Callable[[Json], Iterable[Cell]], fits: Fits) -> list[Found]:
        """Find each case once: its test, and its identity without nulls, which an older record lacks.

        A newer record goes before an older one, and any result before an outcome without one.
        """
        newest: dict[str, Found] = {}
        for record in self.records:
            for cell in filter(fits, read(record.data)):
                known = {name: value for name, value in cell.identity.items() if value is not None}
                key = f"{cell.id} {known}"
                if key not in newest or (newest[key].cell.outcome and not cell.outcome):
                    newest[key] = Found(cell, _file(record))
        return list(newest.values())

    def pairs(self, axis: str, base: str, other: str, fits: Fits = bool) -> list[tuple[Found, Found]]:
        """Pair timed cases that differ along one axis alone, each pair from one record, the newest that has it.

        Never from two: two launches of the same code differ by more than their rounds.
        """
        found: dict[str, tuple[Found, Found]] = {}
        for record in self.records:
            cells = [cell for cell in cells_of(record.data) if cell.is_timed and fits(cell)]
            for one, two in pairs_along(cells, axis, base, other):
                found.setdefault(one.id, (Found(one, _file(record)), Found(two, _file(record))))
        return list(found.values())

    @cached_property
    def ledger_name(self) -> str:
        """Path of the ledger of the newest torch version, below `root`."""
        names = [path.name for path in (self.root / LEDGER).glob("torch-*.csv")]
        return f"{LEDGER}/{sorted(names, key=lambda name: [int(one) for one in re.findall(r'[0-9]+', name)])[-1]}"

    @cached_property
    def _ledger(self) -> dict[LedgerKey, dict[str, int | None]]:
        return read_ledger(self.root / self.ledger_name)

    def counter(self, phase: str, case_id: str, name: str) -> int:
        """Read one counter of the ledger. Raises KeyError for a case that it lacks."""
        value = self._ledger[phase, case_id][name]
        if value is None:
            raise KeyError(f"{self.ledger_name} has no {name} of {phase} {case_id}")
        return value

    def published(self, name: str) -> list[dict[str, str]]:
        """Return the rows of `published/NAME`."""
        return _rows(name, self.root / "published")

    @property
    def shapes(self) -> dict[str, ModelConfig]:
        """Return the course's sizes of the 2025 edition, smallest first."""
        return {size: KNOWN_SIZES[size] for size in SIZES}


_rows = cache(published_rows)


def _file(record: StoredRecord) -> str:
    return f".benchmarks/{record.path.parent.name}/{record.path.name}"


def kernel_name(row: Mapping[str, object]) -> str:
    return str(row.get("kernel") or row.get("name"))[:NAME_CHARACTERS]


def percent(value: object, places: int = 1) -> str:
    """Format a share as a percentage; nothing for what is no number."""
    known = finite(value)
    return "" if known is None else f"{known:.{places}%}"


def in_unit(value: object, column: str = "", digits: int = 4, unit: str = "") -> str:
    """Format a value in `unit`, or in the one that ends its header in parentheses; nothing for what is no number."""
    known, named = finite(value), re.search(r"\((\w+)\)$", column)
    unit = unit or (named[1] if named else "")
    return "" if known is None else significant(known * UNITS.get(unit, 1.0), digits)
