"""`kernels FILE`: show where the time of a capture goes: Nsight Systems', torch.profiler's, or a record's.

perf-tests kernels RECORD.json --case backward
perf-tests kernels CAPTURE.sqlite --range softmax

Also what a run prints at its end: its results, and the rows of each extra pass.
"""

import argparse
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from perf_tests_suite.perf_tests.audit.rounds import (
    BUSY,
    FLAGS,
    NOT_COMPILED,
    SHORT_WARMUP,
    inconsistencies,
    product_shares_that_do_not_fall,
)
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, RefusalError, UsageError, is_collective
from perf_tests_suite.perf_tests.records.columns import (
    EVERY_COLUMN,
    CaseContext,
    CaseRow,
    case_name,
    found_in,
    pass_cells,
    rows_in,
    timed_cells,
)
from perf_tests_suite.perf_tests.records.format import (
    DASH,
    SHARE,
    Column,
    Table,
    Unit,
    column_table,
    distinct,
    duration,
    finite,
    fitting,
    printable,
    shown,
    table,
    text_column,
)
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.records.record import (
    OUTCOMES,
    Json,
    collected,
    how_many,
    misshapen,
    some_of,
    unpacked,
)
from perf_tests_suite.perf_tests.records.store import ENDINGS, read_record, strict_json
from perf_tests_suite.perf_tests.report.tables import (
    PART_OF_ATTENTION,
    PASS_TABLES,
    WAYS,
    Fit,
    PassColumns,
    attention_fits,
)
from perf_tests_suite.perf_tests.traces.kernels import KERNEL_VALUES, kernel_values
from perf_tests_suite.perf_tests.traces.trace import RangeError, read_chrome_trace, read_sqlite, versions_of

