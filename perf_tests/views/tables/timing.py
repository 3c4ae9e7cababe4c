"""The tables of a write-up: times, precisions, peak memory and attention, from one record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf_tests.records.times import FEWEST_FOR_PERCENTILES, PERCENTILES
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.cells import (
    LABELS,
    SHORT_OUTCOMES,
    Cell,
    distinct,
    labels_of,
    lost_lines,
    pairs_along,
    phase_order,
)
from perf_tests.views.tables.conditions import rounds_line
from perf_tests.views.tables.digits import GIB, MIB, ratio_spread, significant, with_spread
from perf_tests.views.tables.table import Table

GIB_FROM_BYTES = GIB / 8
"""From this size on, a table of peaks is in GiB, else in MiB."""

BASE_PRECISION = "fp32"
SPREAD_NOTE = "mean ± standard deviation of the measured rounds"
RATIO_NOTE = f"{SPREAD_NOTE}; the ratio is of means, its ± from those of both"


@dataclass(frozen=True)
class Label:
    """A column that names rows; one with a single value moves to the title unless `always` shown."""

    name: str
    of: Callable[[Cell], str]
    always: bool = False


SIZE = Label("Size", lambda cell: cell.label("size"), always=True)
CONTEXT = Label("Context", lambda cell: cell.label("context_length"), always=True)
IMPLEMENTATION = Label("Implementation", lambda cell: cell.implementation)
PRECISION = Label("Precision", lambda cell: cell.label("precision"))
PHASE = Label("Phase", lambda cell: cell.phase, always=True)
BATCH = Label("Batch", lambda cell: f"batch {cell.label('batch_size')}")
HEAD_DIM = Label("d", lambda cell: cell.label("head_dim"), always=True)
SEQUENCE = Label("Sequence", lambda cell: cell.label("sequence_length"), always=True)

MODEL_LABELS = (SIZE, CONTEXT, IMPLEMENTATION, PRECISION, BATCH)
ATTENTION_LABELS = (HEAD_DIM, SEQUENCE, PRECISION, BATCH)

Entry = tuple[Cell, str, str]
"""The cell that names the row, the column, and the text."""


def timing_table(cells: Sequence[Cell]) -> Table | None:
    chosen = [cell for cell in cells if not cell.is_attention]
    entries = [(cell, f"{cell.phase} (ms)", milliseconds(cell)) for cell in chosen]
    return _table("timing", "Time by size and context", chosen, MODEL_LABELS, entries, SPREAD_NOTE)


def percentile_table(cells: Sequence[Cell]) -> Table | None:
    """A row for each case with enough rounds."""
    chosen = [cell for cell in cells if cell.percentile_seconds]
    if not chosen:
        return None
    header = (*LABELS, *(f"p{percent} (ms)" for percent in PERCENTILES))
    rows = [(*labels_of(cell), *(significant(s * 1e3) for s in cell.percentile_seconds.values())) for cell in chosen]
    notes = (f"of cases with at least {FEWEST_FOR_PERCENTILES} measured rounds", rounds_line(chosen))
    return Table("percentiles", "Percentiles of the time of a round", header, len(LABELS), tuple(rows), notes)


def precision_table(cells: Sequence[Cell]) -> Table | None:
    labels = (SIZE, CONTEXT, PHASE, IMPLEMENTATION, BATCH)
    entries: list[Entry] = []
    chosen: list[Cell] = []
    for base, other in pairs_along((cell for cell in cells if not cell.is_attention), "precision", BASE_PRECISION):
        if base not in chosen:
            chosen.append(base)
            entries.append((base, f"{BASE_PRECISION} (ms)", milliseconds(base)))
        chosen.append(other)
        precision = other.label("precision")
        entries.append((base, f"{precision} (ms)", milliseconds(other)))
        entries.append((base, f"{BASE_PRECISION} / {precision}", ratio(base, other)))
    return _table("precision", "Speed-up over fp32", chosen, labels, entries, RATIO_NOTE)


def memory_table(cells: Sequence[Cell]) -> Table | None:
    chosen = [cell for cell in cells if not cell.is_attention]
    return _memory("memory", "Peak memory by size and context", chosen, MODEL_LABELS, lambda cell: cell.phase)


def attention_table(cells: Sequence[Cell]) -> Table | None:
    chosen = [cell for cell in cells if cell.is_attention]
    entries = [(cell, f"{cell.implementation} {cell.phase} (ms)", milliseconds(cell)) for cell in chosen]
    return _table("attention", "Attention alone", chosen, ATTENTION_LABELS, entries, SPREAD_NOTE)


def attention_memory_table(cells: Sequence[Cell]) -> Table | None:
    chosen = [cell for cell in cells if cell.is_attention]
    title = "Peak memory of attention alone"
    return _memory("attention_memory", title, chosen, ATTENTION_LABELS, lambda c: f"{c.implementation} {c.phase}")


def milliseconds(cell: Cell) -> str:
    """Mean and spread in ms, or the outcome of a case without a timing."""
    if not cell.is_timed:
        return SHORT_OUTCOMES[cell.outcome]
    return with_spread(cell.mean_seconds * 1e3, cell.std_seconds and cell.std_seconds * 1e3)


def ratio(over: Cell, under: Cell) -> str:
    """Mean over mean, in as many digits as both spreads allow; a dash where one of them has no timing."""
    if not (over.is_timed and under.is_timed):
        return DASH
    value = over.mean_seconds / under.mean_seconds
    spread = ratio_spread(value, over.std_seconds, over.mean_seconds, under.std_seconds, under.mean_seconds)
    return with_spread(value, spread) if spread else significant(value, 3)


def _memory(
    name: str, title: str, cells: Sequence[Cell], labels: Sequence[Label], column: Callable[[Cell], str]
) -> Table | None:
    fields = {"peak_allocated_bytes": "", "predicted_peak_bytes": " predicted"}
    amounts = [amount for cell in cells for field in fields if (amount := cell.number(field)) is not None]
    if not amounts:
        return None
    divisor, unit = (GIB, "GiB") if min(amounts) >= GIB_FROM_BYTES else (MIB, "MiB")
    entries: list[Entry] = []
    for cell in cells:
        for field, suffix in fields.items():
            if (amount := cell.number(field)) is not None:
                entries.append((cell, f"{column(cell)}{suffix} ({unit})", significant(amount / divisor)))
        if not cell.is_timed:
            entries.append((cell, f"{column(cell)} ({unit})", SHORT_OUTCOMES[cell.outcome]))
    is_measured = any(cell.number("peak_allocated_bytes") is not None for cell in cells)
    how = "in the measured rounds" if is_measured else "predicted, as none is measured here"
    note = f"peak of allocated bytes {how}, 1 {unit} = {divisor:,} bytes"
    return _table(name, title, cells, labels, entries, note)


def _table(
    name: str, title: str, cells: Sequence[Cell], labels: Sequence[Label], entries: Sequence[Entry], note: str
) -> Table | None:
    """Entries laid out by row and column; None without any."""
    if not entries:
        return None
    values = {label.name: distinct(label.of(cell) for cell in cells) for label in labels}
    shown = [label for label in labels if label.always or len(values[label.name]) > 1]
    said = [values[label.name][0] for label in labels if label not in shown and values[label.name][0]]
    columns = distinct(column for _, column, _ in sorted(entries, key=lambda entry: phase_order(entry[0])))
    laid: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for cell, column, text in entries:
        key = tuple(label.of(cell) for label in shown)
        laid.setdefault(key, {}).setdefault(column, []).append(text)
    # A record may hold a case twice; show both figures.
    rows = tuple((*key, *(" / ".join(row.get(column, [DASH])) for column in columns)) for key, row in laid.items())
    header = (*(label.name for label in shown), *columns)
    notes = (note, *([line] if (line := rounds_line(list(cells))) else []), *lost_lines(cells))
    return Table(name, f"{title}{': ' if said else ''}{', '.join(said)}", header, len(shown), rows, notes)


TIMING_TABLES = (
    timing_table, percentile_table, precision_table, memory_table, attention_table, attention_memory_table,
)  # fmt: skip
