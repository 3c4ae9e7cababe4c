"""A record's figures one to a line, in the columns of published collections of such figures."""

import csv
import io
import json
from collections.abc import Mapping, Sequence

from perf_tests.phases import PHASES
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.cells import PASSES, Cell, cells_of, finite, pass_cells, rows_in
from perf_tests.views.tables.conditions import machine_name
from perf_tests.views.tables.digits import MIB
from perf_tests.views.tables.warmup import seconds_of

COLUMNS = {
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

FIELDS = {
    "size": "size", "n_layers": "num_layers", "d_ff": "d_ff", "n_heads": "num_heads", "vocab": "vocab_size",
    "seq_len": "sequence_length", "batch": "batch_size", "attention": "attention", "execution": "execution",
    "checkpoint": "checkpoint", "optimizer": "optimizer",
}  # fmt: skip
"""Columns that show a field of the identity."""
KERNEL = {
    "calls": ("calls", None), "total_ms": ("total_seconds", 1e3), "avg_us": ("mean_seconds", 1e6),
    "std_us": ("stddev_seconds", 1e6), "pct_of_gpu_time": ("share", 100.0),
}  # fmt: skip
WARMUP = {
    "warmup": ("warmup_rounds", None), "mean_ms": ("mean_seconds", 1e3), "std_ms": ("std_seconds", 1e3),
    "steady_from_round": ("steady_from_round", None),
}  # fmt: skip
"""Columns that show a figure of a kernel or of a process of the warm-up study, by name and factor."""

PRECISIONS = {"bf16": "bf16_amp", "fp16": "fp16_amp", "fp16-unscaled": "fp16_amp(unscaled)"}
FORWARD_PEAKS = {"inference": "forward_peak(no_grad)", "forward": "forward_peak(with grad)"}
"""Their names in published collections."""


def flat_figures(record: Json, name: str) -> dict[str, list[Json]]:
    """Rows of each kind, by the kind's columns; unknown values are empty."""
    passes = {extra_pass: pass_cells(record, extra_pass) for extra_pass in PASSES}
    return flat_rows(cells_of(record), name, machine_name(record), passes)


def flat_rows(
    cells: Sequence[Cell], name: str, machine: str, passes: Mapping[str, Sequence[Cell]]
) -> dict[str, list[Json]]:
    """The same of cells and of extra passes, with the names of their record and its machine."""
    found: dict[str, list[tuple[Cell, Json]]] = {
        "timing": [(cell, {}) for cell in cells if not cell.is_attention],
        "attention": [(cell, {}) for cell in cells if cell.is_attention],
        "memory": [(cell, row) for cell in (*cells, *passes.get("memory", ())) for row in _amounts(cell)],
        "kernels": [(cell, row) for cell in passes.get("kernels", ()) for row in _kernels(cell)],
        "warmup": [(cell, row) for cell in passes.get("warmup", ()) for row in _warmups(cell)],
    }
    known = {kind: [{**_common(cell, name, machine), **row} for cell, row in rows] for kind, rows in found.items()}
    return {kind: [{name: row.get(name, "") for name in COLUMNS[kind]} for row in rows] for kind, rows in known.items()}


def _common(cell: Cell, name: str, machine: str) -> Json:
    """Every column that no kind fills itself; each kind takes those that it has."""
    precision = cell.label("precision")
    compiled = cell.label("attention") == "compiled" or cell.label("execution") not in ("", "eager")
    other = "" if cell.label("attention") == "naive" else f" ({cell.label('attention')})"
    return {
        "source": name,
        "device": machine,
        "device_basis": "stated",
        **{column: _field(cell, field) for column, field in FIELDS.items()},
        "d_model": _field(cell, "head_dim" if cell.is_attention else "d_model"),
        "context": _field(cell, "sequence_length" if cell.is_attention else "context_length"),
        "precision": PRECISIONS.get(precision, precision),
        "compiled": "yes" if compiled else f"no{other}",
        "phase": _published(cell.phase),
        "status": "ok" if not cell.outcome else "OOM" if cell.outcome == "out_of_memory" else cell.outcome,
        "note": cell.reason,
        "context_basis": "stated",
        "causal_mask": "yes",
        "warmup": _or_empty(cell.info.get("warmup_rounds_run", cell.info.get("warmup_rounds"))),
        "sync": "yes",
        **_times(cell),
    }


def _field(cell: Cell, name: str) -> float | str:
    """Of the identity: a number where it is one, else text."""
    number = finite(cell.identity.get(name))
    return cell.label(name) if number is None else _or_empty(number)


def _published(phase: str) -> str:
    row = PHASES.get(phase)
    return row.published_as or phase if row else phase


def _times(cell: Cell) -> Json:
    if not cell.is_timed:
        return {}
    return {
        "mean_ms": cell.mean_seconds * 1e3,
        "std_ms": _or_empty(cell.std_seconds, 1e3),
        "median_ms": cell.median_seconds * 1e3,
        **{f"p{percent}_ms": seconds * 1e3 for percent, seconds in cell.percentile_seconds.items()},
        "n_measured": len(cell.rounds),
    }


def _amounts(cell: Cell) -> list[Json]:
    """Peak, and bytes before the backward pass; a case out of memory has a row without a value."""
    place = {
        "object": "attention" if cell.is_attention else "model",
        "unit": "MiB",
        "predicted": _or_empty(cell.number("predicted_peak_bytes"), 1 / MIB),
    }
    peak, before = cell.number("peak_allocated_bytes"), cell.number("bytes_before_backward")
    before = before or cell.number("memory_before_backward_bytes")
    amounts = []
    if peak is not None or cell.outcome == "out_of_memory":
        of_model = FORWARD_PEAKS.get(cell.phase, f"{_published(cell.phase)}_peak")
        mode = f"peak_{cell.phase}" if cell.is_attention else of_model
        amounts.append({**place, "mode": mode, "value": _or_empty(peak, 1 / MIB)})
    if before is not None:
        amounts.append({**place, "mode": "before_backward", "value": _or_empty(before, 1 / MIB), "predicted": ""})
    return amounts


def _kernels(cell: Cell) -> list[Json]:
    return [
        {"scope": cell.phase, "kernel": str(row.get("name")), **_figures(row, KERNEL)}
        for row in rows_in(cell.info, "kernels")
    ]


def _warmups(cell: Cell) -> list[Json]:
    """One process per row; a note marks warm-ups without the timed phase."""
    return [
        {
            **_figures(row, WARMUP),
            "note": "warm-up without the timed phase" if row.get("leaves_out_timed_phase") is True else "",
            "n_measured": len(seconds),
            "first_ms": seconds[0] * 1e3 if seconds else "",
        }
        for row in rows_in(cell.info, "series")
        for seconds in (seconds_of(row, "seconds"),)
    ]


def _figures(row: Json, columns: Mapping[str, tuple[str, float | None]]) -> Json:
    return {column: _or_empty(row.get(name), factor) for column, (name, factor) in columns.items()}


def _or_empty(found: object, factor: float | None = None) -> float | str:
    value = finite(found)
    if value is None:
        return ""
    return value * factor if factor is not None else int(value) if value.is_integer() else value


def as_csv(rows: Sequence[Json], columns: Sequence[str]) -> str:
    """A header and a line for each row, quoted where needed; lone surrogates become question marks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(no_formula, columns))
    writer.writerows([no_formula(row[column]) for column in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace").decode()


def as_jsonl(rows: Sequence[Json]) -> str:
    """One JSON object per line; unknown values are null."""
    return "".join(json.dumps(with_null(row)) + "\n" for row in rows)


def with_null(row: Json) -> Json:
    return {name: None if value == "" else value for name, value in row.items()}


def no_formula(value: object) -> object:
    """Text that a spreadsheet does not read as a formula."""
    starts_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if starts_formula and value != DASH else value
