"""Nsight Systems' SQLite export, read into the same trace as PyTorch's own.

Schema: NVIDIA, "Nsight Systems Exporter", section "SQLite Schema Reference". An export has only the tables that it
fills, and columns differ between versions, so both are looked up first. A kernel belongs to the ranges of the thread
that launched it, at the moment of the launch: its time is the device's, projected on the range.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from perf_tests.records.record import Json
from perf_tests.records.shapes import NUMBER, misshapen
from perf_tests.traces.chrome_trace import ROUND, trace_of_events
from perf_tests.traces.kernel_events import Span, Trace

KERNELS, CALLS, RANGES, STRINGS = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds",
)  # fmt: skip
COPIES, MEMSETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"

DOMAIN = "transformer-perf-tests"
"""The NVTX domain of the suite's own ranges."""

_PUSH_POP = 59
_DOMAIN_CREATED = 75
# CUPTI, CUpti_ActivityMemcpyKind, as Kineto spells them.
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD"}
# The upper bits of a thread's number are its process.
_THREADS_OF_A_PROCESS = 2**24
_AUTOGRAD_RANGE = re.compile(r"^(?P<name>.+?), .*\bseq = (?P<number>\d{1,18})\b")


class RangeError(ValueError):
    """No range has the given name; the message is one sentence."""


def read_sqlite(path: Path, range_name: str | None = None) -> Trace:
    """The trace in `nsys export --type sqlite`'s database, of the suite's rounds or of the ranges named `range_name`.

    Raises RangeError where no range has that name, ValueError with one sentence where there is nothing to read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            events = list(_Database(database).events())
    except sqlite3.Error as error:
        raise ValueError(f"it is not a database of Nsight Systems: {error}") from error
    if not any(event["cat"] == "kernel" for event in events):
        raise ValueError(
            "it holds no kernels: nothing ran on a GPU while it captured, or CUDA was not traced (--trace=cuda,nvtx)"
        )
    return _narrowed(events, range_name)


def versions_of(path: Path) -> Json:
    """Versions of the program that wrote the database, from its metadata."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            reader = _Database(database)
            tables = [table for table in reader.columns if table.startswith("META_DATA_")]
            rows = [row for table in tables for row in reader.rows(table, "name", "value")]
    except sqlite3.Error:
        return {}
    return {str(name): str(value) for name, value in rows if "VERSION" in str(name).upper()}


