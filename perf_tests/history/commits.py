"""What a history needs of a record: for each timed case its median, its counters, and the machine's speed beside it."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from statistics import median

from perf_tests_suite.perf_tests.records import record as recorded
from perf_tests_suite.perf_tests.records.record import (
    COMPARED_COUNTERS,
    NO_COMMIT,
    Json,
    Times,
    code_of,
    grouped,
    identity_of,
)
from perf_tests_suite.perf_tests.records.store import StoredRecord, which_count

Identity = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Figure:
    """One case in one launch."""

    identity: Identity
    seconds: float
    sentinel_seconds: float | None
    """The time of the product that no change of the code affects, around this case; None in older records."""
    counters: dict[str, int]
    compile_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by cache and part, such as `cold forward`."""


@dataclass(frozen=True)
class Launch:
    """One recorded run."""

    name: str
    code: str
    """The commit, or the digest of code that is in none; two launches of one code are equal here."""
    commit: str | None
    is_dirty: bool
    written: str
    """The moments at which the run was saved and its commit was made: ISO 8601, empty where unknown."""
    committed: str
    figures: dict[str, Figure] = field(repr=False)
    outcomes: dict[str, str] = field(default_factory=dict)
    """The outcome of each case that has no timing here, by its id."""
    path: Path = Path()

    @property
    def has_cases(self) -> bool:
        """Whether it timed any, or failed to; a run of passes alone has none."""
        return bool(self.figures or self.outcomes)


@dataclass
class Machine:
    """Launches whose times compare: one machine, build and setting."""

    record: Json
    """Facts of its first record, without the cases."""
    launches: list[Launch] = field(default_factory=list)


def machines_of(records: Iterable[StoredRecord]) -> list[Machine]:
    """Launches by machine, each run once, and none of a merged record's shards."""
    machines: list[Machine] = []
    found: list[tuple[Machine, Launch, str | None]] = []
    merged: set[str] = set()
    identities: dict[Identity, Identity] = {}
    for record in records:
        data = record.data
        merged |= recorded.parts_of(data)
        info, commit = data["machine_info"], data.get("commit_info") or {}
        identifier = str(commit.get("id") or "")
        for machine in machines:
            facts = machine.record["machine_info"]
            if facts == info or not recorded.machine_differences(info, facts):
                break
        else:
            machine = Machine({name: data.get(name) for name in ("machine_info", "datetime")})
            machines.append(machine)
        launch = Launch(
            record.name, code_of(data), None if identifier in NO_COMMIT else identifier, bool(commit.get("dirty")),
            str(data.get("datetime") or ""), str(commit.get("time") or ""),
            {row["fullname"]: _figure_of(row, identities) for row in data["benchmarks"]},
            {row["id"]: row["outcome"] for row in recorded.timing_outcomes(data)}, record.path,
        )  # fmt: skip
        found.append((machine, launch, recorded.run_of(data)))
    counts = which_count(((launch.name, run) for _, launch, run in found), merged)
    for machine, launch, _ in compress(found, counts):
        machine.launches.append(launch)
    return [machine for machine in machines if machine.launches]


def _figure_of(row: Json, identities: dict[Identity, Identity]) -> Figure:
    """Thousands of launches have the same few identities, so `identities` keeps each once."""
    info = row["extra_info"]
    identity = tuple(
        (name, value if value is None or isinstance(value, str | int | float) else str(value))  # a list has no hash
        for name, value in identity_of(row).items()
    )
    values = info.get("sentinel_seconds")
    around = [s for s in values if isinstance(s, float) and s > 0] if isinstance(values, list) else []
    counters = {name: info[name] for name in COMPARED_COUNTERS if isinstance(info.get(name), int)}
    sentinel_seconds = median(around) if around else None
    seconds = Times(row["stats"]["data"]).median
    parts, cache = info.get("compile_seconds"), info.get("compile_cache")
    of_parts = parts.items() if isinstance(parts, dict) and cache else ()
    to_compile = {f"{cache} {part}": s for part, s in of_parts if isinstance(s, float)}
    return Figure(identities.setdefault(identity, identity), seconds, sentinel_seconds, counters, to_compile)


