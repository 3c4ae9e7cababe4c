"""`kernels FILE`: where the time of a capture goes: of Nsight Systems, of a kernel pass's trace, or of a record."""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from perf_tests.audit.rounds import inconsistencies
from perf_tests.phases import FINDINGS, FINE, RefusalError, UsageError
from perf_tests.records.columns import case_name
from perf_tests.records.record import Json, misshapen, unpacked
from perf_tests.records.store import read_record
from perf_tests.report.screens import detail_lines
from perf_tests.traces.kernels import KERNEL_VALUES, kernel_values
from perf_tests.traces.trace import RangeError, read_chrome_trace, read_sqlite, versions_of

MOST_BYTES = 1 << 28
"""Of a trace, unpacked; read, it takes ten times as much memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, help="REPORT.nsys-rep or .sqlite, .trace.json.gz, or a record with a kernel pass"
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
            print("\n".join([name, *detail_lines(values), ""]))
    return FINDINGS if any(inconsistencies(values) for values in found.values()) else FINE


def _read(path: Path, range_name: str | None, case: str) -> dict[str, Json]:
    """Values by case or file name. Raises UsageError, RangeError, or ValueError with one sentence."""
    if path.is_dir():
        raise ValueError("it is a folder, not a file")
    if not path.is_file():
        raise ValueError("there is no such file")
    if range_name is not None and path.suffix in (".json", ".gz"):
        raise RangeError("--range needs a capture of Nsight Systems")
    if case and path.suffix != ".json":
        raise UsageError(f"{path}: --case needs a record.")
    if path.suffix == ".json":
        return _of_record(path, case)
    if path.suffix == ".gz":
        return {path.name: kernel_values(read_chrome_trace(unpacked(path, MOST_BYTES)), {})}
    if path.suffix == ".nsys-rep":
        path = _exported(path)
    elif path.suffix != ".sqlite":
        raise ValueError("its suffix must be .nsys-rep, .sqlite, .json.gz or .json")
    values = kernel_values(read_sqlite(path, range_name), {})
    return {path.name: {**values, "nsys": versions_of(path)}}


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
