"""Accepted regressions: `.benchmarks/accepted.toml`, a file that is reviewed like any other change.

    [[accepted]]
    id = "perf_tests/test_forward.py::test_forward[small-ctx128-fp32-naive]"   # or "suite"
    limit = 1.08              # at most this many times base's time; for a counter, its new value
    reason = "RMSNorm in float32, needed for stability"
    revision = "3adf61e"      # the base that it was measured against
    counter = "saved_bytes"   # only where a counter rose, not a time

An entry counts in the change that adds it. It expires once the base holds it too, because the base is then as slow.
Between recorded runs it counts where `revision` is the base.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perf_tests.records.words import without_path

FILE_NAME = "accepted.toml"
SUITE = "suite"
"""The id under which a shift of the whole suite is accepted."""


@dataclass(frozen=True)
class Acceptance:
    id: str
    limit: float
    reason: str
    revision: str
    counter: str | None = None

    def is_of(self, revision: str) -> bool:
        """Whether it was measured against this revision; either may be abbreviated."""
        return self.revision.startswith(revision) or (len(self.revision) >= 7 and revision.startswith(self.revision))


def read_accepted(path: Path) -> list[Acceptance]:
    """The entries of the file, none if there is no file; raises ValueError with one sentence for a malformed one."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    unknown = data.keys() - {"accepted"}
    if unknown or not isinstance(data.get("accepted", []), list):
        raise ValueError(f"{path} holds more than [[accepted]] entries: {', '.join(sorted(unknown)) or 'accepted'}.")
    try:
        return [acceptance(entry) for entry in data.get("accepted", [])]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def acceptance(entry: object) -> Acceptance:
    """One entry; raises ValueError with one sentence that names it and what is wrong."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise ValueError(f"An accepted entry has no id: {entry!r}.")
    known = ("id", "limit", "reason", "revision", "counter")
    if entry.keys() - set(known):
        names = ", ".join(sorted(entry.keys() - set(known)))
        raise ValueError(f"The accepted entry of {entry['id']} has unknown keys ({names}); known: {', '.join(known)}.")
    for name in ("reason", "revision"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"The accepted entry of {entry['id']} has no {name}; add one for the reviewer.")
    counter, limit = entry.get("counter"), entry.get("limit")
    if counter is not None and not isinstance(counter, str):
        raise ValueError(f"The accepted entry of {entry['id']} has a counter that is not a string: {counter!r}.")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit < float("inf"):
        raise ValueError(f"The accepted entry of {entry['id']} has no limit; write a number like 1.08.")
    if counter is None and limit <= 1:
        raise ValueError(f"The accepted entry of {entry['id']} has the limit {limit}; a slowdown needs one above 1.")
    return Acceptance(entry["id"], limit, entry["reason"].strip(), entry["revision"].strip(), counter)


def effective(head: Sequence[Acceptance], base: Sequence[Acceptance]) -> tuple[list[Acceptance], list[str]]:
    """The entries that count in this run, and a sentence for each expired one, which the base holds too."""
    sentences = [
        f"The accepted entry of {entry.id} (measured against {entry.revision}) has expired, because the base already "
        f"contains the change: remove it from {FILE_NAME}."
        for entry in head
        if entry in base
    ]
    return [entry for entry in head if entry not in base], sentences


def toml_entry(entry: Acceptance) -> str:
    quoted = partial(json.dumps, ensure_ascii=False)  # a TOML basic string has the escapes of JSON
    lines = ["[[accepted]]", f"id = {quoted(entry.id)}", f"limit = {entry.limit!r}"]
    lines += [f"reason = {quoted(entry.reason)}", f"revision = {quoted(entry.revision)}"]
    if entry.counter is not None:
        lines.append(f"counter = {quoted(entry.counter)}")
    return "\n".join(lines)
