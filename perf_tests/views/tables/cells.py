"""A record as cells: every case with its labels, and its rounds or the reason for having none.

In a cell of an extra pass `info` holds what the pass found; a case that it lost has its outcome.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perf_tests.identity import OF_A_PHASE, is_attention, is_collective
from perf_tests.phases import label_of, place_of
from perf_tests.records.record import OUTCOMES, Json, identity_of, timing_outcomes
from perf_tests.records.times import Times
from perf_tests.views.screens.lines import DASH, case_name

PASSES = ("kernels", "memory", "warmup")
"""The extra passes, in the order of a write-up."""

LABELS = ("Size", "Context", "Phase", "Precision", "Implementation")
SHORT_OUTCOMES = {**OUTCOMES, "out_of_memory": "OOM"}
"""For a cell between figures."""

NEVER_TIMED = Times()


@dataclass(frozen=True)
class Cell:
    """One case of one run; `rounds` are empty for a case without a valid timing."""

    id: str
    identity: Json
    info: Json
    rounds: Times = NEVER_TIMED
    outcome: str = ""
    reason: str = ""

    @property
    def is_attention(self) -> bool:
        return is_attention(self.identity)

    @property
    def is_timed(self) -> bool:
        return bool(self.rounds)

    @property
    def median_seconds(self) -> float:
        return self.rounds.median

    @property
    def mean_seconds(self) -> float:
        return self.rounds.mean

    @property
    def std_seconds(self) -> float | None:
        return self.rounds.deviation

    @property
    def percentile_seconds(self) -> dict[int, float]:
        return self.rounds.percentiles

    def label(self, name: str) -> str:
        """An identity field as text; empty where it is null or missing."""
        value = self.identity.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        """A finite number of the identity or the row's other fields; else None."""
        return finite(self.identity.get(name, self.info.get(name)))

    @property
    def flags(self) -> list[str]:
        found = self.info.get("flags")
        return list(map(str, found)) if isinstance(found, list) else []

    @cached_property
    def phase(self) -> str:
        """`forward` for attention's forward pass too."""
        return label_of(self.label("phase"))

    @cached_property
    def implementation(self) -> str:
        """How the same function is computed: attention, and the other axes where they are not the default."""
        parts = [self.label("attention")]
        for name, default, words in (
            ("execution", "eager", "{} model"), ("checkpoint", "none", "checkpoint {}"), ("model", "ours", "{}"),
            ("cache", "", "{} cache"),
        ):  # fmt: skip
            if self.label(name) not in ("", default):
                parts.append(words.format(self.label(name)))
        return ", ".join(part for part in (*parts, *self._sharing) if part)

    @property
    def _sharing(self) -> list[str]:
        """How ranks share it, in words; none on one device."""
        if not self.label("parallel"):
            return []
        bucket_bytes = self.number("bucket_bytes")
        return [
            f"{self.label('parallel')} on {self.label('world')} ranks",
            "a batch each" if self.label("scaling") == "weak" else "",
            "" if bucket_bytes is None else f"buckets of {bucket_bytes / 2**20:g} MiB",
            "not resharded" if self.identity.get("reshard") is False else "",
        ]


