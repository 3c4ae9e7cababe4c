"""Records on disk: `.benchmarks/<machine>/<number>_<name>.json`, each written whole or not at all.

Listed, found by what a user typed, compared case by case, and chosen as the baseline of a run.
"""

import errno
import fcntl
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import compress
from pathlib import Path
from typing import IO

from perf_tests_suite.perf_tests.phases import UsageError
from perf_tests_suite.perf_tests.records import record as recorded
from perf_tests_suite.perf_tests.records.format import printable
from perf_tests_suite.perf_tests.records.record import (
    OUTCOMES,
    Json,
    Times,
    identity_of,
    machine_differences,
    run_of,
    without_path,
)

ENDINGS = (".json", ".json.xz")
"""How a record's file name ends. One that is kept for long may be packed, to a tenth."""

READERS_OF_OTHERS = {
    **dict.fromkeys((".csv", ".tsv"), "; `audit` reads tables of timings"),
    ".jsonl": "; a journal becomes a record once its run is resumed with --resume, and `replay` reads a gate's samples",
}
"""What to do with a file that is no record, by the suffix of its name."""

UNFINISHED = ".unfinished-"
"""Begins the names of files that are being written; the writer's process id follows."""

DIRTY = "-dirty"
"""Ends the name of a run whose working tree had uncommitted changes."""

LARGE_BYTES = 50_000_000
"""The size of a record of about a million rounds, which takes seconds to read."""

MOST_UNPACKED_BYTES = 1_000_000_000
"""What a packed record may hold: a stranger's file must not fill the memory."""


# Reading records.


@dataclass(frozen=True)
class StoredRecord:
    path: Path
    data: Json

    @property
    def name(self) -> str:
        return record_name(self.path)


def record_name(path: Path) -> str:
    """The name of the record's folder and its own, also of a path without a folder."""
    return f"{path.absolute().parent.name}/{path.name.removesuffix('.xz').removesuffix('.json')}"


def record_files(folder: Path, name: str = "*/*") -> list[Path]:
    """The files below the folder that are named as records, sorted; `name` is a pattern without the ending."""
    if not os.path.isdir(folder):  # or one that may not be looked at, where `Path.glob` fails
        return []
    return sorted(path for ending in ENDINGS for path in folder.glob(f"{name}{ending}"))


