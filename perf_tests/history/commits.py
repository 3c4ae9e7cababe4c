"""Codes in the order in which they came to be, with date and subject out of git where it knows them."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perf_tests.history.launches import Launch
from perf_tests.records.grouped import grouped

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


@dataclass(frozen=True)
class Log:
    """What git says of its commits, from the oldest on; empty without git or in a repository without commits."""

    places: dict[str, int]
    dates: dict[str, str]
    """Never before a parent's: a clock that went backwards does not put a child in front of it."""
    subjects: dict[str, str]


def read_log(folder: Path) -> Log:
    """Every commit that the repository around `folder` holds, parents before children."""
    command = ["git", "-C", str(folder), "log", "--all", "--topo-order", "--reverse", f"--format={FIELDS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return Log({}, {}, {})
    rows = [line.split("\t", 2) for line in done.stdout.splitlines() if line.count("\t") >= 2]
    latest, dates = "", {}
    for commit, date, _ in rows:
        latest = max(latest, date, key=moment)
        dates[commit] = latest
    return Log({row[0]: place for place, row in enumerate(rows)}, dates, {row[0]: row[2] for row in rows})


def in_order(launches: Sequence[Launch], log: Log) -> list[Code]:
    """One entry for each code: commits as git orders them, others by their date among them."""
    codes = [_code_of(found, log) for found in grouped(launches, lambda launch: launch.code).values()]
    return sorted(codes, key=lambda code: _place(code, log))


def _code_of(launches: Sequence[Launch], log: Log) -> Code:
    ordered = sorted(launches, key=lambda launch: (moment(launch.written), launch.name))
    first = ordered[0]
    name = (first.commit or first.code)[:12] + (" with changes" if first.is_dirty and first.commit else "")
    subject = "" if first.is_dirty else log.subjects.get(first.commit or "", "")
    is_missing = bool(log.places) and first.commit is not None and first.commit not in log.places
    return Code(name, first.commit, _date_of(first, log), subject, ordered, is_missing)


def _date_of(launch: Launch, log: Log) -> str:
    """A tree with changes is as old as its first run, at least as old as its commit."""
    committed = log.dates.get(launch.commit or "", launch.committed)
    return max(committed, launch.written, key=moment) if launch.is_dirty or not committed else committed


def _place(code: Code, log: Log) -> tuple[float, int, float]:
    return moment(code.date), log.places.get(code.commit or "", len(log.places)), moment(code.launches[0].written)


def moment(date: str) -> float:
    """Seconds since 1970 of an ISO 8601 date, in UTC where it names no zone; 0 where it is none."""
    try:
        found = datetime.fromisoformat(date)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
