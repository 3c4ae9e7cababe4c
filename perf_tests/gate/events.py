"""The lines of a gate run's samples, one class each; `samples.py` describes the file that they make up.

The type of a field implies its check, so a run and its replay agree on what a line may hold.
"""

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from perf_tests.gate.rules import Clock
from perf_tests.records.record import OUTCOMES, Json

ORDERS = ("ABBA", "BAAB")
"""The turns of a quadruple of rounds, A for base and B for head. Both cancel a steady drift."""

ABSENT = "absent"
"""The outcome of a case that a side does not have at all."""

Seconds = NDArray[np.float64]


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_duration(value: object) -> bool:
    return _is_number(value) and cast(float, value) > 0


def _are_durations(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_duration, value))


# A check of a line's value, and what a message calls the right values.
Count = Annotated[int, lambda value: type(value) is int and value >= 0, "a count"]
Stage = Annotated[int, lambda value: type(value) is int and value in (1, 2), "1 or 2"]
Number = Annotated[float, _is_number, "a number"]
Duration = Annotated[float, _is_duration, "a duration"]
Durations = Annotated[list[float], _are_durations, "a list of durations"]
Outcome = Annotated[str, lambda value: value in (*OUTCOMES, ABSENT), f"one of {', '.join((*OUTCOMES, ABSENT))}"]
Unchecked = Annotated[Any, lambda _: True, "anything"]
Side = Literal["base", "head"]
SIDES: tuple[Side, Side] = ("base", "head")
EndReason = Literal["finished", "budget", "time_limit", "interrupted"]
"""`budget` is --gate-minutes, the gate's own; `time_limit` is the run's, which has cases left."""


@dataclass(frozen=True)
class Event:
    """A line that is no measurement; its fields are the line's keys, in the order of writing."""

    event: ClassVar[str]

    def to_line(self) -> Json:
        return {"event": self.event, **asdict(self)}

    @classmethod
    def from_line(cls, line: Json) -> Self:
        """Raises ValueError, with what is wrong, for a missing or damaged value."""
        return cls(**_checked(cls, line))


@dataclass(frozen=True)
class NoTiming(Event):
    """Why one side has no timing of a case."""

    event = "outcome"
    case: str
    side: Side
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Sentinel(Event):
    """Times of the same frozen work on one side in one launch pair."""

    event = "sentinel"
    stage: Stage
    pair: Count
    name: str
    side: Side
    seconds: Durations


@dataclass(frozen=True)
class ExactFinding(Event):
    """A counter of a case on both sides; it is the same in every run, so any increase is real."""

    event = "exact"
    case: str
    counter: str
    old: Number
    new: Number


@dataclass(frozen=True)
class Uncounted(Event):
    """Why the counters of a case are not compared: one side has none."""

    event = "uncounted"
    case: str
    side: Side
    reason: str


@dataclass(frozen=True)
class PairTime(Event):
    """How long a launch pair took, with starting, building and warming up but without counting."""

    event = "pair"
    stage: Stage
    pair: Count
    seconds: Duration


@dataclass(frozen=True)
class LeftOut(Event):
    """A case that is measured no further after the first launch pair, because the time is too short for all."""

    event = "left_out"
    case: str


@dataclass(frozen=True)
class Relaunch(Event):
    """A worker failed and both sides were launched again; nothing is computed from it."""

    event = "relaunch"
    pair: Unchecked
    case: Unchecked
    side: Unchecked
    reason: Unchecked


@dataclass(frozen=True)
class Incomparable(Event):
    """Why the two sides cannot be compared."""

    event = "incomparable"
    reason: str


@dataclass(frozen=True)
class End(Event):
    """Why the run stopped."""

    event = "end"
    reason: EndReason


EVENTS: dict[object, type[Event]] = {kind.event: kind for kind in Event.__subclasses__()}


@dataclass(frozen=True, eq=False)
class Measurement:
    """One benchmark in one launch pair. The arrays are (quadruples, 2)."""

    stage: Stage
    pair: Count
    case: str
    orders: tuple[str, ...]
    base_seconds: Seconds
    head_seconds: Seconds
    base_cpu_seconds: Seconds | None
    head_cpu_seconds: Seconds | None

    @classmethod
    def from_line(cls, line: Json) -> Self:
        """Raises ValueError, with what is wrong, for a missing or damaged value."""
        orders = line.get("orders")
        if not isinstance(orders, list) or not orders or not all(order in ORDERS for order in orders):
            raise ValueError(f"'orders' is not a list of {' and '.join(ORDERS)}")
        clocks = ("base_seconds", "head_seconds", "base_cpu_seconds", "head_cpu_seconds")
        seconds = {name: _quadruples(line, name, len(orders)) for name in clocks}
        return cls(**_checked(cls, line), orders=tuple(orders), **cast(Json, seconds))

    def seconds_by(self, clock: Clock) -> tuple[Seconds | None, Seconds | None]:
        """Base's and head's; None where the clock was not read."""
        if clock == "wall":
            return self.base_seconds, self.head_seconds
        return self.base_cpu_seconds, self.head_cpu_seconds


def _quadruples(line: Json, name: str, quadruples: int) -> Seconds | None:
    """None for a CPU clock that was not read, or is too coarse to have seen the work."""
    value = line.get(name)
    if "_cpu_" in name:
        turns = value if isinstance(value, list) else []
        if value is None or any(0 in pair for pair in turns if isinstance(pair, list)):
            return None
    if not isinstance(value, list) or len(value) != quadruples:
        raise ValueError(f"{name!r} lacks the two turns of each of {quadruples} quadruples")
    if not all(_are_durations(turns) and len(turns) == 2 for turns in value):
        raise ValueError(f"{name!r} holds something other than two durations")
    return np.asarray(value, dtype=np.float64)


def _checked(kind: type, line: Json) -> Json:
    """The line's values of the fields that have a check."""
    values = {name: line.get(name) for name in _checks(kind)}
    for name, (is_right, words) in _checks(kind).items():
        if not is_right(values[name]):
            raise ValueError(f"{name!r} is {values[name]!r:.60}, not {words}")
    return values


@cache
def _checks(kind: type) -> Json:
    checks: Json = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if hint is str:
            checks[name] = (lambda value: isinstance(value, str), "a string")
        elif get_origin(hint) is Literal:
            known = get_args(hint)
            checks[name] = (known.__contains__, f"one of {', '.join(known)}")
        elif get_origin(hint) is Annotated:
            checks[name] = get_args(hint)[1:]
    return checks
