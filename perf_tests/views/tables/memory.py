"""Where memory goes, as tables: peaks beside predictions, their parts, what is saved, the largest blocks."""

from collections.abc import Sequence
from functools import partial

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns, shown
from perf_tests.views.tables.cells import Cell, distinct, finite, inside, last_phases, lost_lines, rows_in
from perf_tests.views.tables.digits import MIB, mebibytes_in, significant
from perf_tests.views.tables.table import Table, pass_table

MEMORY_NOTE = "each case in its own process, apart from the timings; 1 MiB = 1,048,576 bytes"
LARGEST = 5
"""Blocks of each case in a table."""

PEAK: Columns[Json] = {
    "peak (MiB)": lambda row: mebibytes_in(row, "peak_allocated_bytes"),
    "predicted (MiB)": lambda row: mebibytes_in(row, "predicted_peak_bytes"),
    "measured / predicted": lambda row: _measured_over_predicted(row),
    "reserved (MiB)": lambda row: mebibytes_in(row, "peak_reserved_bytes"),
}
SAVED: Columns[Json] = {
    "Part": lambda row: str(row["part"]),
    "places": lambda row: str(row["places"]),
    "of one (MiB)": lambda row: significant(row["bytes"] / row["places"] / MIB),
    "together (MiB)": lambda row: significant(row["bytes"] / MIB),
    "of all saved (%)": lambda row: f"{row['percent']:.1f}",
}
BLOCK: Columns[Json] = {
    "Line": lambda row: str(row.get("line") or DASH),
    "Category": lambda row: str(row.get("category") or DASH),
    "block (MiB)": lambda row: mebibytes_in(row, "bytes"),
}


def memory_pass_table(cells: Sequence[Cell]) -> Table | None:
    """The peak of each case beside the predicted one, and what was held between the parts of a round."""
    held = [
        {str(mark.get("name")): mark.get("allocated_bytes") for mark in rows_in(cell.info, "marks")} for cell in cells
    ]
    columns = PEAK | _mebibytes(distinct(name for marks in held for name in marks))
    rows = [(cell, {**cell.info, **marks}) for cell, marks in zip(cells, held, strict=True)]
    return pass_table("memory_pass", "Peak of allocated memory beside the predicted one", columns, rows, _notes(cells))


def memory_part_table(cells: Sequence[Cell]) -> Table | None:
    columns: Columns[Json] = {"Part": lambda row: str(row.get("phase")), **PEAK}
    rows = [(cell, part) for cell in cells for part in rows_in(cell.info, "parts")]
    return pass_table("memory_parts", "Peak memory by part of a round", columns, rows, _notes(cells), words=1)


def memory_category_table(cells: Sequence[Cell]) -> Table | None:
    """Two rows for each case: what was measured, and what the counters predict."""
    kinds = {"measured": "peak_by_category_bytes", "predicted": "predicted_by_category_bytes"}
    found = [(cell, kind, inside(cell.info, field)) for cell in cells for kind, field in kinds.items()]
    rows = [(cell, {**held, "kind": kind}) for cell, kind, held in found if held]
    columns: Columns[Json] = {"Peak": lambda row: str(row["kind"])}
    columns |= _mebibytes(distinct(name for _, _, held in found for name in held))
    return pass_table("memory_categories", "What is held at the peak", columns, rows, _notes(cells), words=1)


def saved_table(cells: Sequence[Cell]) -> Table | None:
    """What the forward pass saves for the backward pass, by part of the model; blocks of one kind together."""
    rows = [(cell, row) for cell in last_phases(cells) for row in _saved_rows(cell.info)]
    return pass_table("saved", "Saved for the backward pass by part", SAVED, rows, _notes(cells), words=1)


def largest_table(cells: Sequence[Cell]) -> Table | None:
    rows = [
        (cell, block)
        for cell in last_phases(cells)
        for block in list(rows_in(cell.info, "largest_allocations"))[:LARGEST]
    ]
    return pass_table("largest_blocks", "Largest blocks of memory", BLOCK, rows, _notes(cells), words=2)


def _measured_over_predicted(row: Json) -> str:
    measured, predicted = (finite(row.get(name)) for name in ("peak_allocated_bytes", "predicted_peak_bytes"))
    return shown(measured / predicted if measured and predicted else None, ".5f")


def _mebibytes(names: Sequence[str]) -> Columns[Json]:
    return {f"{name} (MiB)": partial(mebibytes_in, name=name) for name in names}


def _saved_rows(values: Json) -> list[Json]:
    """Places and bytes of each part of the model, the part that saves most first."""
    found: dict[str, list[float]] = {}
    for row in rows_in(values, "saved_bytes_by_part"):
        amount = finite(row.get("saved_bytes"))
        if amount is not None:
            found.setdefault(str(row.get("part")), []).append(amount)
    whole = sum(map(sum, found.values())) or 1.0
    return [
        {"part": part, "places": len(amounts), "bytes": sum(amounts), "percent": 100 * sum(amounts) / whole}
        for part, amounts in sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
    ]


def _notes(cells: Sequence[Cell]) -> list[str]:
    """With each reason for a missing prediction once, and the reasons for missing peaks."""
    said = [cell.info.get("prediction_reason") for cell in cells]
    reasons = distinct(f"no prediction: {reason}" for reason in said if isinstance(reason, str))
    return [MEMORY_NOTE, *reasons, *lost_lines(cells)]


MEMORY_TABLES = (memory_pass_table, memory_part_table, memory_category_table, saved_table, largest_table)
