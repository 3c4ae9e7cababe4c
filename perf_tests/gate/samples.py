"""The raw samples of a gate run: JSON lines, one for each benchmark in each launch pair, and a few events.

The first line is the header:

    {"format_version": 1, "kind": "gate-samples", "started": ISO time,
     "base": {"revision", "label"}, "head": {"revision", "label"}, "machine_info": {}, "settings": {},
     "cases": [{"id", "identity": {}}], "accepted": [], "options": "--against REV ..."}

where `accepted` (`accepted.py`) and `options`, what else to type to measure a case again, may be left out.

A launch pair is two fresh processes, base and head, that serve the cases in turns. One line for each of its cases:

    {"stage": 1 or 2, "pair": number, unique over the run, "case": id, "orders": ["ABBA", "BAAB", ...],
     "base_seconds": [[b1, b2], ...], "head_seconds": [[h1, h2], ...],
     "base_cpu_seconds": the same or null, "head_cpu_seconds": the same or null,
     "cores": numbers of the cores that both sides worked on, or null; kept for the reader}

with A for base, B for head, and one entry for each quadruple of turns. Events:

    {"event": "outcome", "case", "side": "base" or "head", "outcome", "reason"}   a side that has no timing
    {"event": "sentinel", "stage", "pair", "name", "side", "seconds": []}         the same frozen work on both sides
    {"event": "exact", "case", "counter", "old", "new"}                           a number that scatters by nothing
    {"event": "uncounted", "case", "side", "reason"}                              a case whose side has no such numbers
    {"event": "pair", "stage", "pair", "seconds"}                                 how long a launch pair took in all
    {"event": "relaunch", ...}                                                    kept for the reader
    {"event": "incomparable", "reason"}                                           the two sides cannot be compared
    {"event": "end", "reason": "finished", "budget" or "interrupted"}

An outcome is one of a record's (`records/record.py`) or "absent": the side does not have the case at all.
Everything that the gate says is computed from this file, so that `python -m perf_tests replay` says it again.
"""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from perf_tests.records.record import OUTCOMES, Json, without_nan

FORMAT_VERSION = 1
KIND = "gate-samples"
ORDERS = ("ABBA", "BAAB")
ABSENT = "absent"

MOST_BYTES = 1 << 30
"""That a compressed file may come to: it is data from strangers, and must not fill the memory."""

