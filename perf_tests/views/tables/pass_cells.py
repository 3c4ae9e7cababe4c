"""Extra passes over the cases as cells: `info` holds what a pass found; a case that it lost has its outcome."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perf_tests.records.record import OUTCOMES, Json, identity_of
from perf_tests.views.screens.lines import DASH, case_name
from perf_tests.views.tables.cells import SHORT_OUTCOMES, Cell, phase_order

LABELS = ("Size", "Context", "Phase", "Precision", "Implementation")


def pass_cells(record: Json, name: str) -> list[Cell]:
    """The rows of one pass in the order of the record, then the cases without one."""
    found = [
        Cell(row["id"], row["identity"], row["values"])
        for row in rows_in(record, "passes")
        if row.get("pass") == name
        and isinstance(row.get("id"), str)
        and all(isinstance(row.get(part), dict) for part in ("identity", "values"))
    ]
    return found + [
        Cell(row["id"], identity_of(row), {}, outcome=row["outcome"], reason=row["reason"])
        for row in rows_in(record, "outcomes")
        if row.get("pass") == name
    ]


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
