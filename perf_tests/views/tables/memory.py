"""Where memory goes, as tables: peaks beside predictions, their parts, what is saved, the largest blocks."""

from collections.abc import Callable, Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.cells import Cell, distinct, finite
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.pass_cells import LABELS, inside, labels_of, last_phases, lost_lines, lost_row, rows_in
from perf_tests.views.tables.timing import MIB, Table

MEMORY_NOTE = "each case in a process of its own, apart from the timings; 1 MiB = 1,048,576 bytes"
LARGEST = 5
"""Blocks that a table names for each case."""


def memory_pass_table(cells: Sequence[Cell]) -> Table | None:
    """The peak of each case beside the predicted one, and what was held between the parts of a round."""
    marks = distinct(str(mark.get("name")) for cell in cells for mark in rows_in(cell.info, "marks"))
    header = (*LABELS, "peak (MiB)", "predicted (MiB)", "measured / predicted", "reserved (MiB)",
              *(f"{name} (MiB)" for name in marks))  # fmt: skip
    rows = tuple(
        lost_row(cell, len(header))
        if cell.outcome
        else (*labels_of(cell), *_peak(cell.info), mebibytes(cell.info.get("peak_reserved_bytes")),
              *_marked(cell.info, marks))
        for cell in cells
    )  # fmt: skip
    return _table("memory_pass", "Peak of allocated memory beside the predicted one", header, len(LABELS), rows, cells)


def _peak(values: Json) -> tuple[str, str, str]:
    measured, predicted = (values.get(name) for name in ("peak_allocated_bytes", "predicted_peak_bytes"))
    return mebibytes(measured), mebibytes(predicted), over(measured, predicted)


def over(measured: object, predicted: object) -> str:
    """A ratio that shows a difference of a hundred-thousandth; a dash where one of the two is not known."""
    found, expected = finite(measured), finite(predicted)
    return DASH if found is None or not expected else f"{found / expected:.5f}"


def _marked(values: Json, names: Sequence[str]) -> list[str]:
    held = {str(mark.get("name")): mark.get("allocated_bytes") for mark in rows_in(values, "marks")}
    return [mebibytes(held.get(name)) for name in names]


def memory_part_table(cells: Sequence[Cell]) -> Table | None:
    """The peak within each part of a round."""
    rows = tuple(
        (*labels_of(cell), str(part.get("phase")), *_peak(part), mebibytes(part.get("peak_reserved_bytes")))
        for cell in _known(cells)
        for part in rows_in(cell.info, "parts")
    )
    header = (*LABELS, "Part", "peak (MiB)", "predicted (MiB)", "measured / predicted", "reserved (MiB)")
    return _table("memory_parts", "Peak memory by part of a round", header, len(LABELS) + 1, rows, cells)


def memory_category_table(cells: Sequence[Cell]) -> Table | None:
    """What the peak is made of."""
    names = distinct(name for cell in cells for name in inside(cell.info, "peak_by_category_bytes"))
    rows = tuple(
        (*labels_of(cell), *(mebibytes(held.get(name)) for name in names))
        for cell in _known(cells)
        if (held := inside(cell.info, "peak_by_category_bytes"))
    )
    header = (*LABELS, *(f"{name} (MiB)" for name in names))
    return _table("memory_categories", "What is held at the peak", header, len(LABELS), rows, cells)


def saved_table(cells: Sequence[Cell]) -> Table | None:
    """What the forward pass saves for the backward pass, by part of the model; blocks of one kind together."""
    rows = tuple((*labels_of(cell), *row) for cell in last_phases(cells) for row in _saved_rows(cell.info))
    header = (*LABELS, "Part", "places", "of one (MiB)", "together (MiB)", "of all saved (%)")
    return _table("saved", "Saved for the backward pass by part", header, len(LABELS) + 1, rows, cells)


def saved_by_part(values: Json) -> dict[str, list[float]]:
    """Bytes of each place that a part has in the model, the part that saves most first."""
    found: dict[str, list[float]] = {}
    for row in rows_in(values, "saved_bytes_by_part"):
        amount = finite(row.get("saved_bytes"))
        if amount is not None:
            found.setdefault(str(row.get("part")), []).append(amount)
    return dict(sorted(found.items(), key=lambda item: (-sum(item[1]), item[0])))


def _saved_rows(values: Json) -> list[tuple[str, ...]]:
    parts = saved_by_part(values)
    whole = sum(map(sum, parts.values())) or 1.0
    return [
        (part, str(len(amounts)), mebibytes(sum(amounts) / len(amounts)), mebibytes(sum(amounts)),
         f"{100 * sum(amounts) / whole:.1f}")
        for part, amounts in parts.items()
    ]  # fmt: skip


def largest_table(cells: Sequence[Cell]) -> Table | None:
    """The largest blocks of memory, with the line that made them."""
    rows = tuple(
        (*labels_of(cell), str(block.get("line") or DASH), str(block.get("category") or DASH),
         mebibytes(block.get("bytes")))
        for cell in last_phases(cells)
        for block in list(rows_in(cell.info, "largest_allocations"))[:LARGEST]
    )  # fmt: skip
    header = (*LABELS, "Line", "Category", "block (MiB)")
    return _table("largest_blocks", "Largest blocks of memory", header, len(LABELS) + 2, rows, cells)


def mebibytes(amount: object) -> str:
    value = finite(amount)
    return DASH if value is None else significant(value / MIB)


def _known(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if not cell.outcome]


def _table(
    name: str,
    title: str,
    header: tuple[str, ...],
    labels: int,
    rows: tuple[tuple[str, ...], ...],
    cells: Sequence[Cell],
) -> Table | None:
    return Table(name, title, header, labels, rows, (MEMORY_NOTE, *_reasons(cells))) if rows else None


def _reasons(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Why peaks have no prediction, each sentence once, and why cases have no peak."""
    said = [cell.info.get("prediction_reason") for cell in cells]
    return (*distinct(f"no prediction: {reason}" for reason in said if isinstance(reason, str)), *lost_lines(cells))


MEMORY_TABLES: tuple[Callable[[Sequence[Cell]], Table | None], ...] = (
    memory_pass_table,
    memory_part_table,
    memory_category_table,
    saved_table,
    largest_table,
)
