"""Where memory goes, as tables: peaks beside predictions, their parts, what is saved, the largest blocks."""

from collections.abc import Callable, Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, shown
from perf_tests.views.tables.cells import Cell, distinct, finite
from perf_tests.views.tables.digits import MIB, mebibytes_in, significant
from perf_tests.views.tables.pass_cells import LABELS, inside, labels_of, last_phases, lost_lines, lost_row, rows_in
from perf_tests.views.tables.timing import Table

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
        else (*labels_of(cell), *_peak(cell.info), *_marked(cell.info, marks))
        for cell in cells
    )  # fmt: skip
    return _table("memory_pass", "Peak of allocated memory beside the predicted one", header, len(LABELS), rows, cells)


def _peak(values: Json) -> tuple[str, ...]:
    """Measured, predicted, their ratio so that a difference of a hundred-thousandth shows, and reserved."""
    names = ("peak_allocated_bytes", "predicted_peak_bytes", "peak_reserved_bytes")
    measured, predicted = (finite(values.get(name)) for name in names[:2])
    allocated, expected, reserved = (mebibytes_in(values, name) for name in names)
    return allocated, expected, shown(measured / predicted if measured and predicted else None, ".5f"), reserved


def _marked(values: Json, names: Sequence[str]) -> list[str]:
    held = {str(mark.get("name")): mark.get("allocated_bytes") for mark in rows_in(values, "marks")}
    return [mebibytes_in(held, name) for name in names]


def memory_part_table(cells: Sequence[Cell]) -> Table | None:
    """The peak within each part of a round."""
    rows = tuple(
        (*labels_of(cell), str(part.get("phase")), *_peak(part))
        for cell in cells
        for part in rows_in(cell.info, "parts")
    )
    header = (*LABELS, "Part", "peak (MiB)", "predicted (MiB)", "measured / predicted", "reserved (MiB)")
    return _table("memory_parts", "Peak memory by part of a round", header, len(LABELS) + 1, rows, cells)


def memory_category_table(cells: Sequence[Cell]) -> Table | None:
    """What the peak is made of."""
    names = distinct(name for cell in cells for name in inside(cell.info, "peak_by_category_bytes"))
    rows = tuple(
        (*labels_of(cell), *(mebibytes_in(held, name) for name in names))
        for cell in cells
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
        (part, str(len(amounts)), significant(sum(amounts) / len(amounts) / MIB), significant(sum(amounts) / MIB),
         f"{100 * sum(amounts) / whole:.1f}")
        for part, amounts in parts.items()
    ]  # fmt: skip


def largest_table(cells: Sequence[Cell]) -> Table | None:
    """The largest blocks of memory, with the line that made them."""
    rows = tuple(
        (*labels_of(cell), str(block.get("line") or DASH), str(block.get("category") or DASH),
         mebibytes_in(block, "bytes"))
        for cell in last_phases(cells)
        for block in list(rows_in(cell.info, "largest_allocations"))[:LARGEST]
    )  # fmt: skip
    header = (*LABELS, "Line", "Category", "block (MiB)")
    return _table("largest_blocks", "Largest blocks of memory", header, len(LABELS) + 2, rows, cells)


def _table(
    name: str,
    title: str,
    header: tuple[str, ...],
    labels: int,
    rows: tuple[tuple[str, ...], ...],
    cells: Sequence[Cell],
) -> Table | None:
    """With the reasons why peaks have no prediction, each once, and why cases have no peak."""
    said = [cell.info.get("prediction_reason") for cell in cells]
    reasons = distinct(f"no prediction: {reason}" for reason in said if isinstance(reason, str))
    return Table(name, title, header, labels, rows, (MEMORY_NOTE, *reasons, *lost_lines(cells))).or_none()


MEMORY_TABLES: tuple[Callable[[Sequence[Cell]], Table | None], ...] = (
    memory_pass_table,
    memory_part_table,
    memory_category_table,
    saved_table,
    largest_table,
)
