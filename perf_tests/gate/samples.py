"""The raw samples of a gate run: JSON lines, from which every result is computed, so that `replay` repeats it.

The first line is the header:

    {"format_version": 1, "kind": "gate-samples", "started": ISO time,
     "base": {"revision", "label"}, "head": {"revision", "label"}, "machine_info": {}, "settings": {},
     "cases": [{"id", "identity": {}}], "accepted": [], "options": "--against REV ...", "engine": number in `ENGINES`,
     "tests": {"root", "at_base": [id, ...], "typed": [file or id, ...]}}

where `accepted` (limits of `gate.verdicts`), `options`, what else to type to measure a case again, and `engine` may be
left out. `tests` is there where the cases are tests of the user's: their rootdir, those that base had of its own, and
what was typed, which older samples lack.

A launch pair is two fresh processes, base and head, that serve the cases in turns. One line for each of its cases:

    {"stage": 1 or 2, "pair": number, unique over the run, "case": id, "orders": ["ABBA", "BAAB", ...],
     "base_seconds": [[b1, b2], ...], "head_seconds": [[h1, h2], ...],
     "base_cpu_seconds": the same or null, "head_cpu_seconds": the same or null,
     "cores": numbers of the cores that both sides worked on, or null; kept for the reader}

with A for base, B for head, and one entry for each quadruple of turns. The seconds to compile a case are rows of their
own among the cases (`compile_row`): two fresh processes a pair, whose order is "AB" or "BA", and one reading of each.
The other lines are `{"event": its name, ...}`, each a `SampleEvent`. The type of a field implies its check, so run and
replay agree on what a line may hold.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from perf_tests_suite.perf_tests.records.record import COMPARED_COUNTERS, OUTCOMES, Json, unpacked, without_nan

Clock = Literal["wall", "cpu"]
ClockChoice = Literal["auto", "wall", "cpu"]
Side = Literal["base", "head"]
SIDES: tuple[Side, Side] = ("base", "head")

FEWEST_PAIRS = 3
"""Launch pairs from which a spread is estimated; that of two values is hardly one."""
MOST_PAIRS = 40
"""The exact sign-flip test lists the sums of half the pairs: 2 ** 20 of them at 40 pairs."""

ENGINES = (
    "each side ran on the core that the scheduler chose, base was released first",
    "both sides share their cores, base is released first, which favours head a little",
    "both sides are released together, the first quadruples of short rounds are thrown away",
    "a first look after three launch pairs decides what is far slower, stage 1 measures fewer rounds",
    "a launch pair's time is counted once, so that runs end as late as they may; more suspects, up to 36 pairs",
    "stage 1 measures one quadruple of the longest rounds",
    "a look at the end of stage 1 names what is plainly slower, one after three fresh pairs clears most suspects",
)
"""How rounds, launches and analyses were chosen, in the order of time, numbered from 1. What one engine is worth says
nothing of another, so a change of what a run measures or decides adds a line, and samples carry the number."""
PRESENT_ENGINE = len(ENGINES)


@dataclass(frozen=True)
class Rules:
    """The thresholds of a run, kept with its samples. Slowdowns are shares of base's time: 0.03 takes 3 % longer.

    A look, as the keys of older samples call it, is an interim analysis. Raises ValueError with one sentence for
    invalid rules.
    """

    alpha: float = 0.01
    """Probability that a run reports SLOWER with nothing slower by more than `margin`: one CI run in a hundred."""
    margin: float = 0.005
    """A slowdown must significantly exceed this: estimates may be biased by as much (`gate_power`)."""
    matters: float = 0.03
    """A case is OK once a slowdown of this size is excluded at `clearing_level`; 36 pairs detect no less reliably."""
    screen_pairs: int = 6
    """Launch pairs of all cases in stage 1; with the first look of stage 2 these screen 20 benchmarks in 3 minutes
    (`gate_cost`)."""
    screen_level: float = 0.1
    """Stage 1 suspects a case that is slower at this level: loose, because stage 2 tests it again and a slowdown that
    goes unsuspected is lost; much looser, and stage 2 would have the time of unchanged cases (`gate_simulation`)."""
    screen_above: float = 0.005
    """The least estimate of a suspect: SLOWER takes a slowdown significantly above `margin`. Where
    launches scatter little, as many unchanged cases would be suspected otherwise."""
    faster_screen_level: float = 0.005
    """The same on the faster side: strict, because it decides no exit code and each suspect costs launches."""
    first_look: int | None = 3
    """Launch pairs of stage 1 after which far slower cases are decided (`gate.stages`), if that is before its end;
    None for samples that were measured without such a look."""
    first_share: float = 0.05
    """Share of `alpha` for the first look: little, because a slowdown decided there is far above every level."""
    second_share: float = 0.1
    """The same for the look at the end of stage 1, at cases that are slower by more than `matters` in each launch pair;
    0 for samples that were measured without such a look."""
    far: float = 0.15
    """What every launch pair of a far slower case exceeds; those of the same code do in a very noisy run alone."""
    far_spreads: float = 10.0
    """How many times the spread of launch pairs a far slower case is slower: three times what recorded launches of the
    same code above `far` have reached (`gate_relabelled`)."""
    confirm_looks: tuple[int, ...] = (3, 10, 18, 36)
    """Fresh launch pairs of stage 2 at each look: 3 clear most of what stage 1 suspects by chance, large slowdowns need
    10, the smallest that are claimed 36."""
    look_shares: tuple[float, ...] = (0.01, 0.15, 0.25, 0.59)
    """Share of `alpha` for each look: most for the last, where the smallest slowdowns are decided; hardly any for the
    first, which clears."""
    clearing_level: float = 0.05
    """Probability that a case slower by `matters` is called OK, half in each stage; the usual level."""
    suite_share: float = 0.1
    """Share of `alpha` for the test of the whole suite: little, because single cases need it."""
    guard_share: float = 0.1
    """Share of `alpha` for wall time where CPU time decides: little, because wall time is there for large effects."""
    contamination_level: float = 0.001
    """Level over all sentinels; far below `alpha`, because a contaminated run is lost."""
    clock: ClockChoice = "auto"
    """`auto` takes the clock that scatters less in stage 1."""
    undecided: Literal["pass", "fail"] = "pass"

    def __post_init__(self) -> None:
        levels = ("alpha", "screen_level", "faster_screen_level", "clearing_level", "contamination_level")
        for name in (*levels, "first_share", "suite_share", "guard_share"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"The gate's {name} is {getattr(self, name)!r}; it must lie between 0 and 0.5.")
        looks, shares, first = self.confirm_looks, self.look_shares, self.first_look
        rise = list(looks) == sorted({look for look in looks if isinstance(look, int)})
        kept = (
            (0 <= self.second_share < 0.5,
             f"second_share is {self.second_share!r}; it must be 0 or more, below 0.5."),
            (0 <= self.margin < self.matters < 1,
             f"margin {self.margin!r} and matters {self.matters!r} must be 0 <= margin < matters < 1."),
            (0 <= self.screen_above < self.matters,
             f"screen_above is {self.screen_above!r}; it must be 0 or more, below matters {self.matters!r}."),
            (self.far > 0 and self.far_spreads >= 1,
             f"far {self.far!r} and far_spreads {self.far_spreads!r} must be above 0 and at least 1."),
            (first is None or (isinstance(first, int) and first >= FEWEST_PAIRS),
             f"first_look is {first!r}; it must be {FEWEST_PAIRS} or more, or null."),
            (isinstance(self.screen_pairs, int) and FEWEST_PAIRS <= self.screen_pairs <= MOST_PAIRS,
             f"screen_pairs is {self.screen_pairs!r}; it must be {FEWEST_PAIRS} to {MOST_PAIRS}."),
            (looks and rise and FEWEST_PAIRS <= looks[0] <= looks[-1] <= MOST_PAIRS,
             f"confirm_looks {looks!r} must rise, from {FEWEST_PAIRS} or more to at most {MOST_PAIRS}."),
            (len(shares) == len(looks) and math.isclose(sum(shares), 1) and min(shares) > 0,
             f"look_shares {shares!r} must be positive and add up to 1, one for each look."),
            (self.clock in get_args(ClockChoice) and self.undecided in ("pass", "fail"),
             f"clock {self.clock!r} or undecided {self.undecided!r} is not known."),
        )  # fmt: skip
        for is_kept, broken in kept:
            if not is_kept:
                raise ValueError(f"The gate's {broken}")

    @property
    def log_margin(self) -> float:
        return math.log1p(self.margin)

    @property
    def log_matters(self) -> float:
        return math.log1p(self.matters)

    @property
    def has_first_analysis(self) -> bool:
        return self.first_look is not None and self.first_look < self.screen_pairs

    @property
    def stage_two_alpha(self) -> float:
        """What the looks of stage 2 share."""
        early = self.second_share + (self.first_share if self.has_first_analysis else 0.0)
        return self.alpha * (1 - self.suite_share - early)

    @property
    def interim_clearing_level(self) -> float:
        return self.clearing_level / 2 / len(self.confirm_looks)


def rules_from_settings(settings: Json) -> Rules:
    """The rules of a run; settings of other names belong to the engine. Raises ValueError for invalid values."""
    # Of older samples: nothing was decided in stage 1, and cases were suspected however small their estimate.
    known: Json = {"first_look": None, "second_share": 0.0, "screen_above": 0.0}
    known |= {field.name: settings[field.name] for field in fields(Rules) if field.name in settings}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    try:
        return Rules(**known)
    except TypeError as error:
        raise ValueError(f"The gate's settings hold a value that is not a number: {error}.") from error


ORDERS = ("ABBA", "BAAB")
"""The turns of a quadruple of rounds, A for base and B for head. Both cancel a steady drift."""
SINGLE_ORDERS = ("AB", "BA")
"""The turns of two processes that compile."""


def compile_row(case: str, part: str, cache: str) -> str:
    """The id of the row of the seconds to compile a `part` of a case, "" for all of it; `cache` is cold or warm."""
    return f"{case} compile_{part}{part and '_'}seconds ({cache})"


_COMPILE_ROW = re.compile(r"(.*) compile_(?:(forward|backward)_)?seconds \((cold|warm)\)")


def compiled_in(row: str) -> tuple[str, str, str] | None:
    """The case, part and cache of a `compile_row`; None of any other id."""
    found = _COMPILE_ROW.fullmatch(row)
    return None if found is None else (found[1], found[2] or "", found[3])


def case_of(row: str) -> str:
    """The id of the case that a row is of."""
    found = compiled_in(row)
    return row if found is None else found[0]


ABSENT = "absent"
"""The outcome of a case that a side does not have at all."""

Seconds = NDArray[np.float64]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_duration(value: Any) -> bool:
    return _is_number(value) and value > 0


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
EndReason = Literal["finished", "budget", "time_limit", "interrupted"]
"""`budget` is --gate-minutes, the gate's own; `time_limit` is the run's, which has cases left."""


@dataclass_transform(frozen_default=True)
class SampleEvent:
    """A line that is no measurement: a subclass is a frozen dataclass of the line's keys, in the order of writing."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str) -> None:
        cls.event = event
        dataclass(frozen=True)(cls)

    def to_line(self) -> Json:
        return {"event": self.event, **vars(self)}


