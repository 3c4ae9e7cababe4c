"""Questions, and the files that answer them: committed records, the ledger of exact counters, published figures."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from perf_tests.records.ledger import LedgerKey, read_ledger
from perf_tests.records.store import StoredRecord, each_readable
from perf_tests.views.tables.cells import Cell, cells_of, pass_cells
from perf_tests.views.tables.conditions import machine_line

ROOT = Path(__file__).parents[3]
LEDGER = "perf_tests/counting/counters"
GIT_IGNORES = re.compile(r"-(CPython|PyPy)-")
"""Folders of records that are not committed."""
SIZES = ("small", "medium", "large", "xl", "2.7B")


@dataclass(frozen=True)
class Answer:
    text: str
    source: str


@dataclass(frozen=True)
class Source:
    """One record as an answer needs it; no cells without a record."""

    name: str
    machine: str
    cells: list[Cell]

    @property
    def models(self) -> list[Cell]:
        return [cell for cell in self.cells if not cell.is_attention]

    def says(self, text: str, known: object = True) -> Answer | None:
        """None where nothing is known."""
        return Answer(text, f"{self.name} ({self.machine})") if known else None


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
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def records(self) -> list[StoredRecord]:
        """Of named machines, oldest first."""
        paths = sorted((self.root / ".benchmarks").glob("*/*.json"))
        named = (path for path in paths if not GIT_IGNORES.search(path.parent.name))
        found = each_readable(named, self.left_out)
        return sorted(found, key=lambda record: (str(record.data.get("datetime")), record.name))

    def timed(self, fits: Callable[[list[Cell]], object] = bool) -> Source:
        """The newest record whose timed cells fit."""
        return self._newest(lambda record: [cell for cell in cells_of(record.data) if cell.is_timed], fits)

    def passed(self, name: str) -> Source:
        """The newest record with rows of that pass."""
        return self._newest(lambda record: [cell for cell in pass_cells(record.data, name) if not cell.outcome], bool)

    def _newest(self, read: Callable[[StoredRecord], list[Cell]], fits: Callable[[list[Cell]], object]) -> Source:
        for record in reversed(self.records):
            cells = read(record)
            if fits(cells):
                return Source(f".benchmarks/{record.name}.json", machine_line(record.data), cells)
        return Source("", "", [])

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

    def published(self, name: str) -> list[dict[str, str]]:
        with (self.root / "published" / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The course's sizes, smallest first, from a published table."""
        found: dict[str, Shape] = {}
        for row in self.published("e2e_timing.csv"):
            names = ("d_model", "d_ff", "n_layers", "n_heads")
            if row["size"] in SIZES and row["edition"] == "2025" and all(row[name].isdigit() for name in names):
                found.setdefault(row["size"], Shape(*(int(row[name]) for name in names)))
        return {size: found[size] for size in SIZES if size in found}


@dataclass(frozen=True)
class Question:
    """With the command that answers it; `answer` returns None where no file has the figures."""

    asked: str
    command: str
    answer: Callable[[Sources], Answer | None]


def question(asked: str, command: str) -> Callable[[Callable[[Sources], Answer | None]], Question]:
    """Decorates the function that answers it."""
    return partial(Question, asked, command)
