"""`kernels FILE`: show where the time of a capture goes: Nsight Systems', torch.profiler's, or a record's.

perf-tests kernels RECORD.json --case backward
perf-tests kernels CAPTURE.sqlite --range softmax
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from perf_tests.audit.rounds import inconsistencies
from perf_tests.phases import FINDINGS, FINE, RefusalError, UsageError
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, Columns, column_table, duration, printable, shown, table
from perf_tests.records.record import Json, misshapen, unpacked
from perf_tests.records.store import ENDINGS, read_record
from perf_tests.report.screens import missing_parts
from perf_tests.traces.kernels import KERNEL_VALUES, kernel_values
from perf_tests.traces.trace import RangeError, read_chrome_trace, read_sqlite, versions_of

MOST_BYTES = 1 << 28
"""The largest trace that is read, unpacked; in memory it takes ten times as much."""
NAME_WIDTH = 60
"""Characters shown of a kernel's name; names of C++ templates have thousands."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="REPORT.nsys-rep or .sqlite, a trace of torch.profiler (.json, .json.gz), or a record with a kernel pass",
    )
    parser.add_argument("--range", help="of a capture: only kernels launched inside NVTX ranges of this name")
    parser.add_argument("--case", default="", help="of a record: only cases whose name contains this")


def run(arguments: argparse.Namespace) -> int:
    try:
        found = _read(arguments.file, arguments.range, arguments.case)
    except RangeError as error:
        raise UsageError(f"{arguments.file}: {error}.") from error
    except ValueError as error:
        names_it = str(arguments.file) in str(error)
        raise RefusalError(error if names_it else f"{arguments.file} cannot be used: {error}.") from error
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        for name, values in found.items():
            print("\n".join(map(printable, [name, *detail_lines(values), ""])))
    return FINDINGS if any(inconsistencies(values) for values in found.values()) else FINE


def _read(path: Path, range_name: str | None, case: str) -> dict[str, Json]:
    """Values by case or file name. Raises UsageError, RangeError, or ValueError with one sentence."""
    if path.is_dir():
        raise ValueError("it is a folder, not a file")
    if not path.is_file():
        raise ValueError("there is no such file")
    is_trace = path.suffix == ".gz" or _is_trace(path)
    is_record = path.name.endswith(ENDINGS) and not is_trace
    if range_name is not None and (is_record or is_trace):
        raise RangeError("--range needs a capture of Nsight Systems")
    if case and not is_record:
        raise UsageError(f"{path}: --case needs a record.")
    if is_record:
        return _of_record(path, case)
    if is_trace:
        text = unpacked(path, MOST_BYTES) if path.suffix == ".gz" else path.read_bytes()
        return {path.name: kernel_values(read_chrome_trace(text), {})}
    if path.suffix == ".nsys-rep":
        path = _exported(path)
    elif path.suffix != ".sqlite":
        raise ValueError("its suffix must be .nsys-rep, .sqlite, .json.gz or .json")
    values = kernel_values(read_sqlite(path, range_name), {})
    return {path.name: {**values, "nsys": versions_of(path)}}


def _is_trace(path: Path) -> bool:
    """Whether a plain JSON file is a trace, as other programs write it, and no record. Raises ValueError."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        begins = file.read(4096)
    if b'"traceEvents"' not in begins and b'"schemaVersion"' not in begins:
        return False
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has {path.stat().st_size} bytes, above the limit of {MOST_BYTES}; trace fewer steps")
    return True


def _of_record(path: Path, case: str) -> dict[str, Json]:
    rows = [row for row in read_record(path).data.get("passes", []) if row["pass"] == "kernels"]
    if not rows:
        raise ValueError("it holds no kernel pass; measure with --kernels")
    found = {row["id"]: row["values"] for row in rows if case in row["id"] or case in case_name(row["id"])}
    for name, values in found.items():
        if wrong := misshapen(values, KERNEL_VALUES, "values"):
            raise ValueError(f"its kernel pass of {case_name(name)} is damaged: {wrong}")
    if not found:
        names = ", ".join(case_name(row["id"]) for row in rows)
        raise UsageError(f"--case {case}: no case of {path} has this in its name; its cases are {names}.")
    return found


def _exported(report: Path) -> Path:
    """The report's SQLite export beside it, made unless a newer one exists."""
    export = report.with_suffix(".sqlite")
    if export.is_file() and export.stat().st_mtime >= report.stat().st_mtime:
        return export
    nsys = shutil.which("nsys")
    if nsys is None:
        raise ValueError(
            "nsys is not on the PATH, and only Nsight Systems can read its own reports; install it, or run "
            f"`nsys export --type sqlite {report.name}` where it was captured and give the .sqlite file"
        )
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(export), str(report)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode or not export.is_file():
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["no reason"]
        raise ValueError(f"`nsys export` failed, possibly because a newer version wrote the report: {said[-1]}")
    return export