Seconds = NDArray[np.float64]
Side = Literal["base", "head"]
EndReason = Literal["finished", "budget", "interrupted"]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One benchmark in one launch pair. The arrays are (quadruples, 2)."""

    stage: int
    pair: int
    case: str
    orders: tuple[str, ...]
    base_seconds: Seconds
    head_seconds: Seconds
    base_cpu_seconds: Seconds | None
    head_cpu_seconds: Seconds | None


@dataclass(frozen=True)
class NoTiming:
    """Why one side has no timing of a case."""

    case: str
    side: Side
    outcome: str
    reason: str


@dataclass(frozen=True, eq=False)
class Sentinel:
    """Frozen work that is the same on both sides, as one of them took it in one launch pair."""

    stage: int
    pair: int
    name: str
    side: Side
    seconds: Seconds


@dataclass(frozen=True)
class ExactFinding:
    """A counter of a case on both sides; it is the same in every run, so any increase is real."""

    case: str
    counter: str
    old: float
    new: float


@dataclass(frozen=True)
class Uncounted:
    """Why the counters of a case are not compared: one side has none."""

    case: str
    side: Side
    reason: str


@dataclass
class GateSamples:
    """What a samples file holds, in the order of writing."""

    header: Json
    measurements: list[Measurement] = field(default_factory=list)
    without_timing: list[NoTiming] = field(default_factory=list)
    sentinels: list[Sentinel] = field(default_factory=list)
    exact: list[ExactFinding] = field(default_factory=list)
    uncounted: list[Uncounted] = field(default_factory=list)
    pair_seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    """By stage and pair: starting, building and warming up included, counting not. Not in every file."""
    relaunches: list[Json] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)
    end: EndReason | None = None

    def __post_init__(self) -> None:
        _check_header(self.header)

    @property
    def cases(self) -> list[str]:
        """The ids of the run in their order."""
        return [case["id"] for case in self.header["cases"]]

    def pairs(self, stage: int) -> list[int]:
        """The numbers of the launch pairs of a stage, in the order they ran in."""
        return sorted({measurement.pair for measurement in self.measurements if measurement.stage == stage})

    def add(self, entry: object) -> None:
        """Take in one line after the header; raises ValueError, with what is wrong, for anything that is none."""
        if not isinstance(entry, dict):
            raise ValueError("it is no object")
        if "event" in entry:
            self._add_event(entry)
        else:
            self._add_measurement(_measurement(entry))

    def _add_measurement(self, measurement: Measurement) -> None:
        if measurement.case not in self.cases:
            raise ValueError(f"the case {measurement.case!r} is not in the header")
        if any((m.pair, m.case) == (measurement.pair, measurement.case) for m in self.measurements[-len(self.cases) :]):
            raise ValueError(f"pair {measurement.pair} has {measurement.case!r} twice")
        self.measurements.append(measurement)

    def _add_event(self, entry: Json) -> None:
        event = entry["event"]
        if event == "outcome":
            self.without_timing.append(_no_timing(entry))
        elif event == "sentinel":
            self.sentinels.append(_sentinel(entry))
        elif event == "exact":
            self.exact.append(_exact(entry))
        elif event == "uncounted":
            self.uncounted.append(Uncounted(_text(entry, "case"), _side(entry), _text(entry, "reason")))
        elif event == "pair":
            self.pair_seconds[_stage(entry), _count(entry, "pair")] = _duration(entry, "seconds")
        elif event == "relaunch":
            self.relaunches.append(entry)
        elif event == "incomparable":
            self.incomparable.append(_text(entry, "reason"))
        elif event == "end":
            self.end = cast(EndReason, _one_of(entry, "reason", get_args(EndReason)))
        else:
            raise ValueError(f"the event {event!r} is not known")


class SamplesFile:
    """A samples file that grows with the run; `samples` is what it holds. Raises OSError when the disk refuses."""

    def __init__(self, path: Path, header: Json) -> None:
        """Begin a new file; raises FileExistsError rather than overwrite samples, ValueError for a wrong header."""
        header = {"format_version": FORMAT_VERSION, "kind": KIND, **header}
        self.samples = GateSamples(_as_read_back(header))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("xb")
        self._write(header)

    def append(self, entry: Json) -> None:
        """Check a line, keep it and write it; raises ValueError for a wrong one, which is not written."""
        self.samples.add(_as_read_back(entry))
        self._write(entry)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, entry: Json) -> None:
        self._file.write(json.dumps(without_nan(entry), allow_nan=False).encode() + b"\n")
        self._file.flush()


def _as_read_back(entry: Json) -> Json:
    """What a reader will find, so that the run and its replay decide on the very same numbers."""
    return json.loads(json.dumps(without_nan(entry), allow_nan=False))


def read_samples(path: Path) -> GateSamples:
    """The samples at `path`, compressed where its name ends in .gz; a torn last line is left out.

    Raises ValueError with one sentence for anything else.
    """
    content = read_content(path)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise ValueError(f"{path} holds no samples: not even its first line is whole.")
    number = 1
    try:
        samples = GateSamples(json.loads(lines[0]))
        for number, line in enumerate(lines[1:], start=2):  # noqa: B007
            samples.add(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be used: line {number} is damaged: {error}.") from error
    return samples


def read_content(path: Path) -> bytes:
    """The bytes of `path`, decompressed where its name ends in .gz; raises ValueError with one sentence."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} cannot be used: it holds more than {MOST_BYTES} bytes, which no gate run writes.")
    return content


def _check_header(header: object) -> None:
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ValueError("it does not begin with the header of gate samples")
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"its format version is {header.get('format_version')!r}, this suite reads {FORMAT_VERSION}")
    for name in ("base", "head"):
        if not isinstance(header.get(name), dict) or not isinstance(header[name].get("label"), str):
            raise ValueError(f"its {name!r} has no label")
    for name in ("machine_info", "settings"):
        if not isinstance(header.get(name), dict):
            raise ValueError(f"its {name!r} is missing")
    _check_cases(header.get("cases"))
    if not isinstance(header.get("accepted", []), list):
        raise ValueError("its 'accepted' is no list")
    if not isinstance(header.get("options", ""), str):
        raise ValueError("its 'options' is no text")


