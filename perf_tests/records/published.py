"""Published figures: collections of them as CSV files in one folder, and a record's own in the same columns."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perf_tests.phases import PHASES
from perf_tests.records.columns import COLUMNS, PASSES, Cell, Known, Row, cells_of, pass_cells, seconds_of
from perf_tests.records.format import MIB, finite
from perf_tests.records.record import Json, unpacked

PUBLISHED = Path(__file__).parents[2] / "published"
MOST_BYTES = 10_000_000


def published_rows(name: str, folder: Path = PUBLISHED) -> list[dict[str, str]]:
    """Each row by column of `memory_outliers.csv` or, the largest packed with xz, `flash_attention.csv.xz`.

    Raises ValueError with one sentence for a table that is missing or cannot be read.
    """
    text = unpacked(folder / name, MOST_BYTES).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


FLAT_COLUMNS = {
    "timing": (
        "source", "device", "device_basis", "edition", "size", "d_model", "d_ff", "n_layers", "n_heads", "vocab",
        "batch", "context", "context_basis", "precision", "compiled", "phase", "mean_ms", "std_ms", "n_measured",
        "warmup", "sync", "status", "note", "attention", "execution", "checkpoint", "optimizer", "median_ms", "p95_ms",
        "p99_ms",
    ),
    "attention": (
        "source", "device", "device_basis", "batch", "d_model", "seq_len", "causal_mask", "precision", "compiled",
        "phase", "mean_ms", "std_ms", "n_measured", "status", "note", "attention", "median_ms", "p95_ms", "p99_ms",
    ),
    "memory": (
        "source", "device", "device_basis", "object", "size", "d_model", "n_layers", "batch", "context", "precision",
        "compiled", "mode", "value", "unit", "status", "note", "attention", "execution", "checkpoint", "predicted",
    ),
    "kernels": (
        "source", "device", "device_basis", "edition", "size", "context", "scope", "kernel", "calls", "total_ms",
        "avg_us", "std_us", "pct_of_gpu_time", "note", "precision", "attention",
    ),
    "warmup": (
        "source", "device", "size", "context", "phase", "warmup", "mean_ms", "std_ms", "note", "device_basis",
        "d_model", "d_ff", "n_layers", "n_heads", "vocab", "batch", "precision", "compiled", "n_measured", "attention",
        "first_ms", "steady_from_round",
    ),
}  # fmt: skip
"""The columns of each kind of table, those that published collections lack at the end."""

_PUBLISHED: dict[str, str | tuple[str, float]] = {
    "source": "record", "device": "device_name", "size": "size", "d_model": "d_model", "d_ff": "d_ff",
    "n_layers": "num_layers", "n_heads": "num_heads", "vocab": "vocab_size", "batch": "batch_size",
    "context": "context_length", "seq_len": "sequence_length", "attention": "attention", "execution": "execution",
    "checkpoint": "checkpoint", "optimizer": "optimizer", "mean_ms": ("mean_seconds", 1e3),
    "std_ms": ("stddev_seconds", 1e3), "median_ms": ("median_seconds", 1e3), "p95_ms": ("p95_seconds", 1e3),
    "p99_ms": ("p99_seconds", 1e3), "n_measured": "rounds", "note": "reason",
    "predicted": ("predicted_peak_bytes", 1 / MIB),
}  # fmt: skip
"""Columns of collections that show one of ours, some in another unit."""
_OF_ATTENTION = {"d_model": "head_dim", "context": "sequence_length"}
"""Those that show another one where attention is timed alone."""

_KERNEL = {
    "calls": ("calls", None), "total_ms": ("total_seconds", 1e3), "avg_us": ("mean_seconds", 1e6),
    "std_us": ("stddev_seconds", 1e6), "pct_of_gpu_time": ("share", 100.0),
}  # fmt: skip
_WARMUP = {
    "warmup": ("warmup_rounds", None), "mean_ms": ("mean_seconds", 1e3), "std_ms": ("std_seconds", 1e3),
    "steady_from_round": ("steady_from_round", None),
}  # fmt: skip
"""Columns that show a figure of a kernel or of a process of the warm-up study, by name and factor."""

_PRECISIONS = {"bf16": "bf16_amp", "fp16": "fp16_amp", "fp16-unscaled": "fp16_amp(unscaled)", "bf16-tensors": "bf16"}
_FORWARD_PEAKS = {"inference": "forward_peak(no_grad)", "forward": "forward_peak(with grad)"}
"""Their names in published collections."""


def flat_figures(record: Json, name: str) -> dict[str, list[Row]]:
    """Rows of each kind, by the kind's columns; `name` is the record's."""
    cells = cells_of(record)
    kernels, memory, warmup = (pass_cells(record, extra_pass) for extra_pass in PASSES)
    found: dict[str, Iterable[tuple[Cell, Row]]] = {
        "timing": ((cell, {}) for cell in cells if not cell.is_attention),
        "attention": ((cell, {}) for cell in cells if cell.is_attention),
        "memory": ((cell, row) for cell in (*cells, *memory) for row in _amounts(cell)),
        "kernels": (
            (cell, {"scope": cell.phase, "kernel": str(row.get("name")), **_figures(row, _KERNEL)})
            for cell in kernels
            for row in cell.rows("kernels")
        ),
        "warmup": ((cell, _process(row)) for cell in warmup for row in cell.rows("series")),
    }
    return {
        kind: [
            {column: row.get(column) for column in FLAT_COLUMNS[kind]}
            for row in ({**_flat(Known(cell, record, name)), **own} for cell, own in rows)
        ]
        for kind, rows in found.items()
    }


def _flat(known: Known) -> Row:
    """Every column that no kind fills itself; each kind takes those that it has."""
    cell, row = known.cell, Row()
    for name, source in (_PUBLISHED | (_OF_ATTENTION if cell.is_attention else {})).items():
        column, factor = (source, None) if isinstance(source, str) else source
        value = COLUMNS[column].value(known)
        row[name] = value * factor if factor is not None and isinstance(value, int | float) else value
    precision, attention = cell.label("precision"), cell.label("attention")
    compiled = attention == "compiled" or cell.label("execution") not in ("", "eager")
    ran, asked = (COLUMNS[name].value(known) for name in ("warmup_rounds_run", "warmup_rounds"))
    return row | {
        "precision": _PRECISIONS.get(precision, precision),
        "compiled": "yes" if compiled else "no" if attention == "naive" else f"no ({attention})",
        "phase": _published(cell.phase),
        "status": {"": "ok", "out_of_memory": "OOM"}.get(cell.outcome, cell.outcome),
        "warmup": asked if ran is None else ran,
        **dict.fromkeys(("device_basis", "context_basis"), "stated"),
        **dict.fromkeys(("causal_mask", "sync"), "yes"),
    }


def _published(phase: str) -> str:
    row = PHASES.get(phase)
    return row.published_as or phase if row else phase


def _amounts(cell: Cell) -> Iterator[Row]:
    """Peak, and bytes before the backward pass; a case out of memory has a row without a value."""
    place: Row = {"object": "attention" if cell.is_attention else "model", "unit": "MiB"}
    peak, before = cell.number("peak_allocated_bytes"), cell.number("bytes_before_backward")
    before = before or cell.number("memory_before_backward_bytes")
    if peak is not None or cell.outcome == "out_of_memory":
        of_model = _FORWARD_PEAKS.get(cell.phase, f"{_published(cell.phase)}_peak")
        mode = f"peak_{cell.phase}" if cell.is_attention else of_model
        yield {**place, "mode": mode, "value": peak and peak / MIB}
    if before is not None:
        yield {**place, "mode": "before_backward", "value": before / MIB, "predicted": None}


def _process(series: Json) -> Row:
    """One process of a warm-up study; a note marks warm-ups without the timed phase."""
    seconds = seconds_of(series, "seconds")
    return {
        **_figures(series, _WARMUP),
        "note": "warm-up without the timed phase" if series.get("leaves_out_timed_phase") is True else None,
        "n_measured": len(seconds),
        "first_ms": seconds[0] * 1e3 if seconds else None,
    }


def _figures(row: Json, columns: Mapping[str, tuple[str, float | None]]) -> Row:
    """Numbers of a row, null for what is none; whole numbers stay whole where their unit is kept."""
    found = {}
    for column, (name, factor) in columns.items():
        value = finite(row.get(name))
        if value is not None and factor is not None:
            value *= factor
        found[column] = int(value) if value is not None and factor is None and value.is_integer() else value
    return Row(found)
