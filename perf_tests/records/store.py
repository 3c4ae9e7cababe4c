"""Records on disk: `.benchmarks/<machine>/<number>_<name>.json`, each written whole or not at all."""

import errno
import json
import os
import platform
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from statistics import median
from typing import Any, cast

from perf_tests.hardware.limits import Link, bus_share, fit_link
from perf_tests.phases import is_collective
from perf_tests.records.record import (
    OUTCOMES,
    Json,
    Times,
    identity_of,
    ids_of,
    machine_differences,
    parts_of,
    run_of,
    timing_outcomes,
    why_not_a_record,
    without_nan,
    without_path,
)

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
    """At least 95 %, for these two launches only: another launch may differ by more."""
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
    """Of each case that was to be timed, its timing or its outcome."""
    timed = {row["fullname"]: row for row in record["benchmarks"]}
    return timed | {row["id"]: row for row in timing_outcomes(record)}


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
    difference = identity_difference(before, now)
    if difference:
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


# The records of a verb: those that the user named, or all that are stored.


def chosen_paths(storage: Path, asked: Sequence[str]) -> list[Path]:
    """Files that match any of the words, each once; without words every file of the storage.

    A word is a path, a folder of records, or the beginning of a name: `0003`, `epyc-2core/0003`.
    Raises ValueError with one sentence where a word matches nothing, or nothing is stored.
    """
    stored = sorted(storage.glob("*/*.json"))
    if not asked:
        if not stored:
            raise ValueError(f"{storage} holds no record; `pytest perf_tests` records a run.")
        return stored
    return list(dict.fromkeys(path for word in asked for path in _fitting(stored, storage, word)))


def _fitting(stored: Sequence[Path], storage: Path, word: str) -> list[Path]:
    is_folder = False
    try:
        if Path(word).is_file():
            return [Path(word)]
        if is_folder := Path(word).is_dir():
            found = sorted([*Path(word).glob("*.json"), *Path(word).glob("*/*.json")])
        else:
            found = [path for path in stored if path.name.startswith(word) or name_of(path).startswith(word)]
    except (OSError, ValueError):  # too long for a path, or with a null character in it
        found = []
    if not found:
        if is_folder:
            raise ValueError(f"{word} is a folder without records.")
        known = ", ".join(map(name_of, stored[-10:])) or "none"
        raise ValueError(f"{word!r} matches no record under {storage}; the last ones stored there: {known}.")
    return found


def newest(records: Iterable[StoredRecord]) -> StoredRecord | None:
    """The last one written; of two with one date, the last given."""
    by_date = sorted(records, key=lambda record: str(record.data.get("datetime")))
    return by_date[-1] if by_date else None


# The shards of one grid, measured on like machines, joined into one record.


@dataclass(frozen=True)
class Shard:
    record: StoredRecord
    share: int
    """Counted from 1."""
    shares: int
    place: dict[str, int]
    """Of each selected case in the whole grid."""

    @property
    def suite(self) -> Json:
        suite: Json = self.record.data["suite"]
        return suite


def merged(records: Sequence[StoredRecord]) -> Json:
    """One record of the whole grid, in its order.

    Raises ValueError with one sentence where the records are not all shards of one grid, each once.
    """
    shards = sorted(map(_shard, each_run_once(records)), key=lambda shard: shard.share)
    first = shards[0]
    for shard in shards[1:]:
        _refuse_another_run(first, shard)
    _refuse_an_incomplete_set(shards)
    place = {case_id: place for shard in shards for case_id, place in shard.place.items()}

    def rows(kind: str, name: str) -> list[Json]:
        found = [row for shard in shards for row in shard.record.data.get(kind, [])]
        return sorted(found, key=lambda row: place[row[name]])

    suite = {
        **first.suite,
        "settings": _settings(first),
        "selection": sorted(place, key=lambda case_id: place[case_id]),
        "places": None,
        "started": min(str(shard.suite.get("started")) for shard in shards),
        "other_drivers": sorted({str(driver) for shard in shards for driver in shard.suite.get("other_drivers") or []}),
        "run": None,
        "merged_from": [shard.record.name for shard in shards],
        "merged_runs": [run_of(shard.record.data) for shard in shards],
    }
    record: Json = {
        **first.record.data,
        "benchmarks": rows("benchmarks", "fullname"),
        "outcomes": rows("outcomes", "id"),
        "passes": rows("passes", "id"),
        "datetime": max(str(shard.record.data.get("datetime")) for shard in shards),
        "suite": suite,
    }
    return cast(Json, without_nan(record))


