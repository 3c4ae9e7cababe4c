"""The journal of a run: one line on disk for each finished case, before the next one starts.

First line: `{"header": ...}`. Then `{"started": id}`, `{"benchmark": row}`, `{"outcome": row}`, `{"pass": row}`;
`{"process": id}` where a process opens it, `{"again": id}` where the starts and outcomes of a case before no longer
count, `{"driver": version}` where another driver resumes.
A process that dies leaves at most a torn last line and what faulthandler writes below it; the file is removed once its
record is written.
"""

import faulthandler
import json
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from perf_tests_suite.perf_tests.records import record
from perf_tests_suite.perf_tests.records.record import (
    ANYTHING,
    COMMIT,
    MACHINE,
    NUMBER,
    ROWS,
    TEXT,
    Json,
    OrNull,
    Value,
)
from perf_tests_suite.perf_tests.records.store import is_alive, is_locked, take_lock

HEADER = {
    "settings": {}, "selection": [TEXT], "machine_info": MACHINE, "commit_info": COMMIT, "source": ANYTHING,
    "command": TEXT, "started": ANYTHING, "places?": OrNull([NUMBER]), "other_drivers?": [TEXT],
}  # fmt: skip
"""The shape of a journal's first line; optional: the places in the grid of a shard's selection, other drivers."""

WORD = Value(lambda row: isinstance(row, str | int), "a case, a process or a version")
"""What a line without a row holds."""

OF_PROCESS = re.compile(r"journal-\d{8}T\d{12}-(\d+)\.jsonl")
"""The name of a journal, with the process that created it."""

CRASH_LINE = re.compile(rb"^(?:Fatal Python error: (.*)|Timeout \(.*\)!)$", re.MULTILINE)
"""The first line of what faulthandler writes before a process ends: by a signal of its own, or because time is up."""

SMALL_STACK_BYTES = 2**18
"""The stack of a thread that calls no Python; 8 MiB would be missing in the budget of a case."""


@dataclass
class JournalContents:
    header: Json
    benchmarks: list[Json] = field(default_factory=list)
    outcomes: list[Json] = field(default_factory=list)
    passes: list[Json] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    """How often each case started."""
    last_started: str | None = field(default=None, compare=False)
    process: int | None = field(default=None, compare=False)
    """The process that opened the journal last."""
    fatal_error: str | None = field(default=None, compare=False)
    """How the last process died, as Python names it, for example "Segmentation fault"."""
    out_of_time: bool = field(default=False, compare=False)
    """Whether faulthandler ended the last process."""

    def add(self, kind: str, row: Any) -> None:
        """Take in one line; raises KeyError for an unknown kind of line."""
        if kind == "started":
            self.starts[row] = self.starts.get(row, 0) + 1
            self.last_started = row
        elif kind == "process":
            self.process = row
        elif kind == "again":
            self.starts.pop(row, None)
            self.outcomes[:] = [outcome for outcome in self.outcomes if outcome["id"] != row]
        elif kind == "driver":
            others = self.header.setdefault("other_drivers", [])
            others += [] if row in others else [row]
        else:
            {"benchmark": self.benchmarks, "outcome": self.outcomes, "pass": self.passes}[kind].append(row)

    @property
    def finished_ids(self) -> set[str]:
        return {row["fullname"] for row in self.benchmarks} | {row["id"] for row in (*self.outcomes, *self.passes)}


class Journal:
    """An open journal, locked against every other process. Raises OSError when the disk refuses."""

    keeps = True
    """Whether what it is told, and files beside it, are kept."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._logs_crashes = False

    @classmethod
    def create(cls, folder: Path, header: Json) -> "Journal":
        folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        path = folder / f"journal-{stamp}-{os.getpid()}.jsonl"
        journal = cls(path, path.open("xb"))
        take_lock(journal._file)
        try:
            journal.write("header", header)
            journal.write("process", os.getpid())
        except OSError:
            journal.discard()
            raise
        return journal

    @classmethod
    def reopen(cls, path: Path) -> "Journal | None":
        """The journal of a dead run; None if its process is alive or has just completed it."""
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            return None
        if not take_lock(file) or not path.exists():
            file.close()
            return None
        file.seek(len(_whole_lines(path.read_bytes())))
        file.truncate()
        journal = cls(path, file)
        journal.write("process", os.getpid())
        return journal

    def log_crashes(self) -> None:
        """Name a signal that this process brings upon itself here, no longer on standard error."""
        faulthandler.enable(file=self._file)
        self._logs_crashes = True

    def end_process_after(self, seconds: float) -> None:
        """End it even where no Python code can run; `faulthandler.cancel_dump_traceback_later` calls it off."""
        before = threading.stack_size(SMALL_STACK_BYTES)
        with suppress(RuntimeError):  # no memory for a thread, and so for no case that takes long
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)
        threading.stack_size(before)

    def write(self, kind: str, row: Json | str | int) -> None:
        """Put one line on disk; raises OSError when it is full."""
        line = json.dumps(record.without_nan({kind: row}), allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._logs_crashes:
            faulthandler.disable()  # it would write into whatever file has this number next
        # A line that a full disk refused stays in the buffer and is refused again, which was reported already.
        with suppress(OSError):
            self._file.close()

    def discard(self) -> None:
        """Remove the journal, once its record is on disk."""
        self.path.unlink()
        self.close()


class SilentJournal(Journal):
    """The journal of a rank other than 0, which keeps no record: all goes nowhere, yet it ends its process in time."""

    keeps = False

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), Path(os.devnull).open("wb"))  # noqa: SIM115

    def write(self, kind: str, row: Json | str | int) -> None:
        pass

    def discard(self) -> None:
        self.close()


def read_journal(path: Path) -> JournalContents | None:
    """The contents of the journal at `path` without a torn last line; None without a header.

    Raises ValueError with one sentence for a file that is no journal or is damaged before its end.
    """
    content = path.read_bytes()
    lines = _whole_lines(content).splitlines()
    if not lines:
        return None
    try:
        header, *entries = (json.loads(line) for line in lines)
        if wrong := record.misshapen(header["header"], HEADER, "its header"):
            raise ValueError(wrong)
        known = (name.removesuffix("?") for name in HEADER)
        contents = JournalContents({name: header["header"][name] for name in known if name in header["header"]})
        for entry in entries:
            ((kind, row),) = entry.items()
            if wrong := record.misshapen(row, ROWS.get(kind, WORD), kind):
                raise ValueError(wrong)
            contents.add(kind, row)
        if crash := CRASH_LINE.search(content):
            contents.out_of_time = crash[1] is None
            contents.fatal_error = (crash[1] or b"").decode(errors="replace") or None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a journal of this suite, or is damaged: {error!r}.") from error
    return contents


def unfinished_journals(storage: Path) -> list[Path]:
    """Journals below `storage`, newest first; one may belong to a running process."""
    found = (path for path in storage.glob("*/journal-*.jsonl") if path.is_file())
    return sorted(found, key=lambda path: path.name, reverse=True)


def remove_headless(folder: Path) -> None:
    """Remove journals of processes that were killed before they wrote the first line."""
    for path in folder.glob("journal-*.jsonl"):
        named = OF_PROCESS.fullmatch(path.name)
        with suppress(OSError):  # another user's, or gone meanwhile
            is_dead = named and not is_alive(int(named[1])) and not is_locked(path)
            if is_dead and not _whole_lines(path.read_bytes()):
                path.unlink()


def _whole_lines(content: bytes) -> bytes:
    crash = CRASH_LINE.search(content)
    content = content if crash is None else content[: crash.start()]
    return content[: content.rfind(b"\n") + 1]