class NoTiming(SampleEvent, event="outcome"):
    """Why one side has no timing of a case."""

    case: str
    side: Side
    outcome: Outcome
    reason: str


class Sentinel(SampleEvent, event="sentinel"):
    """Times of the same frozen work on one side in one launch pair."""

    stage: Stage
    pair: Count
    name: str
    side: Side
    seconds: Durations


class ExactFinding(SampleEvent, event="exact"):
    """A counter of a case on both sides; it is the same in every run, so any increase is real."""

    case: str
    counter: str
    old: Number
    new: Number


class Uncounted(SampleEvent, event="uncounted"):
    """Why the counters of a case are not compared: one side has none."""

    case: str
    side: Side
    reason: str


class PairTime(SampleEvent, event="pair"):
    """How long a launch pair took, with starting, building and warming up but without counting."""

    stage: Stage
    pair: Count
    seconds: Duration
    launch_seconds: Annotated[float | None, lambda value: value is None or _is_number(value), "a number or null"] = None
    """What of it does not depend on the cases; null in older samples."""


class LeftOut(SampleEvent, event="left_out"):
    """A case that is measured no further after the first launch pair, because the time is too short for all."""

    case: str


class Same(SampleEvent, event="same"):
    """A case whose program was shown to be the same on both sides before anything was measured, so that it is not."""

    case: str