def _check_cases(cases: object) -> None:
    if not isinstance(cases, list) or not all(isinstance(case, dict) and _is_name(case.get("id")) for case in cases):
        raise ValueError("its 'cases' is no list of cases with an id")
    if len({case["id"] for case in cases}) < len(cases):
        raise ValueError("its 'cases' name one id twice")


def _measurement(entry: Json) -> Measurement:
    orders = entry.get("orders")
    if not isinstance(orders, list) or not orders or not all(order in ORDERS for order in orders):
        raise ValueError(f"'orders' is no list of {' and '.join(ORDERS)}")
    base_cpu, head_cpu = (_cpu_seconds(entry, f"{side}_cpu_seconds", len(orders)) for side in ("base", "head"))
    return Measurement(
        stage=_stage(entry),
        pair=_count(entry, "pair"),
        case=_text(entry, "case"),
        orders=tuple(orders),
        base_seconds=_quadruples(entry, "base_seconds", len(orders)),
        head_seconds=_quadruples(entry, "head_seconds", len(orders)),
        base_cpu_seconds=base_cpu,
        head_cpu_seconds=head_cpu,
    )


def _cpu_seconds(entry: Json, name: str, quadruples: int) -> Seconds | None:
    """None where the clock was not read, or is too coarse to have seen the work."""
    value = entry.get(name)
    if value is None or (isinstance(value, list) and any(0 in turns for turns in value if isinstance(turns, list))):
        return None
    return _quadruples(entry, name, quadruples)


def _quadruples(entry: Json, name: str, quadruples: int) -> Seconds:
    value = entry.get(name)
    if not isinstance(value, list) or len(value) != quadruples:
        raise ValueError(f"{name!r} has no two turns for each of {quadruples} quadruples")
    if not all(isinstance(turns, list) and len(turns) == 2 and all(map(_is_duration, turns)) for turns in value):
        raise ValueError(f"{name!r} holds something that is no two durations")
    return np.asarray(value, dtype=np.float64)


def _no_timing(entry: Json) -> NoTiming:
    outcome = _one_of(entry, "outcome", (*OUTCOMES, ABSENT))
    return NoTiming(_text(entry, "case"), _side(entry), outcome, _text(entry, "reason"))


def _sentinel(entry: Json) -> Sentinel:
    seconds = entry.get("seconds")
    if not isinstance(seconds, list) or not seconds or not all(map(_is_duration, seconds)):
        raise ValueError("'seconds' is no list of durations")
    values = np.asarray(seconds, dtype=np.float64)
    return Sentinel(_stage(entry), _count(entry, "pair"), _text(entry, "name"), _side(entry), values)


def _exact(entry: Json) -> ExactFinding:
    for name in ("old", "new"):
        if not _is_number(entry.get(name)):
            raise ValueError(f"{name!r} is no number")
    return ExactFinding(_text(entry, "case"), _text(entry, "counter"), entry["old"], entry["new"])


def _stage(entry: Json) -> int:
    if entry.get("stage") not in (1, 2) or isinstance(entry["stage"], bool):
        raise ValueError(f"'stage' is {entry.get('stage')!r}, not 1 or 2")
    return int(entry["stage"])


def _count(entry: Json, name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} is {value!r}, not a count")
    return value


def _duration(entry: Json, name: str) -> float:
    if not _is_duration(entry.get(name)):
        raise ValueError(f"{name!r} is no duration")
    return float(entry[name])


def _text(entry: Json, name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is no text")
    return value


def _one_of(entry: Json, name: str, known: Iterable[str]) -> str:
    value = _text(entry, name)
    if value not in known:
        raise ValueError(f"{name!r} is {value!r}, not one of {', '.join(known)}")
    return value


def _side(entry: Json) -> Side:
    return cast(Side, _one_of(entry, "side", get_args(Side)))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_duration(value: object) -> bool:
    return _is_number(value) and cast(float, value) > 0