class _Database:
    """The rows of an export, tables and columns that it lacks included."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self.columns = {
            name: {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(name)})")} for name in names
        }
        self.strings: dict[object, str] = {key: str(value) for key, value in self.rows(STRINGS, "id", "value")}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of the table; None for a missing column, no rows for a missing table."""
        if table not in self.columns:
            return
        chosen = ", ".join(_quoted(name) if name in self.columns[table] else "NULL" for name in columns)
        # Fetched whole: an error in the caller must not leave a cursor open.
        yield from self.database.execute(f"SELECT {chosen} FROM {_quoted(table)}").fetchall()

    def events(self) -> Iterator[Json]:
        yield from self._ranges()
        for name_id, times, thread, key in self._activities(CALLS, "globalTid", "nameId"):
            yield _event("cuda_runtime", self._text(name_id[0]), *times, thread, correlation=key)
        for names, times, _, key in self._activities(KERNELS, "globalPid", "demangledName", "shortName", "name"):
            name = next((self._text(name) for name in names if name is not None), "unnamed")
            yield _event("kernel", name, *times, 0, correlation=key)
        for (kind, size), times, _, key in self._activities(COPIES, "globalPid", "copyKind", "bytes"):
            name = _COPY_KINDS.get(kind, "Memcpy DtoD")
            yield _event("gpu_memcpy", name, *times, 0, correlation=key, bytes=size or 0)
        for (size,), times, _, key in self._activities(MEMSETS, "globalPid", "bytes"):
            yield _event("gpu_memset", "Memset", *times, 0, correlation=key, bytes=size or 0)

    def _activities(self, table: str, owner: str, *columns: str) -> Iterator[tuple[Any, tuple[int, int], Any, Any]]:
        """(values of `columns`, start and end, thread or process, key that joins a launch with its kernel)."""
        for start, end, of, correlation, *values in self.rows(table, "start", "end", owner, "correlationId", *columns):
            yield values, (start, end), of, (self._process(of), correlation)

    def _ranges(self) -> Iterator[Json]:
        """Ranges of the suite's domain and of autograd; without the suite's domain, all ranges."""
        rows = [
            (start, end, kind, text if text and isinstance(text, str) else self._text(text_id), thread, domain)
            for start, end, kind, text, text_id, thread, domain in self.rows(
                RANGES, "start", "end", "eventType", "text", "textId", "globalTid", "domainId"
            )
        ]
        ours = {domain for _, _, kind, text, _, domain in rows if kind == _DOMAIN_CREATED and text == DOMAIN}
        for start, end, kind, text, thread, domain in rows:
            if end is None or kind not in (_PUSH_POP, None):
                continue
            autograd = _AUTOGRAD_RANGE.match(text)
            if autograd is not None:
                number = {"Sequence number": int(autograd["number"])}
                yield _event("cpu_op", autograd["name"], start, end, thread, **number)
            elif not ours or domain in ours:
                yield _event("user_annotation", text, start, end, thread)

    def _process(self, number: object) -> int:
        """Each process numbers its launches from 0; older exports do not name a kernel's process."""
        knows = "globalPid" in self.columns.get(KERNELS, ())
        return number // _THREADS_OF_A_PROCESS if knows and isinstance(number, int) else 0

    def _text(self, value: object) -> str:
        """Names are ids into the table of strings; older exports hold the text itself."""
        if isinstance(value, str):
            return value
        if value is not None and STRINGS not in self.columns:
            raise ValueError(f"its names are ids into the table {STRINGS}, which is missing; export it again")
        return self.strings.get(value, "unnamed")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _event(cat: str, name: str, start_ns: int, end_ns: int, thread: object, **arguments: Any) -> Json:
    if wrong := misshapen([start_ns, end_ns, arguments.get("bytes", 0)], [NUMBER], "it"):
        raise ValueError(f"it is damaged: of {name[:60]!r} start, end or bytes is wrong: {wrong}")
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"cat": cat, "name": name, "tid": thread, **times, "args": arguments}


def _narrowed(events: list[Json], range_name: str | None) -> Trace:
    names = {event["name"] for event in events if event["cat"] == "user_annotation"}
    if range_name is not None and range_name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise RangeError(f"no range is named {range_name!r}; the report has {known}")
    if ROUND not in names:  # of another program: all of its capture is one round
        first, last = min(event["ts"] for event in events), max(event["ts"] + event["dur"] for event in events)
        events = [*events, {"cat": "user_annotation", "name": ROUND, "tid": None, "ts": first, "dur": last - first}]
    trace = trace_of_events(events)
    return trace if range_name in (None, ROUND) else _projected(trace, str(range_name))


def _projected(trace: Trace, range_name: str) -> Trace:
    """Only kernels launched in ranges of this name; each range spans its first to its last kernel."""
    ranges = [region for region in trace.regions if region.path[-1] == range_name]
    inside = [
        [kernel for kernel in trace.kernels if range_name in kernel.regions and region.holds(kernel.issued_us)]
        for region in ranges
        if trace.round_at(region.start_us) is not None
    ]
    inside = [kernels for kernels in inside if kernels]
    if not inside:
        raise RangeError(f"no kernel was launched in a range named {range_name!r}")
    return Trace(
        is_on_gpu=True,
        rounds=[Span(min(k.start_us for k in group), max(k.end_us for k in group)) for group in inside],
        kernels=[replace(kernel, launch=None) for group in inside for kernel in group],
        regions=trace.regions,
    )