class NotSame(SampleEvent, event="measured"):
    """Why the program of a case was not shown to be the same."""

    case: str
    reason: str


class Relaunch(SampleEvent, event="relaunch"):
    """A worker failed and both sides were launched again; nothing is computed from it."""

    pair: Unchecked
    case: Unchecked
    side: Unchecked
    reason: Unchecked


class Incomparable(SampleEvent, event="incomparable"):
    """Why the two sides cannot be compared."""

    reason: str


class End(SampleEvent, event="end"):
    """Why the run stopped."""

    reason: EndReason


EVENTS: dict[object, type[SampleEvent]] = {kind.event: kind for kind in SampleEvent.__subclasses__()}


# Exact counters. They depend on the program alone, so one count of either side is enough and any rise is real.


def exact_events(case: str, answers: Mapping[Side, Json]) -> list[ExactFinding] | list[Uncounted]:
    """A finding for each counter that both sides know, or which side has none and why.

    `answers` are base's and head's: `counters`, null with a `reason` where there are none.
    """
    for side in SIDES[::-1]:
        if answers[side]["counters"] is None:
            return [Uncounted(case, side, str(answers[side]["reason"]))]
    old, new = (answers[side]["counters"] for side in SIDES)
    return [
        ExactFinding(case, name, old[name], new[name])
        for name in COMPARED_COUNTERS
        if old.get(name) is not None and new.get(name) is not None
    ]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One benchmark in one launch pair. The arrays are (quadruples, 2), or (1, 1) of two processes that compile."""

    stage: Stage
    pair: Count
    case: str
    orders: tuple[str, ...]
    base_seconds: Seconds
    head_seconds: Seconds
    base_cpu_seconds: Seconds | None
    head_cpu_seconds: Seconds | None

    def seconds_by(self, clock: Clock) -> tuple[Seconds | None, Seconds | None]:
        """Base's and head's; None where the clock was not read."""
        if clock == "wall":
            return self.base_seconds, self.head_seconds
        return self.base_cpu_seconds, self.head_cpu_seconds


def _quadruples(line: Json, name: str, orders: Sequence[str]) -> Seconds | None:
    """Seconds by quadruple; None for a CPU clock that was not read, or is too coarse to have seen the work."""
    value = line.get(name)
    if "_cpu_" in name:
        turns = [turn for pair in value if isinstance(pair, list) for turn in pair] if isinstance(value, list) else []
        if value is None or any(turn == 0 and not isinstance(turn, bool) for turn in turns):
            return None
    of_a_side = len(orders[0]) // 2
    if not isinstance(value, list) or len(value) != len(orders):
        raise ValueError(f"{name!r} lacks the turns of each of {len(orders)} quadruples")
    if not all(_are_durations(turns) and len(turns) == of_a_side for turns in value):
        raise ValueError(f"{name!r} holds something other than {of_a_side} durations")
    return np.asarray(value, dtype=np.float64)


def _checked(kind: type, line: Json) -> Json:
    """The line's values of the fields that have a check; raises ValueError with the first that is wrong."""
    values = {name: line.get(name) for name in _checks(kind)}
    for name, (is_right, words) in _checks(kind).items():
        if not is_right(values[name]):
            raise ValueError(f"{name!r} is {values[name]!r:.60}, not {words}")
    return values