def finite(value: object) -> float | None:
    """The value where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def cells_of(record: Json) -> list[Cell]:
    """Every case of the record that computes, by family, size, length, implementation, precision and phase."""
    return sorted((cell for cell in _cells(record) if not is_collective(cell.identity)), key=_order)


def collectives_of(record: Json) -> list[Cell]:
    """Every collective alone, in the order of the record: it computes nothing, so most tables leave it out."""
    return [cell for cell in _cells(record) if is_collective(cell.identity)]


def _cells(record: Json) -> list[Cell]:
    timed = [
        Cell(row["fullname"], identity_of(row), row["extra_info"], Times.of(row["stats"]["data"]))
        for row in record["benchmarks"]
    ]
    return [*timed, *map(_lost, timing_outcomes(record))]


def _lost(row: Json) -> Cell:
    return Cell(row["id"], identity_of(row), {}, outcome=row["outcome"], reason=row["reason"])


def _order(cell: Cell) -> tuple[Any, ...]:
    if cell.is_attention:
        place: tuple[Any, ...] = (order(cell.identity.get("head_dim")), order(cell.identity.get("sequence_length")))
    else:
        place = (size_order(cell), order(cell.identity.get("context_length")))
    names = (
        (cell.implementation != "naive", cell.implementation),
        (cell.label("precision") != "fp32", cell.label("precision")),
    )
    return cell.is_attention, place, *names, phase_order(cell), cell.id


def phase_order(cell: Cell) -> tuple[tuple[bool, int], str]:
    """Phases in the order of a training step, then all others."""
    return place_of(cell.phase), cell.phase


def order(value: object) -> tuple[int, float, str]:
    """A sort key of any value: numbers before words."""
    number = finite(value)
    return (0, number, "") if number is not None else (1, 0.0, str(value))


def size_order(cell: Cell) -> tuple[float, str]:
    """Smallest model first, by the parameters of its blocks; ours have four d x d and three d x d_ff matrices each."""
    shape = [finite(cell.identity.get(name)) for name in ("d_model", "d_ff", "num_layers")]
    if any(value is None for value in shape):
        return math.inf, cell.label("size")
    d_model, d_ff, num_layers = (value or 0.0 for value in shape)
    return num_layers * (4 * d_model * d_model + 3 * d_model * d_ff), cell.label("size")


def distinct(values: Iterable[str]) -> list[str]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))


def pairs_along(cells: Iterable[Cell], axis: str, base: str, other: str = "") -> list[tuple[Cell, Cell]]:
    """Each (cell at `base`, cell at `other`, or at any other) that differ only along `axis`."""
    follow = (axis, *OF_A_PHASE) if axis == "phase" else (axis,)
    groups: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        same = tuple(f"{name}={value}" for name, value in cell.identity.items() if name not in follow)
        groups.setdefault(same, {})[cell.phase if axis == "phase" else cell.label(axis)] = cell
    found = (of for of in groups.values() if base in of)
    return [(of[base], of[name]) for of in found for name in of if name != base and other in ("", name)]


def pass_cells(record: Json, name: str) -> list[Cell]:
    """The rows of one pass in the order of the record, then the cases without one."""
    found = [
        Cell(row["id"], row["identity"], row["values"])
        for row in rows_in(record, "passes")
        if row.get("pass") == name
        and isinstance(row.get("id"), str)
        and all(isinstance(row.get(part), dict) for part in ("identity", "values"))
    ]
    return found + [_lost(row) for row in rows_in(record, "outcomes") if row.get("pass") == name]


def labels_of(cell: Cell) -> tuple[str, ...]:
    """The case's text under each of `LABELS`; for attention alone, width and length."""
    if cell.is_attention:
        place = f"d {cell.label('head_dim')}", cell.label("sequence_length")
    else:
        place = cell.label("size"), cell.label("context_length")
    return (*place, cell.phase, cell.label("precision"), cell.implementation)


def name_of(cell: Cell) -> str:
    """The labels as a name on an axis or in a list."""
    return " ".join(label for label in labels_of(cell) if label)


def without_phase(cell: Cell) -> str:
    """The name of a configuration, whatever its phase."""
    size, context, _, *others = labels_of(cell)
    return " ".join(label for label in (size, context, *others) if label)


def last_phases(cells: Sequence[Cell]) -> list[Cell]:
    """The last phase of each configuration that has a row: a full step contains what the others hold."""
    known = (cell for cell in sorted(cells, key=phase_order) if not cell.outcome)
    last = {without_phase(cell): cell for cell in known}
    return [cell for cell in cells if last.get(without_phase(cell)) is cell]


def lost_row(cell: Cell, columns: int) -> tuple[str, ...]:
    """The row of a case that the pass lost: its outcome, and dashes in the other columns."""
    said = (*labels_of(cell), SHORT_OUTCOMES[cell.outcome])
    return (*said, *[DASH] * (columns - len(said)))


def lost_lines(cells: Iterable[Cell]) -> tuple[str, ...]:
    """A sentence for each case without a timing, or without a row of its pass."""
    return tuple(f"{case_name(cell.id)}: {OUTCOMES[cell.outcome]}: {cell.reason}" for cell in cells if cell.outcome)


def rows_in(values: Json, *names: str) -> Iterator[Json]:
    """The rows of a list that may be nested, missing or damaged."""
    found = inside(values, *names[:-1]).get(names[-1])
    return (row for row in (found if isinstance(found, list) else ()) if isinstance(row, dict))


def inside(values: Json, *names: str) -> Json:
    """The innermost of nested objects; empty where one is missing or damaged."""
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
