"""Accepted regressions: `.benchmarks/accepted.toml`, a file that is reviewed like any other change.

    [[accepted]]
    id = "perf_tests/test_forward.py::test_forward[small-ctx128-fp32-naive]"   # or "suite"
    reason = "RMSNorm in float32, needed for stability"
    revision = "3adf61e"                # the base that it was measured against
    clock = "wall"                      # or "cpu": a slowdown by another clock is not accepted
    limit = 1.08                        # at most this many times base's time by this clock
    counters = { saved_bytes = 1100 }   # the new values of counters that rose

An entry has `clock` and `limit`, or `counters`, or all three. It counts in the change that adds it. It expires once the
base holds it too, because the base is then as slow. Between recorded runs it counts where `revision` is the base.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import get_args

from perf_tests.gate.exact_counters import COUNTERS
from perf_tests.gate.rules import Clock
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole
from perf_tests.records.words import without_path

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

    def is_of(self, revision: str) -> bool:
        """Whether it was measured against this revision; either may be abbreviated."""
        return self.revision.startswith(revision) or (len(self.revision) >= 7 and revision.startswith(self.revision))


def read_accepted(path: Path) -> list[Acceptance]:
    """The limits in the file, none if there is no file; raises ValueError with one sentence for a malformed one."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    unknown = data.keys() - {"accepted"}
    if unknown or not isinstance(data.get("accepted", []), list):
        raise ValueError(f"{path} holds more than [[accepted]] entries: {', '.join(sorted(unknown)) or 'accepted'}.")
    try:
        for entry in data.get("accepted", []):
            _refuse_older_form(entry)
        found = [acceptance(limit) for entry in data.get("accepted", []) for limit in _limits(entry)]
        _refuse_doubles(found)
        _refuse_unknown_counters(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def read_accepted_of_base(path: Path) -> list[Acceptance]:
    """The same of a base, whose file cannot be mended any more: an older form counts, a broken file is none."""
    try:
        entries = tomllib.loads(path.read_text()).get("accepted", [])
        return [acceptance(limit) for entry in entries for limit in _limits(entry)]
    except (OSError, TypeError, ValueError, RecursionError):
        return []


def _refuse_older_form(entry: object) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return
    about = f"The accepted entry of {entry.get('id')}"
    if "counter" in entry:
        line = f"counters = {{ {entry['counter']} = {entry.get('limit')} }}"
        raise ValueError(f"{about} is of an older form; write `{line}` instead of its counter and limit.")
    if "clock" not in entry and ("limit" in entry or not entry.get("counters")):
        raise ValueError(f'{about} names no clock; add the line `clock = "wall"`, or "cpu" if it is of CPU time.')


def _limits(entry: object) -> list[object]:
    """What one entry of the file accepts, each alone."""
    if not isinstance(entry, dict) or "counters" not in entry:
        return [entry]
    counters = entry["counters"]
    if not isinstance(counters, dict):
        raise ValueError(f"The accepted entry of {entry.get('id')} has counters that are no table: {counters!r}.")
    time: Json = {name: value for name, value in entry.items() if name != "counters"}
    about_all = {name: value for name, value in time.items() if name not in ("clock", "limit")}
    risen: list[object] = [{**about_all, "counter": name, "limit": value} for name, value in counters.items()]
    return [time, *risen] if {"clock", "limit"} & entry.keys() else risen


def _refuse_doubles(found: Sequence[Acceptance]) -> None:
    """A limit that stands twice would be raised by an entry that no reviewer compares with the other."""
    counts = Counter((row.id, row.revision, row.clock, row.counter) for row in found)
    for (case, revision, clock, counter), count in counts.items():
        if count > 1:
            what = f"counter {counter}" if counter else f"{clock} time"
            raise ValueError(f"{what} of {case} is accepted {count} times against {revision}; keep one entry.")


def _refuse_unknown_counters(found: Sequence[Acceptance]) -> None:
    """A limit of a counter that the gate does not know would accept nothing, and not say so."""
    for row in found:
        if row.counter is not None and row.counter not in COUNTERS:
            raise ValueError(
                f"The accepted entry of {row.id} has the counter {row.counter!r}; write one of {', '.join(COUNTERS)}."
            )


def acceptance(entry: object) -> Acceptance:
    """One limit; raises ValueError with one sentence that names it and what is wrong."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        raise ValueError(f"An accepted entry has no id: {entry!r}.")
    known = {"id", "limit", "reason", "revision", "counter", "clock"}
    if entry.keys() - known:
        names = ", ".join(sorted(entry.keys() - known))
        raise ValueError(f"The accepted entry of {entry['id']} has unknown keys ({names}); known: {', '.join(KEYS)}.")
    for name in ("reason", "revision"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"The accepted entry of {entry['id']} has no {name}; add one for the reviewer.")
    counter, limit, clock = entry.get("counter"), entry.get("limit"), entry.get("clock")
    if clock not in (None, *get_args(Clock)):
        raise ValueError(f'The accepted entry of {entry["id"]} has the clock {clock!r}; write "wall" or "cpu".')
    if counter is not None and not isinstance(counter, str):
        raise ValueError(f"The accepted entry of {entry['id']} has a counter that is not a string: {counter!r}.")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit < float("inf"):
        raise ValueError(f"The accepted entry of {entry['id']} has no limit; write a number like 1.08.")
    if counter is None and limit <= 1:
        raise ValueError(f"The accepted entry of {entry['id']} has the limit {limit}; a slowdown needs one above 1.")
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


def offer_beside(samples: Path) -> Path:
    """Where entries for this run's slowdowns are offered."""
    return samples.with_name(f"{samples.name.partition('.')[0]}_accept.toml")


def offer_among(storage: Path, base_name: str) -> Path:
    """The same for recorded launches, whose records are no samples."""
    return storage / "gate" / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}_{base_name}_accept.toml"


def offer_entries(limits: Sequence[Acceptance], path: Path) -> str:
    """Write entries to a new file, for the user to complete; the sentence that says where they are, or why not."""
    text = f"# Move what is intended to .benchmarks/{FILE_NAME}, with its reason.\n{toml_entries(limits)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        return f"Entries that accept this cannot be written to {path}: {error}."
    return f"To accept what is intended: write the reasons in {path}, and move its entries to .benchmarks/{FILE_NAME}."


def toml_entries(limits: Sequence[Acceptance]) -> str:
    """One entry for each case, with all its counters; a second one where a case is slower by two clocks."""
    ordered = sorted(limits, key=lambda limit: limit.id)
    return "\n".join(line for _, of_case in groupby(ordered, key=lambda limit: limit.id) for line in _entries(of_case))


def _entries(of_case: Iterable[Acceptance]) -> list[str]:
    limits = list(of_case)
    times = [limit for limit in limits if limit.counter is None]
    risen = ", ".join(f"{_quoted(limit.counter)} = {limit.limit!r}" for limit in limits if limit.counter is not None)
    lines: list[str] = []
    for place, limit in enumerate(times or limits[:1]):
        lines += ["", "[[accepted]]", f"id = {_quoted(limit.id)}", f"reason = {_quoted(limit.reason)}"]
        lines += [f"revision = {_quoted(limit.revision)}"]
        lines += [f"clock = {_quoted(limit.clock)}", f"limit = {limit.limit!r}"] if times else []
        lines += [f"counters = {{ {risen} }}"] if risen and not place else []
    return lines


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string has the escapes of JSON