# Codes in the order in which they came to be, with date and subject out of git where it knows them.


FIELDS = "%H%x09%cI%x09%s"


@dataclass(frozen=True)
class Code:
    """One state of the code and its launches, by the date of the run."""

    name: str
    """The abbreviated commit, marked where the tree had changes."""
    commit: str | None
    date: str
    """ISO 8601: of the commit, or of the first run where that is unknown."""
    subject: str
    """Empty where git does not know the commit."""
    launches: Sequence[Launch]
    is_missing: bool
    """Whether git knows commits, and not this one: the clone is shallow, or the commit is gone."""
    place: int = 0
    """Number among the codes of its era, by date."""


@dataclass(frozen=True)
class CommitLog:
    """What git says of its commits, from the oldest on; empty without git or in a repository without commits."""

    places: dict[str, int]
    dates: dict[str, str]
    """Never before a parent's: a clock that went backwards does not put a child in front of it."""
    subjects: dict[str, str]


def read_log(folder: Path) -> CommitLog:
    """Every commit that the repository around `folder` holds, parents before children."""
    command = ["git", "-C", str(folder), "log", "--all", "--topo-order", "--reverse", f"--format={FIELDS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return CommitLog({}, {}, {})
    rows = [line.split("\t", 2) for line in done.stdout.splitlines() if line.count("\t") >= 2]
    latest, dates = "", {}
    for commit, date, _ in rows:
        latest = max(latest, date, key=moment)
        dates[commit] = latest
    return CommitLog({row[0]: place for place, row in enumerate(rows)}, dates, {row[0]: row[2] for row in rows})


def read_line(folder: Path, since: str | None = None) -> tuple[list[str], int]:
    """HEAD and its first parents, from the oldest on, with the place of the revision `since`.

    Raises ValueError with one sentence outside of a repository and for a revision that is not on this line.
    """
    command = ["git", "-C", str(folder), "rev-list", "--first-parent", "--reverse", "HEAD"]
    typed = [*command[:3], "rev-parse", "--verify", "--quiet", "--end-of-options", f"{since}^{{commit}}"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found = subprocess.run(typed, capture_output=True, text=True).stdout.strip() if since is not None else line[0]
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(
            "Gate runs are ordered by the commits of their repository, and there is none here; run this in a clone."
        ) from error
    if found not in line:
        raise ValueError(
            f"--since {since} is not on the line of HEAD's first parents; name a commit of `git log --first-parent`."
        )
    return line, line.index(found)


def in_order(launches: Sequence[Launch], log: CommitLog) -> list[Code]:
    """One entry for each code: commits as git orders them, others by their date among them."""
    codes = [_code_of(found, log) for found in grouped(launches, lambda launch: launch.code).values()]
    places, unknown = log.places, len(log.places)
    codes.sort(
        key=lambda one: (moment(one.date), places.get(one.commit or "", unknown), moment(one.launches[0].written))
    )
    return [replace(code, place=place) for place, code in enumerate(codes)]


def _code_of(launches: Sequence[Launch], log: CommitLog) -> Code:
    ordered = sorted(launches, key=lambda launch: (moment(launch.written), launch.name))
    first = ordered[0]
    name = (first.commit or first.code)[:12] + (" with changes" if first.is_dirty and first.commit else "")
    subject = "" if first.is_dirty else log.subjects.get(first.commit or "", "")
    is_missing = bool(log.places) and first.commit is not None and first.commit not in log.places
    date = log.dates.get(first.commit or "", first.committed)
    if first.is_dirty or not date:  # a tree with changes is as old as its first run, at least as old as its commit
        date = max(date, first.written, key=moment)
    return Code(name, first.commit, date, subject, ordered, is_missing)


def moment(date: str) -> float:
    """Seconds since 1970 of an ISO 8601 date, in UTC where it names no zone; 0 where it is none."""
    try:
        found = datetime.fromisoformat(date)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