def _shard(record: StoredRecord) -> Shard:
    suite = record.data["suite"]
    try:
        share, shares = suite["settings"]["shard"]
        selection, places = suite["selection"], suite["places"]
        place = dict(zip(selection, places, strict=True))
        rows = {row["fullname"] for row in record.data["benchmarks"]}
        rows |= {row["id"] for kind in ("outcomes", "passes") for row in record.data.get(kind, [])}
        is_whole = rows == place.keys() and all(type(number) is int for number in (share, shares, *places))
        is_whole = is_whole and isinstance(suite.get("other_drivers") or [], list)
    except (KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{record.name} is no whole shard; merge joins the records of runs with --shard.")
    return Shard(record, share, shares, place)


def _refuse_another_run(first: Shard, other: Shard) -> None:
    names = f"{first.record.name} and {other.record.name}"
    machines = (first.record.data["machine_info"], other.record.data["machine_info"])
    differences = "; ".join(machine_differences(*machines))
    if differences:
        raise ValueError(f"{names} differ in machine or build: {differences}.")
    facts: dict[str, Callable[[Shard], Any]] = {
        "commit": lambda shard: (shard.record.data.get("commit_info") or {}).get("id"),
        "code": lambda shard: shard.suite.get("source"),
        "number of shards": lambda shard: shard.shares,
    }
    for name, fact in facts.items():
        if fact(first) != fact(other):
            raise ValueError(f"{names} differ in {name}: {fact(first)!r} and {fact(other)!r}.")
    here, there = _settings(first), _settings(other)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise ValueError(f"{names} differ in the setting {name}: {here.get(name)!r} and {there.get(name)!r}.")


def _settings(shard: Shard) -> Json:
    """Without the share, and without the number of a GPU, which shards on one host differ in."""
    settings = shard.suite["settings"]
    return {**settings, "shard": None, "device": str(settings.get("device")).partition(":")[0]}


def _refuse_an_incomplete_set(shards: Sequence[Shard]) -> None:
    shares = shards[0].shares
    for one, other in combinations(shards, 2):
        if one.share == other.share:
            raise ValueError(f"{one.record.name} and {other.record.name} are both shard {one.share}/{shares}.")
        twice = sorted(one.place.keys() & other.place.keys())
        if twice:
            raise ValueError(f"{one.record.name} and {other.record.name} both hold {twice[0]}.")
    given = {shard.share for shard in shards}
    missing = (f"{share}/{shares}" for share in range(1, shares + 1) if share not in given)
    if names := ", ".join(islice(missing, 8)):
        raise ValueError(f"Beside {shards[0].record.name}, of {shares} shards {names} is missing; name its record too.")
    places = sorted(place for shard in shards for place in shard.place.values())
    if places != list(range(len(places))):
        raise ValueError(f"The shards beside {shards[0].record.name} are of different grids: their places do not join.")


# The links between the ranks of a run: one for each collective and number of ranks, of its rows.


@dataclass(frozen=True)
class CollectiveLink:
    """Between the ranks of one machine, for one collective."""

    collective: str
    world: int
    backend: str
    sizes: int
    link: Link

    @property
    def bus_bytes_per_second(self) -> float:
        """Of long messages."""
        return self.link.bytes_per_second * float(bus_share(self.collective, self.world))

    @property
    def row(self) -> Json:
        """As the record holds it, flat."""
        own = {"collective": self.collective, "world": self.world, "backend": self.backend, "sizes": self.sizes}
        return {**own, **asdict(self.link), "bus_bytes_per_second": self.bus_bytes_per_second}


def links_of(rows: Sequence[Json]) -> list[CollectiveLink]:
    """Of the medians of all sizes, in the rows' order; none for one rank, which sends nothing."""
    fitted = ((of, points, fit_link(points)) for of, points in _messages(rows).items())
    return [CollectiveLink(*of, len(points), link) for of, points, link in fitted if link is not None]


def without_link(rows: Sequence[Json]) -> list[str]:
    """`all_reduce world2` of each collective among ranks whose sizes show no rate: only one, or times that shrink."""
    return [f"{name} world{world}" for (name, world, _), points in _messages(rows).items() if fit_link(points) is None]


def _messages(rows: Sequence[Json]) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """(bytes, median seconds) by collective, world and backend."""
    messages: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        info = row["extra_info"]
        if is_collective(info) and info["world"] > 1:
            of = info["collective"], info["world"], info["backend"]
            messages[of].append((info["exchanged_bytes"], median(row["stats"]["data"])))
    return messages


# Scaling efficiency: tokens per second and rank, over those of a row with fewer ranks or of one device.


OF_THE_WAY = ("parallel", "bucket_bytes", "reshard", "reduce_dtype", "backend")
OF_THE_NUMBER = ("world", "nodes", "mesh", "scaling", "global_batch_size", "per_rank_batch_size")


@dataclass(frozen=True)
class Scaling:
    """Of one row."""

    efficiency: float
    """1 where each rank does as much in a second as in the row it is relative to."""
    relative_to: str
    """Node id of that row."""


def scalings(rows: Sequence[Json]) -> Iterator[tuple[Json, Scaling]]:
    """Each row of several ranks that has a row to be relative to. All rows must be of one machine."""
    for row in rows:
        base = _base(row, rows)
        if base is not None:
            yield row, Scaling(_rate_of_a_rank(row) / _rate_of_a_rank(base), base["fullname"])


def _base(row: Json, rows: Sequence[Json]) -> Json | None:
    """The same way on one rank, else one device, else the same way and scaling on the fewest ranks."""
    identity = identity_of(row)
    if identity.get("parallel") is None:
        return None
    ways: list[tuple[int, int, Json]] = []
    for other in rows:
        there = identity_of(other)
        world = there["world"] or 1
        if not _agree(identity, there, (*OF_THE_WAY, *OF_THE_NUMBER)) or _rate_of_a_rank(other) == 0.0:
            continue
        if there["parallel"] is None:
            ways.append((1, world, other))
            continue
        is_like = world == 1 or there["scaling"] == identity["scaling"]
        if is_like and world < identity["world"] and _agree(identity, there, OF_THE_NUMBER):
            ways.append((0 if world == 1 else 2, world, other))
    return min(ways, key=lambda way: way[:2], default=(0, 0, None))[2]


def _agree(here: Json, there: Json, except_for: Sequence[str]) -> bool:
    return all(there.get(name) == value for name, value in here.items() if name not in except_for)


def _rate_of_a_rank(row: Json) -> float:
    info = row["extra_info"]
    rate = info.get("tokens_per_second")
    return float(rate) / (info.get("world") or 1) if isinstance(rate, int | float) else 0.0
