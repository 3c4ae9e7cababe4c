"""Accepted regressions: what the file of a repository, or of its base, accepts.

They stand in `.benchmarks/accepted.toml`, which is reviewed like any other change:

    [[accepted]]
    id = "perf_tests/test_forward.py::test_forward[small-ctx128-fp32-naive]"   # or "suite"
    reason = "RMSNorm in float32, needed for stability"
    revision = "3adf61e"                # the base that it was measured against
    clock = "wall"                      # or "cpu": a slowdown by another clock is not accepted
    limit = 1.08                        # at most this many times base's time by this clock
    counters = { saved_bytes = 1100 }   # the new values of counters that rose

An entry has `clock` and `limit`, or `counters`, or all three. It counts in the change that adds it. It expires once the
base holds it too, because the base is then as slow.
"""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from perf_tests_suite.perf_tests.gate.samples import Clock
from perf_tests_suite.perf_tests.records.record import COMPARED_COUNTERS, Json, without_path

FILE_NAME = "accepted.toml"
KEYS = ("id", "reason", "revision", "clock", "limit", "counters")
SUITE = "suite"
"""The id under which a shift of the whole suite is accepted."""


@dataclass(frozen=True)
class Acceptance:
    """One limit: of a case's time by `clock`, or of `counter`."""

    id: str
    limit: float
    reason: str
    revision: str
    counter: str | None = None
    clock: Clock | None = None
    """None for a counter, and in older samples, whose entries held for any clock."""


def accepted_slowdown(case: str, clock: Clock, effect: float, accepted: Sequence[Acceptance]) -> str | None:
    """Why a slowdown of this size by this clock is accepted, or None."""
    limits = [row for row in accepted if (row.id, row.counter) == (case, None) and row.clock in (None, clock)]
    return accepting_reason(1 + effect, limits)


def accepting_reason(amount: float, limits: Sequence[Acceptance]) -> str | None:
    """The reason of the first limit that a slowdown or a counter does not exceed."""
    return next((row.reason for row in limits if amount <= row.limit), None)


def read_accepted(path: Path) -> list[Acceptance]:
    """The limits in the file, none if there is no file; raises ValueError with one sentence for a malformed one."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    entries, unknown = data.get("accepted", []), data.keys() - {"accepted"}
    if unknown or not isinstance(entries, list):
        raise ValueError(f"{path} holds more than [[accepted]] entries: {', '.join(sorted(unknown)) or 'accepted'}.")
    try:
        for entry in entries:
            # An older form, which `read_accepted_of_base` still understands, is refused with the line to write.
            if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
                continue
            about = f"The accepted entry of {entry['id']}"
            if "counter" in entry:
                line = f"counters = {{ {entry['counter']} = {entry.get('limit')} }}"
                raise ValueError(f"{about} is of an older form; write `{line}` instead of its counter and limit.")
            if "clock" not in entry and ("limit" in entry or not entry.get("counters")):
                raise ValueError(
                    f'{about} names no clock; add the line `clock = "wall"`, or "cpu" if it is of CPU time.'
                )
        found = [acceptance(limit) for entry in entries for limit in _limits(entry)]
        # A limit that stands twice would be raised by an entry that no reviewer compares with the other.
        for row, count in Counter((row.id, row.revision, row.clock, row.counter) for row in found).items():
            case, revision, clock, counter = row
            if count > 1:
                what = f"counter {counter}" if counter else f"{clock} time"
                raise ValueError(f"{what} of {case} is accepted {count} times against {revision}; keep one entry.")
            # A limit of a counter that the gate does not know would accept nothing, and not say so.
            if counter is not None and counter not in COMPARED_COUNTERS:
                known = ", ".join(COMPARED_COUNTERS)
                raise ValueError(f"The accepted entry of {case} has the counter {counter!r}; write one of {known}.")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def read_accepted_of_base(path: Path) -> list[Acceptance]:
    """The limits of a base, whose file cannot be mended any more: an older form counts, a broken file is none."""
    try:
        entries = tomllib.loads(path.read_text()).get("accepted", [])
        return [acceptance(limit) for entry in entries for limit in _limits(entry)]
    except (OSError, TypeError, ValueError, RecursionError):
        return []


def _limits(entry: object) -> list[object]:
    """What one entry of the file accepts, each alone."""
    if not isinstance(entry, dict) or "counters" not in entry:
        return [entry]
    counters = entry["counters"]
    if not isinstance(counters, dict):
        raise ValueError(f"The accepted entry of {entry.get('id')} has counters that are not a table: {counters!r}.")
    time: Json = {name: value for name, value in entry.items() if name != "counters"}
    about_all = {name: value for name, value in time.items() if name not in ("clock", "limit")}
    risen: list[object] = [{**about_all, "counter": name, "limit": value} for name, value in counters.items()]
    return [time, *risen] if {"clock", "limit"} & entry.keys() else risen


def acceptance(entry: object) -> Acceptance:
    """One limit; raises ValueError with one sentence that names it and what is wrong."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        raise ValueError(f"An accepted entry has no id: {entry!r}.")
    about = f"The accepted entry of {entry['id']} has"
    if unknown := entry.keys() - {"id", "limit", "reason", "revision", "counter", "clock"}:
        raise ValueError(f"{about} unknown keys ({', '.join(sorted(unknown))}); known: {', '.join(KEYS)}.")
    for name in ("reason", "revision"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{about} no {name}; add one for the reviewer.")
    counter, limit, clock = entry.get("counter"), entry.get("limit"), entry.get("clock")
    if clock not in (None, *get_args(Clock)):
        raise ValueError(f'{about} the clock {clock!r}; write "wall" or "cpu".')
    if counter is not None and not isinstance(counter, str):
        raise ValueError(f"{about} a counter that is not a string: {counter!r}.")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit < float("inf"):
        raise ValueError(f"{about} no limit; write a number like 1.08.")
    if counter is None and limit <= 1:
        raise ValueError(f"{about} the limit {limit}; a slowdown needs one above 1.")
    return Acceptance(entry["id"], limit, entry["reason"].strip(), entry["revision"].strip(), counter, clock)


def effective(head: Sequence[Acceptance], base: Sequence[Acceptance]) -> tuple[list[Acceptance], list[str]]:
    """The limits that count in this run, and a sentence for each expired entry, which the base holds too."""
    expired = [limit for limit in head if limit in base or replace(limit, clock=None) in base]
    entries = dict.fromkeys((limit.id, limit.revision) for limit in expired)
    sentences = [
        f"The accepted entry of {case} (measured against {revision}) has expired, because the base already "
        f"contains the change: remove it from {FILE_NAME}."
        for case, revision in entries
    ]
    return [limit for limit in head if limit not in expired], sentences