def read_record(path: Path) -> StoredRecord:
    """The record at `path`; raises ValueError with one sentence for an unreadable or other file."""
    try:
        if path.is_fifo():
            raise ValueError("it is a pipe, for whose writer a reader might wait for ever; write a file first")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    content = recorded.unpacked(path, MOST_UNPACKED_BYTES)
    try:
        data = json.loads(content)
    except json.JSONDecodeError as error:
        others = READERS_OF_OTHERS.get(path.suffix.casefold(), "")
        raise ValueError(f"{path} cannot be read: it is not JSON, as records are ({error}){others}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    if reason := recorded.why_not_a_record(data):
        raise ValueError(f"{path} cannot be used: {reason}.")
    return StoredRecord(path, data)


def each_readable(paths: Iterable[Path], left_out: list[str]) -> Iterator[StoredRecord]:
    """Records one at a time, to save memory; a sentence for each other file goes to `left_out`."""
    for path in paths:
        try:
            yield read_record(path)
        except ValueError as error:
            left_out.append(str(error))


@dataclass(frozen=True)
class Listing:
    """The records of a storage folder, oldest first; `left_out` has a sentence for each other file."""

    records: list[StoredRecord]
    left_out: list[str]


def list_records(storage: Path) -> Listing:
    """Every record of the storage, each run once."""
    left_out: list[str] = []
    records = each_run_once(list(each_readable(record_files(storage), left_out)))
    records.sort(key=lambda record: str(record.data.get("datetime")))
    return Listing(records, left_out)


def each_run_once(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """Leave out the shards that a merged record among them holds, and a run that was saved before."""
    runs = ((record.name, run_of(record.data)) for record in records)
    counts = which_count(runs, set[str]().union(*(recorded.parts_of(record.data) for record in records)))
    return list(compress(records, counts))


def which_count(runs: Iterable[tuple[str, str | None]], parts: set[str]) -> Iterator[bool]:
    """Whether each record, by its name and its run, is neither one of `parts` nor a run that was saved before."""
    counted: set[str | None] = {*parts}
    for name, run in runs:
        yield name not in counted and run not in counted
        counted |= {run} - {None}


def saved_as(folder: Path, run: str) -> Path | None:
    """The record of a run that is saved already."""
    records = each_readable(reversed(record_files(folder, "*")), [])
    return next((record.path for record in records if run_of(record.data) == run), None)


def machine_folder(storage: Path) -> Path:
    """The folder of this interpreter's runs, with pytest-benchmark's name, so that its tools find them."""
    python = ".".join(platform.python_version_tuple()[:2])
    bits = platform.architecture()[0]
    return storage / f"{platform.system()}-{platform.python_implementation()}-{python}-{bits}"


# The files that a user named, and what is said of them.


def chosen_paths(storage: Path, asked: Sequence[str]) -> list[Path]:
    """Files that match any of the words, each once; without words every file of the storage.

    A word is a path, a folder of records, or the beginning of a name: `0003`, `epyc-2core/0003`.
    Raises ValueError with one sentence where a word matches nothing, or nothing is stored.
    """
    stored = record_files(storage)
    if not asked:
        if not stored:
            raise ValueError(f"{storage} holds no record; `perf-tests run` records one.")
        return stored
    return list(dict.fromkeys(path for word in asked for path in _fitting(stored, storage, word)))


def _fitting(stored: Sequence[Path], storage: Path, word: str) -> list[Path]:
    is_folder = False
    try:
        if Path(word).is_file():
            return [Path(word)]
        if is_folder := Path(word).is_dir():
            found = [*record_files(Path(word), "*"), *record_files(Path(word))]
        else:
            found = [path for path in stored if path.name.startswith(word) or record_name(path).startswith(word)]
    except (OSError, ValueError):  # too long for a path, or with a null character in it
        found = []
    if not found:
        if is_folder:
            raise ValueError(f"{word} is a folder without records.")
        known = ", ".join(map(record_name, stored[-10:])) or "none"
        raise ValueError(f"{word!r} matches no record under {storage}; the last ones stored there: {known}.")
    return found


def newest(records: Iterable[StoredRecord]) -> StoredRecord | None:
    """The last one written; of two with one date, the last given."""
    by_date = sorted(records, key=lambda record: str(record.data.get("datetime")))
    return by_date[-1] if by_date else None


def announced(paths: Iterable[Path]) -> Iterator[Path]:
    """The same paths, with a line on standard error before each large file."""
    for path in paths:
        size_bytes = path.stat().st_size if os.path.isfile(path) else 0  # else its reader says what is wrong
        if size_bytes >= LARGE_BYTES:
            print(f"Reading {printable(path)}, {size_bytes / 1e6:.0f} MB ...", file=sys.stderr, flush=True)
        yield path


def print_left_out(sentences: Iterable[str], words: Sequence[str]) -> None:
    """Say on standard error why files are left out; `words` are the files as they were typed."""
    for sentence in sentences:
        print(f"Left out: {printable(as_typed(sentence, words))}", file=sys.stderr)


def as_typed(sentence: str, words: Iterable[str]) -> str:
    """The sentence with the paths that it names as the words have them: `Path` drops a leading `./`."""
    for word in words:
        typed = word.partition("=")[2] if word.startswith("-") else word
        if typed.startswith("./") and typed not in sentence:
            whole = rf"(?<![\w./-]){re.escape(str(Path(typed)))}(?![\w/-]|\.\w)"
            sentence = re.sub(whole, typed.replace("\\", r"\\"), sentence, count=1)
    return sentence


# Writing records and other files.


def strict_json(data: object, indent: int | None = 1) -> str:
    """The data as JSON that every program reads: Python's own would write NaN and Infinity as they are."""
    return json.dumps(recorded.without_nan(data), allow_nan=False, indent=indent)


def encoded(record: Json) -> bytes:
    """One line for each row of a list and for every other part: a third less than indented, and as easy to compare."""

    def lines(part: object) -> str:
        if not (isinstance(part, list) and part):
            return json.dumps(part, allow_nan=False)
        return "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in part) + "\n]"

    parts = (f"{json.dumps(name)}: {lines(part)}" for name, part in record.items())
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def save_record(record: Json, folder: Path, name: str) -> Path:
    """Write the record under the next free number; raises OSError and leaves nothing behind when that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with _written_aside(folder, encoded(record)) as temporary:
        number = max((int(path.name[:4]) for path in record_files(folder, "[0-9][0-9][0-9][0-9]_*")), default=0)
        while True:
            number += 1
            if record_files(folder, f"{number:04}_*"):
                continue
            target = folder / f"{number:04}_{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.json"
            with suppress(FileExistsError):
                _link(temporary, target)
                return target


def _link(source: Path, target: Path) -> None:
    """Give `source` its final name; raises FileExistsError rather than overwrite, as a rename would, a new record."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV):
            raise
        # A file system without links: reserve the name with an empty file.
        target.open("xb").close()
        os.replace(source, target)


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at `path`, or that it links to, in one step; a device or a pipe, such as /dev/null, stays.

    Raises OSError and leaves the old file as it was when that fails.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = Path(os.path.realpath(path))
        with _written_aside(target.parent, content) as temporary:
            os.replace(temporary, target)
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_named(named: str, content: bytes, option: str = "-o") -> None:
    """Write a file that a user named, whole or not at all; raises UsageError, as for a file that was read."""
    if recorded.was_read(Path(named)):
        raise UsageError(f"{named} is what was read, and would be lost; name another file with {option}.")
    try:
        write_whole(Path(named), content)
    except OSError as error:
        raise UsageError(
            f"{named} cannot be written: {without_path(error)}; name another file with {option}."
        ) from error


@contextmanager
def _written_aside(folder: Path, content: bytes) -> Iterator[Path]:
    """A temporary file with `content`, synced to disk; removed in the end unless it was moved."""
    remove_unfinished(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{UNFINISHED}{os.getpid()}-", delete=False) as file:
        temporary = Path(file.name)
        try:
            take_lock(file)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of their writing."""
    for path in folder.glob(f"{UNFINISHED}*"):
        writer = re.match(r"\d+", path.name.removeprefix(UNFINISHED))
        if writer is not None and not is_alive(int(writer[0])) and not is_locked(path):
            with suppress(OSError):  # another user's
                path.unlink(missing_ok=True)


# A container numbers its processes for itself, and so does each host of a shared folder: a number alone would call the
# writers of another one dead. A lock on the file ends with its process wherever that runs.


def take_lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; returns whether no other process holds it.

    A file system without locks, as some network folders are, is taken for one that nobody else writes to.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the file's lock."""
    try:
        with path.open("rb") as file:
            return not take_lock(file)
    except OSError:
        return False


def is_alive(process: int) -> bool:
    """Whether this host, or container, has such a process."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


# Two runs side by side, case by case: the ratio of medians, or why there is none.


class Status(StrEnum):
    MEASURED = "measured in both"
    NEW = "new"
    GONE = "gone"
    NO_LONGER = "no longer measured"
    MEASURED_NOW = "measured now, not before"
    NEVER = "measured in neither"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True)
class ComparedCase:
    """One case of either run. `ratio` is now over before: 1.05 takes 5 % longer."""

    id: str
    status: Status
    now_seconds: float | None = None
    before_seconds: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    """The ratio's, of at least 95 % and for these two launches only: another launch may differ by more."""
    explanation: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the case was measured before and has no figure now."""
        return self.status in (Status.GONE, Status.NO_LONGER)


def compare(before: Json, now: Json, gone_counts: bool = True) -> list[ComparedCase]:
    """A row for every case of either record; without `gone_counts`, cases only in `before` are left out."""
    rows_before, rows_now = rows_by_id(before), rows_by_id(now)
    ids = [*rows_now, *(case_id for case_id in rows_before if gone_counts and case_id not in rows_now)]
    return [_compared(case_id, rows_before.get(case_id), rows_now.get(case_id)) for case_id in ids]


def rows_by_id(record: Json) -> dict[str, Json]:
    """The timing or the outcome of each case that was to be timed."""
    timed = {row["fullname"]: row for row in record["benchmarks"]}
    return timed | {row["id"]: row for row in recorded.timing_outcomes(record)}


def _compared(case_id: str, before: Json | None, now: Json | None) -> ComparedCase:
    times_now, times_before = _times(now), _times(before)
    now_seconds, before_seconds = (None if times is None else times.median for times in (times_now, times_before))
    is_now = f"now {OUTCOMES[now['outcome']]}: {now['reason']}" if now is not None and now_seconds is None else ""
    was = f"{OUTCOMES[before['outcome']]} before" if before is not None and before_seconds is None else ""
    row = partial(ComparedCase, case_id, now_seconds=now_seconds, before_seconds=before_seconds)
    if now is None:
        if was:
            return row(Status.NEVER, explanation=f"{was}, and not part of this run")
        return row(Status.GONE, explanation="not part of this run")
    if before is None:
        return row(Status.NEW, explanation=is_now)
    if before_seconds is None:
        return row(Status.NEVER, explanation=is_now) if is_now else row(Status.MEASURED_NOW, explanation=was)
    if difference := identity_difference(before, now):
        return row(Status.INCOMPARABLE, before_seconds=before_seconds if is_now else None, explanation=difference)
    if times_now is None or times_before is None:
        return row(Status.NO_LONGER, explanation=is_now)
    interval = ratio_interval(times_now, times_before)
    return row(Status.MEASURED, ratio=times_now.median / times_before.median, interval=interval)


def _times(row: Json | None) -> Times | None:
    return None if row is None or "stats" not in row else Times.of(row["stats"]["data"])


def identity_difference(before: Json, now: Json) -> str:
    """The identity fields in which two rows of one id differ; empty if they agree."""
    fields_before, fields_now = identity_of(before), identity_of(now)
    return ", ".join(
        f"{name} was {fields_before.get(name)!r}, is {fields_now.get(name)!r}"
        for name in dict.fromkeys((*fields_before, *fields_now))
        if fields_before.get(name) != fields_now.get(name)
    )


def ratio_interval(now: Times, before: Times) -> tuple[float, float] | None:
    """An interval of at least 95 % for the ratio of two medians; None with too few rounds for one.

    Order statistics enclose each median at 97.5 %, so both hold at 95 % (Bonferroni), for any distribution of
    independent rounds: David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    around_now, around_before = now.median_interval(0.975), before.median_interval(0.975)
    if around_now is None or around_before is None:
        return None
    return around_now[0] / around_before[1], around_now[1] / around_before[0]


# The record that a run is compared with.


class BaselineError(Exception):
    """The requested baseline cannot be used; the message is one sentence for the user."""


def latest_baseline(
    records: Sequence[StoredRecord], machine_info: Json, selection: Mapping[str, Json]
) -> StoredRecord | None:
    """The newest record of this machine and build with every case of `selection`, which holds identities by id.

    Where none has all, the newest with any of them; where all have other identities, the newest with any of the ids.
    In each case one that no other program disturbed goes before newer ones.
    """
    ours = [r for r in reversed(records) if not machine_differences(machine_info, r.data["machine_info"])]
    sharing = [record for record in ours if not selection or selection.keys() & recorded.ids_of(record.data)]
    comparable = {record.path: len(comparable_ids(record.data, selection)) for record in sharing}
    for fewest in (len(selection), 1, 0):
        if enough := [record for record in sharing if comparable[record.path] >= fewest]:
            return next((record for record in enough if not is_disturbed(record.data)), enough[0])
    return None


def is_disturbed(record: Json) -> bool:
    """Whether any case of the record was measured beside other programs that took its processors."""
    return any("busy_machine" in (row["extra_info"].get("flags") or ()) for row in record["benchmarks"])


def comparable_ids(record: Json, selection: Mapping[str, Json]) -> set[str]:
    """The cases of `selection` that the record holds with the same identity."""
    rows = rows_by_id(record)
    return {
        case_id
        for case_id, identity in selection.items()
        if case_id in rows and not identity_difference(rows[case_id], identity)
    }


def numbered_baseline(storage: Path, asked: str, machine_info: Json) -> StoredRecord:
    """The record that the user named by its number, path or the beginning of its name.

    Raises BaselineError where none or several match, or where it is broken or from another machine.
    """
    own, pattern = machine_folder(storage), asked if "/" in asked else f"*/{asked}"
    found = [Path(asked)] if Path(asked).is_file() else []
    if not found:
        with suppress(ValueError, NotImplementedError):  # an absolute path, or a pattern that is none
            found = record_files(storage, f"{pattern.removesuffix('*')}*")
        found = [path for path in found if path.parent == own] or found
    if len(found) > 1:
        names = ", ".join(map(record_name, found))
        raise BaselineError(f"--benchmark-compare={asked} matches several records ({names}); give more of the name.")
    if not found:
        known = ", ".join(record_name(path).rpartition("/")[2] for path in record_files(own, "*")) or "none"
        raise BaselineError(f"--benchmark-compare={asked} matches no record under {storage}; recorded here: {known}.")
    try:
        record = read_record(found[0])
    except ValueError as error:
        raise BaselineError(f"The baseline {error}") from error
    if differences := machine_differences(machine_info, record.data["machine_info"]):
        raise BaselineError(
            f"The baseline {record.name} was recorded on another machine, build or setting "
            f"({'; '.join(differences)}); times of the two cannot be compared. Record a baseline here first."
        )
    return record