# Everything about one case in a terminal.


SHARES: Columns[Json] = {
    "launches": lambda row: f"{row['launches']:g}",
    "time": lambda row: duration(row["seconds"]),
    "of kernels": lambda row: f"{row['share_of_kernel_time']:.1%}",
    "of wall": lambda row: f"{row['share_of_wall']:.1%}",
}
REGION: Columns[Json] = {
    "region": lambda row: f"{row['region']}{', backward' if row['is_backward'] else ''}",
    **SHARES,
    "of its direction": lambda row: f"{row['share_of_direction']:.1%}",
}
ATTENTION_PART: Columns[Json] = {
    "part": lambda row: str(row["part"]),
    "launches": lambda row: f"{row['launches']:g}",
    "device": lambda row: duration(row["device_seconds"]),
    "host": lambda row: duration(row["host_seconds"]),
    "MFLOP": lambda row: f"{row['flops'] / 1e6:.3g}",
    "MB": lambda row: f"{row['bytes'] / 1e6:.3g}",
    "bound": lambda row: row["bound"] or DASH,
    "std over layers": lambda row: duration(row["spread_over_layers"]["stddev_seconds"]),
}


GAPS = {
    "idle_gaps": "device idle between two kernels",
    "api_gaps": "host between two calls",
    "launch_to_start": "from a launch to its kernel's start",
}


def detail_lines(values: Json) -> list[str]:
    """Totals, then tables by kind, kernel and region, gaps, attention by part, and what does not fit together."""
    products = values["matrix_products"]
    expected = products.get("expected_count")
    kind: Columns[Json] = {"kind": lambda row: str(row["kind"]), **SHARES}
    lines = [
        f"{values['launches']:g} kernels in a round, {duration(values['kernel_seconds'])} of "
        f"{duration(values['wall_seconds'])}; device busy {values['busy_share']:.1%}",
        f"{products['count']:g} matrix products{'' if expected is None else f' of {expected} expected'}, "
        f"{products['share_of_kernel_time']:.1%} of the kernel time",
        "",
        *column_table(kind, values["kinds"]),
        "",
        *_kernel_table(values),
        "",
    ]
    if values["regions"]:
        lines += column_table(REGION, values["regions"])
    lines += [
        f"{row['kind']}: {row['count']:g} operations, {row['bytes']} bytes, {duration(row['seconds'])}, "
        f"{row['share_of_wall']:.1%} of wall"
        for row in values["memory_operations"]
    ]
    lines += [
        f"{what}: median {duration(gap['median_seconds'])}, p95 {duration(gap['p95_seconds'])}, "
        f"max {duration(gap['max_seconds'])}, {gap['count']} in {values['rounds']} rounds"
        for name, what in GAPS.items()
        if (gap := values.get(name))
    ]
    for name, direction in (values["attention"] or {}).items():
        if direction is None:
            continue
        lines += ["", f"one of {direction['layers']} attention layers, {name}"]
        lines += column_table(ATTENTION_PART, direction["parts"])
        lines += [
            f"softmax / products: {shown(direction['softmax_over_products_time'], '.3g')} in time, "
            f"{shown(direction['softmax_over_products_flops'], '.3g')} in FLOPs; of {duration(direction['seconds'])}: "
            f"{duration(direction['saved_without_gaps_seconds'])} idle between kernels, at most "
            f"{duration(direction['saved_by_fusing_seconds'])} saved by fusing everything except the products"
        ]
    return [*lines, *missing_parts(values), *inconsistencies(values)]


def _kernel_table(values: Json) -> list[str]:
    """Kernels, those of several shapes also by shape, then all others together."""

    def calls(row: Json) -> tuple[str, ...]:
        return f"{row['calls']:g}", *(duration(row[f"{name}_seconds"]) for name in ("total", "mean", "stddev"))

    rows = []
    for kernel in values["kernels"]:
        rows.append((kernel["name"][:NAME_WIDTH], *calls(kernel), f"{kernel['share']:.1%}"))
        if len(kernel["shapes"]) > 1:
            rows += [(f"  {shape['shapes']}"[:NAME_WIDTH], *calls(shape), "") for shape in kernel["shapes"]]
    others = values["other_kernels"]
    if others["names"]:
        total = duration(others["total_seconds"])
        rows.append((f"{others['names']} others", f"{others['calls']:g}", total, "", "", f"{others['share']:.1%}"))
    return table(("kernel, by shapes", "calls", "total", "mean", "std", "share"), rows)