@cache
def _checks(kind: type) -> Json:
    """The check and its words for each field of a class of lines whose type implies one."""
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


E = TypeVar("E", bound=SampleEvent)

FORMAT_VERSION = 1
KIND = "gate-samples"

MOST_BYTES = 1 << 30
"""Largest samples file that is read, unpacked; a gate run writes far less."""


@dataclass
class GateSamples:
    """What a samples file holds, in the order of writing. Raises ValueError for a wrong header."""

    header: Json
    measurements: list[Measurement] = field(default_factory=list)
    events: list[SampleEvent] = field(default_factory=list)
    _measured: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        header: object = self.header
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise ValueError("it does not begin with the header of gate samples")
        if (version := header.get("format_version")) != FORMAT_VERSION:
            raise ValueError(f"its format version is {version!r}, this suite reads {FORMAT_VERSION}")
        for name in SIDES:
            if not isinstance(header.get(name), dict) or not isinstance(header[name].get("label"), str):
                raise ValueError(f"its {name!r} has no label")
        defaults: Json = {
            "machine_info": None, "settings": None, "accepted": [], "options": "", "engine": 1, "tests": {},
        }  # fmt: skip
        for key, default in defaults.items():
            kind = dict if default is None else type(default)
            if type(header.get(key, default)) is not kind:
                raise ValueError(f"its {key!r} is no {kind.__name__}")
        cases = header.get("cases")
        ids = [case.get("id") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
        are_named = all(isinstance(name, str) and name for name in ids)
        if not isinstance(cases, list) or len(ids) < len(cases) or not are_named:
            raise ValueError("its 'cases' is not a list of cases with an id")
        if len(set(ids)) < len(ids):
            raise ValueError("its 'cases' name one id twice")

    @property
    def cases(self) -> list[str]:
        return [case["id"] for case in self.header["cases"]]

    def pairs(self, stage: int) -> list[int]:
        """The numbers of the launch pairs of a stage, in the order they ran in."""
        return sorted({measurement.pair for measurement in self.measurements if measurement.stage == stage})

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def end(self) -> EndReason | None:
        """Why the run stopped; None where it was killed."""
        return next((event.reason for event in reversed(self.of(End))), None)

    @property
    def ran_out_of_time(self) -> bool:
        """Whether a clock stopped it, which did not depend on the figures."""
        return self.end in ("budget", "time_limit")

    def add(self, line: object) -> None:
        """Take in one line after the header; raises ValueError, with what is wrong, for a damaged one."""
        if not isinstance(line, dict):
            raise ValueError("it is not an object")
        if "event" in line:
            if not isinstance(line["event"], str) or line["event"] not in EVENTS:
                raise ValueError(f"the event {line['event']!r} is not known")
            kind = EVENTS[line["event"]]
            self.events.append(kind(**_checked(kind, line)))
            return
        orders = line.get("orders")
        known = SINGLE_ORDERS if compiled_in(str(line.get("case"))) else ORDERS
        if not isinstance(orders, list) or not orders or not all(order in known for order in orders):
            raise ValueError(f"'orders' is not a list of {' and '.join(known)}")
        clocks = ("base_seconds", "head_seconds", "base_cpu_seconds", "head_cpu_seconds")
        seconds: Json = {name: _quadruples(line, name, orders) for name in clocks}
        found = Measurement(**_checked(Measurement, line), orders=tuple(orders), **seconds)
        if found.case not in self.cases:
            raise ValueError(f"the case {found.case!r} is not in the header")
        if (found.pair, found.case) in self._measured:
            raise ValueError(f"pair {found.pair} has {found.case!r} twice")
        self._measured.add((found.pair, found.case))
        self.measurements.append(found)


class SamplesFile:
    """A samples file that grows with the run; `samples` is its content. Raises OSError when the disk refuses."""

    def __init__(self, path: Path, header: Json) -> None:
        """Begin a new file; raises FileExistsError rather than overwrite samples, ValueError for a wrong header."""
        text = _encoded({"format_version": FORMAT_VERSION, "kind": KIND, **header})
        self.samples = GateSamples(json.loads(text))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._write(text)

    def append(self, line: Json) -> None:
        """Check a line, keep it and write it; raises ValueError for a wrong one, which is not written."""
        text = _encoded(line)
        self.samples.add(json.loads(text))  # as a reader will, so that run and replay decide on the same numbers
        self._write(text)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()


def _encoded(line: Json) -> bytes:
    return json.dumps(without_nan(line), allow_nan=False).encode() + b"\n"


def read_samples(path: Path) -> GateSamples:
    """The samples at `path`, unpacked where its name ends in .gz or .xz; a torn last line is left out.

    Raises ValueError with one sentence for anything else.
    """
    content = unpacked(path, MOST_BYTES)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise ValueError(f"{path} holds no samples: its first line is incomplete.")
    number, before = 1, dict[bytes, int]()
    try:
        samples = GateSamples(json.loads(lines[0]))
        for number, line in enumerate(lines[1:], start=2):
            samples.add(json.loads(line))
            if before.setdefault(line, number) < number and not isinstance(samples.events[-1], Relaunch):
                raise ValueError(f"it is line {before[line]} once more")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be used: line {number} is damaged: {error}.") from error
    return samples