MOST_BYTES = 1 << 28
"""The largest trace that is read, unpacked; in memory it takes ten times as much."""
NAME_WIDTH = 60
"""Characters shown of a kernel's name; names of C++ templates have thousands."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "REPORT.nsys-rep or .sqlite, a trace of torch.profiler (.json, .json.gz), or a record with a kernel pass"
    parser.add_argument("file", type=Path, help=kinds)
    parser.add_argument("--range", help="of a capture: only kernels launched inside NVTX ranges of this name")
    parser.add_argument("--case", default="", help="of a record: only cases whose name contains this")


def run(arguments: argparse.Namespace) -> int:
    try:
        found = _read(arguments.file, arguments.range, arguments.case)
    except RangeError as error:
        raise UsageError(f"{arguments.file}: {error}.") from error
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        names_it = str(arguments.file) in said
        raise RefusalError(said if names_it else f"{arguments.file} cannot be used: {said}.") from error
    if arguments.json:
        print(strict_json(found))
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
        text = unpacked(path, MOST_BYTES)
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


SHARES: PassColumns = (
    found_in("launches", "launches"),
    found_in("time", "seconds"),
    found_in("of kernels", "share_of_kernel_time", unit=SHARE),
    found_in("of wall", "share_of_wall", unit=SHARE),
)
REGION: PassColumns = (
    text_column("region", lambda row: f"{row['region']}{', backward' if row['is_backward'] else ''}"),
    *SHARES,
    found_in("of its direction", "share_of_direction", unit=SHARE),
)
KIND: PassColumns = (text_column("kind", lambda row: row["kind"]), *SHARES)
OVER_LAYERS = found_in("std over layers", "spread_over_layers", "stddev_seconds")


GAPS = {
    "idle_gaps": "device idle between two kernels",
    "api_gaps": "host between two calls",
    "launch_to_start": "from a launch to its kernel's start",
}


def detail_lines(values: Json) -> list[str]:
    """Totals, then tables by kind, kernel and region, gaps, attention by part, and what does not fit together."""
    products = values["matrix_products"]
    expected = products.get("expected_count")
    lines = [
        f"{values['launches']:g} kernels in a round, {duration(values['kernel_seconds'])} of "
        f"{duration(values['wall_seconds'])}; device busy {values['busy_share']:.1%}",
        f"{products['count']:g} matrix products{'' if expected is None else f' of {expected} expected'}, "
        f"{products['share_of_kernel_time']:.1%} of the kernel time",
        "",
        *column_table(KIND, values["kinds"]),
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
    for name in WAYS:
        direction = (values["attention"] or {}).get(name)
        if direction is None:
            continue
        lines += ["", f"one of {direction['layers']} attention layers, {name}"]
        lines += column_table([*PART_OF_ATTENTION, OVER_LAYERS], direction["parts"])
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


# What a run prints at its end.


WIDTH = 120
"""Characters per line of the table of results where no terminal has fewer."""
MOST_NAMES = 6
"""Cases named beside a reason that they share."""

RESULTS = (
    "case", "median_seconds", "rounds_spread", "tokens_per_second", "tflops_per_second", "share_of_matmul_ceiling",
    "short_busy_seconds", "bound", "roofline_fraction",
)  # fmt: skip
"""Columns of the result screen."""
WHERE_KNOWN = ("short_busy_seconds", "bound", "roofline_fraction")
"""Columns that go where they say nothing of any case; without a bound its roofline goes too."""
DROPPED_FIRST = ("share_of_matmul_ceiling", "tokens_per_second", "tflops_per_second", "rounds_spread")
"""Columns that go first where names of cases are long: the roofline and the median say nearly the same."""
RESULT_NOTES = {
    "rounds_spread": "spread: interquartile range over median",
    "share_of_matmul_ceiling": "ceiling: the best square product in this precision here",
    "roofline_fraction": "roofline: least time of its kernels here over median",
    "short_busy_seconds": "busy: the device's own time in a round below 0.2 ms, the rest of which is the host's",
}


def result_lines(record: Json, width: int = WIDTH) -> list[str]:
    """One row for each case that computes: median, spread, throughput; then flags, and cases without a timing.

    The table is at most `width` characters wide while a column can be dropped; what bounds a case is shown where it is
    known. A reason that several cases share stands once.
    """
    lines, cells = busy_lines(record), timed_cells(record)
    are_all_busy = all(BUSY in cell.flags for cell in cells)
    computing = [CaseContext(cell, record) for cell in cells if not is_collective(cell.identity)]
    if computing:
        columns = [EVERY_COLUMN[name] for name in RESULTS]
        left = {one.name for one in columns if one.name not in WHERE_KNOWN or any(map(one.has_value, computing))}
        left -= set() if "bound" in left else {"roofline_fraction"}
        columns = fitting([one for one in columns if one.name in left], computing, width, DROPPED_FIRST)
        notes = (RESULT_NOTES.get(one.name) for one in columns)
        lines += [*column_table(columns, computing), "; ".join(filter(None, notes))]
    said = []
    for cell in cells:
        rounds = cell.measured.suggested_warmup_rounds
        for flag in cell.flags:
            if flag == BUSY and are_all_busy:  # as the first line has said
                continue
            advice = f"; set --warmup-rounds {rounds}" if flag == SHORT_WARMUP and rounds is not None else ""
            sentence = FLAGS[flag].sentence if flag in FLAGS else flag  # an older or a newer suite's
            if flag == NOT_COMPILED:
                first = next(iter(cell.measured.compiler_lines or ()), cell.measured.compiler_reason)
                advice = f": {first}" if first else ""
            said.append((f"{sentence}{advice}", cell.case))
    said += [
        (f"no bound and roofline: {reason}", known.cell.case)
        for known in computing
        if (reason := known.cell.measured.counters_reason)
    ]
    said += [(one, cell.case) for cell in cells if (one := compiled_in(cell.measured))]
    for row in record["outcomes"]:
        rounds_kept = row.get("rounds")
        kept = f" ({len(rounds_kept)} rounds kept)" if rounds_kept and isinstance(rounds_kept, list) else ""
        said.append((f"{OUTCOMES[row['outcome']]}: {row['reason']}{kept}", case_name(row["id"])))
    return lines + [f"{some_of(names, MOST_NAMES)}: {reason}" for reason, names in collected(said).items()]


MOST_LINES = 8
"""Breaks and recompiles that are told of a case."""


def compiled_in(measured: Measured) -> str | None:
    """Say what torch.compile made of a case, and where it stopped or began again; None of any other."""
    if not measured.graphs:
        return measured.compiler_reason if measured.graphs is None else None  # of none its flag speaks
    lines = list(map(str, measured.compiler_lines or ()))
    more = [f"{len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    told = "".join(f"; {one}" for one in (*lines[:MOST_LINES], *more, measured.compiler_reason) if one)
    recompiles = measured.shape_recompiles
    again = "" if recompiles is None else f", {how_many(recompiles, 'recompile')}"
    parts = "compiled" if not measured.graph_breaks and measured.graphs == 1 else "compiled in parts"
    counts = f"{how_many(measured.graphs, 'graph')}, {how_many(measured.graph_breaks or 0, 'graph break')}"
    return f"{parts}: {counts}{again}{told}"


def notice_lines(record: Json) -> list[str]:
    """What the rows of a run say together, as it was recorded; older records have none."""
    return [str(notice["sentence"]) for notice in rows_in(record, "notices") if "sentence" in notice]


def busy_lines(record: Json) -> list[str]:
    """One line where other programs disturbed cases; none for a quiet run."""
    busy = [cell.measured for cell in timed_cells(record) if BUSY in cell.flags]
    if not busy:
        return []
    cores = max(measured.other_cores or 0.0 for measured in busy)
    usable = max(finite(measured.before.get("usable_processors")) or 0.0 for measured in busy)
    used = f"other programs used up to {cores:.1f} of {usable:g} cores" if cores and usable else "other programs ran"
    return [
        f"BUSY MACHINE: {used} beside {len(busy)} of {len(record['benchmarks'])} cases, whose times are too long by an "
        f"unknown amount; measure again on a quiet machine, or compare by the gate (--against)."
    ]


def time_line(seconds: dict[str, float]) -> str:
    """Shares of what the time of a run went to."""
    total = seconds["total"] or 1.0
    counting, passes, sharing = (seconds.get(kind, 0.0) for kind in ("counting", "passes", "communication"))
    rest = total - seconds["rounds"] - seconds["building"] - counting - passes - sharing
    extra = f"{passes / total:.0%} in extra passes, " if passes else ""
    extra += f"{sharing / total:.0%} in rounds that show what communication costs, " if sharing else ""
    return (
        f"{total:.0f} s: {seconds['rounds'] / total:.0%} in warm-up and measured rounds with their set-up "
        f"(first calls that compile: {seconds['compiling']:.0f} s), "
        f"{seconds['building'] / total:.0%} building models, {counting / total:.0%} counting and ceilings, {extra}"
        f"{rest / total:.0%} start, checks and clean-up"
    )


# The extra passes: the tables that the page has of them too, and what is to be said of single cases.


SHOWN_OF_PASSES = {
    "kernels": ("kernel_shares",),
    "memory": ("memory_pass", "saved"),
    "warmup": ("warmup", "first_rounds"),
}
"""The tables of each pass on a screen; `perf-tests tables` and the page have all."""


def pass_lines(record: Json) -> dict[str, list[str]]:
    """The lines of each extra pass that has rows, by its name."""
    found = {}
    for name, chosen in SHOWN_OF_PASSES.items():
        cells = [cell for cell in pass_cells(record, name) if not cell.outcome]
        built = [table for build in PASS_TABLES[name] if build.name in chosen and (table := build(cells)) is not None]
        lines = [line for one in built for line in table_lines(one)]
        lines += distinct(note for one in built for note in one.notes)
        lines += [f"{FILES_OF_PASSES[kind]}: {folder}, beside the record" for kind, folder in _folders(cells)]
        said = [(sentence, cell.name) for cell in cells for sentence in remarks(cell)]
        lines += [f"{some_of(names, MOST_NAMES)}: {sentence}" for sentence, names in collected(said).items()]
        lines += product_shares_that_do_not_fall(cells) if name == "kernels" else []
        if name == "memory" and (fits := attention_fits(cells)):
            lines += column_table(FIT, fits)
            lines += ["k L^2 + c L d: L tokens, d the head width; k L x L matrices, c tensors like an input"]
        found[name] = lines
    return {name: lines for name, lines in found.items() if lines}


def table_lines(one: Table) -> list[str]:
    """Lay a table of the page out for a terminal: its title, and the columns that say something."""
    kept = [place for place in range(len(one.header)) if any(row[place] not in ("", DASH) for row in one.rows)]
    header = [one.header[place] for place in kept]
    rows = [[row[place] for place in kept] for row in one.rows]
    return [one.title, *table(header, rows, left={*one.header[: one.label_columns], *one.text_columns})]


FILES_OF_PASSES = {"trace": "traces for ui.perfetto.dev", "snapshot": "snapshots for pytorch.org/memory_viz"}


def _folders(cells: Sequence[CaseRow]) -> Iterable[tuple[str, str]]:
    """Each kind of file, and a folder beside the record that holds some."""
    paths = ((kind, cell.info.get(kind)) for kind in FILES_OF_PASSES for cell in cells)
    return dict.fromkeys((kind, path.partition("/")[0]) for kind, path in paths if isinstance(path, str) and path)


def remarks(cell: CaseRow) -> list[str]:
    """Sentences on what a pass found of one case: what it lacks, what contradicts itself, its flags."""
    lacking = (cell.info.get(name) for name in ("trace_reason", "left_out", "snapshot_reason"))
    said = [reason for reason in lacking if isinstance(reason, str)]
    if "kernels" in cell.info:
        wrong = misshapen(cell.info, KERNEL_VALUES, "it")
        said += [f"its values are damaged: {wrong}"] if wrong else inconsistencies(cell.info)
    return said + [FLAGS[flag].sentence for flag in cell.flags if flag in FLAGS and flag != SHORT_WARMUP]


def missing_parts(values: Json) -> list[str]:
    """Why there is no trace file, and what the trace lacks."""
    return [values[name] for name in ("trace_reason", "left_out") if values.get(name)]


FIT: tuple[Column[Fit], ...] = (
    text_column(
        "attention alone, float32 numbers for each of the batch",
        lambda fit: f"{fit.implementation} {fit.precision}, {fit.quantity}",
    ),
    Column("k", int, "", lambda fit: fit.squares),
    Column("c", float, "", lambda fit: fit.tensors, own_unit=Unit("{:.2f}".format)),
    Column("remainder", float, "", lambda fit: fit.worst_remainder, own_unit=SHARE),
    Column("cells", int, "", lambda fit: fit.cells),
)
