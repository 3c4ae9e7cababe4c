"""Tables that `nsys stats` prints as CSV: `cuda_gpu_trace` as a trace, `cuda_gpu_kern_sum` as values.

Columns are found by name, whatever their order and unit and whatever stands before them in the output.
"""

import csv
import io
from collections.abc import Sequence
from math import sqrt
from typing import Any

from perf_tests.records.record import Json
from perf_tests.traces.kernel_events import Kernel, MemoryOperation, Span, Trace
from perf_tests.traces.kernel_kinds import KINDS, kind_of


def read_csv(text: str) -> Trace | Json:
    """A trace of one round without ranges, or values. Raises ValueError with one sentence for anything else."""
    lines = text.splitlines()
    header = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        raise ValueError(
            "it holds neither cuda_gpu_kern_sum nor cuda_gpu_trace as CSV; "
            "make one with `nsys stats --report cuda_gpu_kern_sum --format csv REPORT`"
        )
    rows = list(csv.DictReader(io.StringIO("\n".join(_until_blank(lines[header:])))))
    columns = {_plain(name): name for name in rows[0]} if rows else {}
    if not rows:
        raise ValueError("its table has no rows: no kernel ran while it was captured")
    try:
        return _trace_of_table(rows, columns) if "duration" in columns else _values_of_summary(rows, columns)
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"its table is damaged or of an unknown version: {error!r}") from error


def _until_blank(lines: Sequence[str]) -> list[str]:
    end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    return list(lines[:end])


def _plain(name: str) -> str:
    """`Total Time (ns)` to `total time`; `Time(%)` of older versions like `Time (%)`."""
    return name.partition("(")[0].strip().lower()


def _is_header(line: str) -> bool:
    names = {_plain(name) for name in line.split(",")}
    return "name" in names and ({"start", "duration"} <= names or {"total time", "instances"} <= names)


_SECONDS = {"ns": 1e-9, "nsec": 1e-9, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0}
_BYTES = {"B": 1, "KB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _factor(name: str, units: dict[str, Any], default: str) -> float:
    """What one of the column's units is; the unit stands in brackets in its name."""
    return float(units[name.partition("(")[2].rstrip(")") or default])


def _trace_of_table(rows: list[dict[str, str]], columns: dict[str, str]) -> Trace:
    start, duration = columns["start"], columns["duration"]
    scale = _factor(duration, _SECONDS, "ns") * 1e6
    kernels, copies = [], []
    for row in rows:
        start_us = float(row[start]) * _factor(start, _SECONDS, "ns") * 1e6
        end_us, name = start_us + float(row[duration]) * scale, row[columns["name"]]
        if name.startswith("[CUDA mem"):
            copies.append(MemoryOperation(start_us, end_us, _copy_kind(name), _bytes_of(row, columns), start_us))
        else:
            kernels.append(Kernel(start_us, end_us, name, kind_of(name)))
    spans = (*kernels, *copies)
    whole = Span(min(span.start_us for span in spans), max(span.end_us for span in spans))
    return Trace(True, [whole], sorted(kernels, key=lambda kernel: kernel.start_us), copies)


def _copy_kind(name: str) -> str:
    words = {"Host-to-Device": "host-to-device", "HtoD": "host-to-device", "Device-to-Host": "device-to-host",
             "DtoH": "device-to-host", "memset": "memset"}  # fmt: skip
    return next((kind for word, kind in words.items() if word in name), "device-to-device")


def _bytes_of(row: dict[str, str], columns: dict[str, str]) -> int:
    column = columns.get("bytes")
    if column is None or not row[column]:
        return 0
    return round(float(row[column]) * _factor(column, _BYTES, "B"))


def _values_of_summary(rows: list[dict[str, str]], columns: dict[str, str]) -> Json:
    """All that a table without moments says: no rounds, no wall time, no regions."""
    kernels = [_kernel_row(row, columns) for row in rows]
    whole = sum(kernel["total_seconds"] for kernel in kernels)
    for kernel in kernels:
        kernel["share"] = kernel["total_seconds"] / whole
    kinds = [_kind_row(kind, [row for row in kernels if row["kind"] == kind], whole) for kind in KINDS]
    kinds = [row for row in kinds if row["launches"]]
    products = [row for row in kernels if row["kind"] == "matrix product"]
    return {
        "rounds": 1,
        "on_gpu": True,
        "left_out": None,
        "wall_seconds": None,
        "plain_wall_seconds": None,
        "kernel_seconds": whole,
        "busy_share": None,
        "launches": sum(row["calls"] for row in kernels),
        "launches_of_rounds": [],
        "matrix_products": {
            **_kind_row("matrix product", products, whole),
            "count": sum(row["calls"] for row in products if "splitk" not in row["name"].lower()),
            "expected_count": None,
        },
        "kinds": kinds,
        "kernels": sorted(kernels, key=lambda row: -row["total_seconds"]),
        "other_kernels": {"names": 0, "calls": 0, "total_seconds": 0.0, "share": 0.0},
        "regions": [],
        "memory_operations": [],
        "idle_gaps": None,
        "api_gaps": None,
        "launch_to_start": None,
        "attention": None,
    }


def _kernel_row(row: dict[str, str], columns: dict[str, str]) -> Json:
    name, calls = row[columns["name"]], int(row[columns["instances"]])
    total_seconds = float(row[columns["total time"]]) * _factor(columns["total time"], _SECONDS, "ns")
    deviation = columns.get("stddev")
    spread = None if deviation is None else float(row[deviation]) * _factor(deviation, _SECONDS, "ns")
    return {
        "name": name,
        "kind": kind_of(name),
        "calls": calls,
        "total_seconds": total_seconds,
        "mean_seconds": total_seconds / calls,
        # nsys divides by one call less.
        "stddev_seconds": None if spread is None else spread * sqrt(1 - 1 / calls),
        "shapes": [],
    }


def _kind_row(kind: str, rows: list[Json], whole: float) -> Json:
    seconds = sum(row["total_seconds"] for row in rows)
    return {
        "kind": kind,
        "launches": sum(row["calls"] for row in rows),
        "seconds": seconds,
        "share_of_kernel_time": seconds / whole,
        "share_of_wall": None,
    }
