"""Extra passes over the cases as cells: what a pass found stands in `info`, and a case that it lost has its outcome."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perf_tests.records.record import OUTCOMES, Json, identity_of
from perf_tests.views.screens.lines import DASH, case_name
from perf_tests.views.tables.cells import SHORT_OUTCOMES, Cell, phase_order

LABELS = ("Size", "Context", "Phase", "Precision", "Implementation")
"""The columns that say what case a row of a pass is about."""


def pass_cells(record: Json, name: str) -> list[Cell]:
    """The rows of one pass in the order of the record, then the cases that it has no row for."""
    rows, outcomes = (record.get(key) for key in ("passes", "outcomes"))
    found = [
        Cell(row["id"], row["identity"], row["values"])
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
        and row.get("pass") == name
        and isinstance(row.get("id"), str)
        and all(isinstance(row.get(part), dict) for part in ("identity", "values"))
    ]
    return found + [
        Cell(row["id"], identity_of(row), {}, outcome=row["outcome"], reason=row["reason"])
        for row in (outcomes if isinstance(outcomes, list) else [])
        if row.get("pass") == name
    ]


def labels_of(cell: Cell) -> tuple[str, ...]:
    """Size and context, or width and length, and what else a case is."""
    if cell.is_attention:
        place = f"d {cell.label('head_dim')}", cell.label("sequence_length")
    else:
        place = cell.label("size"), cell.label("context_length")
    return (*place, cell.phase, cell.label("precision"), cell.implementation)


def name_of(cell: Cell) -> str:
    """The labels as a name on an axis or in a list."""
    return " ".join(label for label in labels_of(cell) if label)


def without_phase(cell: Cell) -> str:
    """The name of what several phases were run of."""
    size, context, _, *others = labels_of(cell)
    return " ".join(label for label in (size, context, *others) if label)


def last_phases(cells: Sequence[Cell]) -> list[Cell]:
    """Of the phases of each configuration the last that has a row: a full step contains what the others hold."""
    known = (cell for cell in sorted(cells, key=phase_order) if not cell.outcome)
    last = {without_phase(cell): cell for cell in known}
    return [cell for cell in cells if last.get(without_phase(cell)) is cell]


def lost_row(cell: Cell, columns: int) -> tuple[str, ...]:
    """The row of a case that the pass lost: the word for why, and dashes in the other columns."""
    said = (*labels_of(cell), SHORT_OUTCOMES[cell.outcome])
    return (*said, *[DASH] * (columns - len(said)))


def lost_lines(cells: Iterable[Cell]) -> tuple[str, ...]:
    """A sentence for each case without a timing, or without a row of its pass."""
    return tuple(f"{case_name(cell.id)}: {OUTCOMES[cell.outcome]}: {cell.reason}" for cell in cells if cell.outcome)


def rows_in(values: Json, *names: str) -> Iterator[Json]:
    """The rows of a list that may be nested, or missing, or damaged."""
    found = inside(values, *names[:-1]).get(names[-1])
    return (row for row in (found if isinstance(found, list) else ()) if isinstance(row, dict))


def inside(values: Json, *names: str) -> Json:
    """What stands in nested objects; empty where one of them is missing or damaged."""
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
