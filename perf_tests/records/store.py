"""Records on disk: `.benchmarks/<machine>/<number>_<name>.json`, each written whole or not at all."""

import errno
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from perf_tests.records.compare import identity_difference, rows_by_id
from perf_tests.records.record import Json, ids_of, machine_differences, parts_of, run_of, why_not_a_record
from perf_tests.records.words import without_path

UNFINISHED = ".unfinished-"
"""Begins the names of files that are being written; the writer's process id follows."""

DIRTY = "-dirty"
"""Ends the name of a run whose working tree had uncommitted changes."""


class BaselineError(Exception):
    """The requested baseline cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class StoredRecord:
    path: Path
    data: Json

    @property
    def name(self) -> str:
        return name_of(self.path)


def name_of(path: Path) -> str:
    """Its folder's name and its own, also of a path without a folder."""
    return f"{path.absolute().parent.name}/{path.stem}"


@dataclass(frozen=True)
class Listing:
    """The records of a storage folder, oldest first; `left_out` has a sentence for each other file."""

    records: list[StoredRecord]
    left_out: list[str]


def own_folder(storage: Path) -> Path:
    """The folder of this interpreter's runs, with pytest-benchmark's name, so that its tools find them."""
    python = ".".join(platform.python_version_tuple()[:2])
    bits = platform.architecture()[0]
    return storage / f"{platform.system()}-{platform.python_implementation()}-{python}-{bits}"


def each_readable(paths: Iterable[Path], left_out: list[str]) -> Iterator[StoredRecord]:
    """Records one at a time, to save memory; a sentence for each other file goes to `left_out`."""
    for path in paths:
        try:
            yield read_record(path)
        except ValueError as error:
            left_out.append(str(error))


def each_run_once(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """Without the shards that a merged record among them holds, and without a run that was saved before."""
    counted = set[str | None]().union(*(parts_of(record.data) for record in records))
    kept = []
    for record in records:
        run = run_of(record.data)
        if record.name not in counted and run not in counted:
            kept.append(record)
            counted |= {run} - {None}
    return kept


def saved_as(folder: Path, run: str) -> Path | None:
    """The record of a run that is saved already."""
    records = each_readable(sorted(folder.glob("*.json"), reverse=True), [])
    return next((record.path for record in records if run_of(record.data) == run), None)


def list_records(storage: Path) -> Listing:
    left_out: list[str] = []
    records = each_run_once(list(each_readable(sorted(storage.glob("*/*.json")), left_out)))
    records.sort(key=lambda record: str(record.data.get("datetime")))
    return Listing(records, left_out)


def read_record(path: Path) -> StoredRecord:
    """The record at `path`; raises ValueError with one sentence for an unreadable or other file."""
    try:
        if path.is_fifo():
            raise ValueError("it is a pipe, for whose writer a reader might wait for ever; write a file first")
        data = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        others = "; `audit` reads tables of timings" if path.suffix.casefold() in (".csv", ".tsv") else ""
        raise ValueError(f"{path} cannot be read: it is no JSON, as records are ({error}){others}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    reason = why_not_a_record(data)
    if reason:
        raise ValueError(f"{path} cannot be used: {reason}.")
    return StoredRecord(path, data)


def encoded(record: Json) -> bytes:
    """One line for each row of a list and for every other part: a third less than indented, and as easy to compare."""
    parts = (f"{json.dumps(name)}: {_lines(part)}" for name, part in record.items())
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _lines(part: object) -> str:
    if not (isinstance(part, list) and part):
        return json.dumps(part, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in part) + "\n]"


def save_record(record: Json, folder: Path, name: str) -> Path:
    """Write the record under the next free number; raises OSError and leaves nothing behind when that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with _written_aside(folder, encoded(record)) as temporary:
        return _link_under_next_number(temporary, folder, name)


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


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes of this host left of their writing."""
    for path in folder.glob(f"{UNFINISHED}*"):
        writer = re.match(r"\d+", path.name.removeprefix(UNFINISHED))
        if writer is not None and not is_alive(int(writer[0])):
            with suppress(OSError):  # another user's
                path.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Whether this host has such a process."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


@contextmanager
def _written_aside(folder: Path, content: bytes) -> Iterator[Path]:
    """A temporary file with `content`, synced to disk; removed in the end unless it was moved."""
    remove_unfinished(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{UNFINISHED}{os.getpid()}-", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _link_under_next_number(source: Path, folder: Path, name: str) -> Path:
    """Give `source` its final name; a link, unlike a rename, cannot overwrite another run's new record."""
    number = max((int(path.name[:4]) for path in folder.glob("[0-9][0-9][0-9][0-9]_*.json")), default=0)
    while True:
        number += 1
        target = folder / f"{number:04}_{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.json"
        if any(folder.glob(f"{number:04}_*.json")):
            continue
        try:
            _link(source, target)
        except FileExistsError:
            continue
        return target


def _link(source: Path, target: Path) -> None:
    """Raises FileExistsError rather than overwrite; on a file system without links it goes through an empty file."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        target.open("xb").close()
        os.replace(source, target)


def latest_baseline(
    records: Sequence[StoredRecord], machine_info: Json, selection: Mapping[str, Json]
) -> StoredRecord | None:
    """The newest record of this machine and build with every case of `selection`, which holds identities by id.

    Where none has all, the newest with any of them; where all have other identities, the newest with any of the ids.
    """
    ours = [r for r in reversed(records) if not machine_differences(machine_info, r.data["machine_info"])]
    sharing = [record for record in ours if not selection or selection.keys() & ids_of(record.data)]
    covering = (record for record in sharing if len(comparable_ids(record.data, selection)) == len(selection))
    overlapping = (record for record in sharing if comparable_ids(record.data, selection))
    return next(covering, None) or next(overlapping, None) or next(iter(sharing), None)


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
    path = _path_of(storage, asked)
    try:
        record = read_record(path)
    except ValueError as error:
        raise BaselineError(f"The baseline {error}") from error
    differences = machine_differences(machine_info, record.data["machine_info"])
    if differences:
        raise BaselineError(
            f"The baseline {record.name} was recorded on another machine, build or setting "
            f"({'; '.join(differences)}); times of the two cannot be compared. Record a baseline here first."
        )
    return record


def _path_of(storage: Path, asked: str) -> Path:
    if Path(asked).is_file():
        return Path(asked)
    pattern = asked if "/" in asked else f"*/{asked}"
    own = own_folder(storage)
    try:
        found = sorted(storage.glob(f"{pattern.removesuffix('*')}*.json"))
    except (ValueError, NotImplementedError):  # an absolute path, or a pattern that is none
        found = []
    found = [path for path in found if path.parent == own] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(name_of, found))
        raise BaselineError(f"--benchmark-compare={asked} matches several records ({names}); give more of the name.")
    known = ", ".join(path.stem for path in sorted(own.glob("*.json"))) or "none"
    raise BaselineError(f"--benchmark-compare={asked} matches no record under {storage}; recorded here: {known}.")
