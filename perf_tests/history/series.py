"""One case over the commits of one machine: figures, drift of the machine taken out, steps, counters."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log as log_ratio
from math import nan, prod
from statistics import fmean, median, variance

import numpy as np

from perf_tests.history.commits import Code, Figure, Identity, Launch, Log, Machine, in_order, moment
from perf_tests.history.steps import LEAST_LAUNCHES, SMALLEST_STEP, Step, median_loss, steps_of
from perf_tests.records.record import Times

FEWEST_FOR_DRIFT = 3
"""Figures of a case that can show whether its drift is the sentinel's."""


@dataclass(frozen=True)
class Point:
    """One commit: the median of its launches, with an interval of 95 % where there are enough of them."""

    code: Code
    seconds: float
    interval: tuple[float, float] | None
    launches: int


@dataclass(frozen=True)
class CounterChange:
    """What a counter became from one recorded commit to the next: exact, so any difference is the code's."""

    counter: str
    before: int
    after: int
    code: Code


@dataclass(frozen=True)
class Series:
    """A case with one identity; `points` are in the order of the commits."""

    case: str
    identity: Identity
    points: list[Point]
    steps: list[Step]
    counter_changes: list[CounterChange]

    def code_of(self, step: Step) -> Code:
        return self.points[step.start].code


@dataclass(frozen=True)
class Era:
    """Launches of one machine that record the same facts of its drift; series of two eras are never joined."""

    machine: Machine
    has_sentinel: bool
    spread_before: float | None
    """The spread of a usual case over all commits, the machine's drift inside; None where too few commits show it."""
    spread_after: float | None
    """The same with the sentinel's drift taken out; None without a sentinel."""
    is_corrected: bool
    """Whether the drift is taken out, which it is where commits then agree better."""
    codes: list[Code]
    series: list[Series]
    least_shown: float | None
    """The slowdown of the newest commit that a usual case would show; None where no case has the commits for any."""

    @property
    def timed_places(self) -> list[int]:
        """Places of the codes that timed a case, or failed to."""
        return [place for place, code in enumerate(self.codes) if any(one.has_cases for one in code.launches)]

    @property
    def by_case(self) -> dict[str, Series]:
        """The series of each case; of two identities, that of the newest code."""
        return {one.case: one for one in reversed(self.series)}


def newest_first(machines: Iterable[Machine], log: Log) -> list[Era]:
    """The eras of every machine, that of the newest run first."""
    eras = [era for machine in machines for era in eras_of(machine, log)]

    def last_saved(era: Era) -> float:
        return max(moment(launch.written) for code in era.codes for launch in code.launches)

    return sorted(eras, key=last_saved, reverse=True)


def eras_of(machine: Machine, log: Log) -> list[Era]:
    """The older launches, which record no sentinel, apart from the others; those of passes alone are in the newest."""
    older = [one for one in machine.launches if one.has_cases and not _has_sentinel(one)]
    newer = [one for one in machine.launches if _has_sentinel(one)]
    rest = [one for one in machine.launches if not one.has_cases]
    found = {False: older, True: newer + rest} if newer else {False: older + rest}
    return [_era(machine, has_sentinel, launches, log) for has_sentinel, launches in found.items() if launches]


def new_slowdowns(era: Era, log: Log) -> list[tuple[Series, Step]]:
    """Slowdowns that the launches of the newest code show, and all launches before them did not."""
    slower = [(one, step) for one in era.series for step in one.steps if step.effect > 0]
    launches = [launch for code in era.codes[:-1] for launch in code.launches]
    if not slower or not launches:
        return slower
    earlier = _era(era.machine, era.has_sentinel, launches, log)
    known = {(one.case, one.identity, step.start + shift)
             for one in earlier.series for step in one.steps if step.effect > 0
             for shift in range(-LEAST_LAUNCHES, LEAST_LAUNCHES + 1)}  # fmt: skip
    return [(one, step) for one, step in slower if (one.case, one.identity, step.start) not in known]


@dataclass(frozen=True)
class OpenItem:
    """What the newest code with times still has: a slowdown, or a case without a time that an older code timed."""

    series: Series
    code: Code
    """The first code that has it."""
    what: str
    """`slower`, `gone`, or the outcome that it has instead of a time."""
    effect: float | None = None
    """The slowdown against the code before, later steps included."""


def still_open(era: Era) -> list[OpenItem]:
    """Lost cases, then the slowest first; of two identities of a case, that of the newest code."""
    if not era.timed_places:
        return []
    newest = era.codes[era.timed_places[-1]]
    has = should_have(newest)
    found = []
    for one in era.by_case.values():
        last = one.points[-1].code
        if last is newest:
            levels = [prod(1 + step.effect for step in one.steps[at:]) for at in range(len(one.steps))]
            if levels and max(levels) > 1 + SMALLEST_STEP:
                start = one.steps[levels.index(max(levels))]
                found.append(OpenItem(one, one.code_of(start), "slower", max(levels) - 1))
        elif has(one):
            outcomes = ["gone", *(launch.outcomes.get(one.case, "gone") for launch in newest.launches)]
            after = next(place for place in era.timed_places if place > last.place)
            found.append(OpenItem(one, era.codes[after], outcomes[-1]))
    return sorted(found, key=lambda item: (item.what == "slower", -(item.effect or 0.0)))


def should_have(code: Code) -> Callable[[Series], bool]:
    """Whether a code's launches should have a case: they have it, or each of its axes' values in other cases."""
    axes = {field for launch in code.launches for figure in launch.figures.values() for field in figure.identity}
    cases = {case for launch in code.launches for case in (*launch.figures, *launch.outcomes)}
    return lambda one: one.case in cases or axes.issuperset(one.identity)


def _has_sentinel(launch: Launch) -> bool:
    return any(figure.sentinel_seconds is not None for figure in launch.figures.values())


Rows = list[tuple[Code, list[Figure]]]
Launched = list[list[float]]
"""Seconds of each launch, by code."""


def _era(machine: Machine, has_sentinel: bool, launches: Sequence[Launch], log: Log) -> Era:
    codes = in_order(launches, log)
    found = _figures(codes)
    raw = {key: [[figure.seconds for figure in figures] for _, figures in rows] for key, rows in found.items()}
    corrected = {key: _without_drift(rows) for key, rows in found.items()} if has_sentinel else {}
    before, after = _usual_spread(raw.values()), _usual_spread(corrected.values())
    is_corrected = before is not None and after is not None and after < before
    launched = corrected if is_corrected else raw
    points = [
        [Point(code, times.median, times.median_interval(0.95), len(times))
         for (code, _), times in zip(rows, map(Times, launched[key]), strict=True)]
        for key, rows in found.items()
    ]  # fmt: skip
    seconds = np.full((len(points), len(codes)), np.nan)
    counts = np.zeros(seconds.shape, dtype=int)
    for case, of_case in enumerate(points):
        at = [point.code.place for point in of_case]
        seconds[case, at] = [point.seconds for point in of_case]
        counts[case, at] = [point.launches for point in of_case]
    steps, least_shown = steps_of(seconds, counts, np.array([_figure_variance(launched[key]) for key in found]))
    series = [
        Series(*key, of_case, of_steps, list(_counter_changes(rows)))
        for (key, rows), of_case, of_steps in zip(found.items(), points, steps, strict=True)
    ]
    return Era(machine, has_sentinel, before, after, is_corrected, codes, series, least_shown)


def _figures(codes: Sequence[Code]) -> dict[tuple[str, Identity], Rows]:
    """The figures of each code that measured a case, by case and identity; cases of the newest code come first."""
    found: dict[tuple[str, Identity], Rows] = {}
    for code in reversed(codes):
        of_code: dict[tuple[str, Identity], list[Figure]] = {}
        for launch in code.launches:
            for case, figure in launch.figures.items():
                of_code.setdefault((case, figure.identity), []).append(figure)
        for key, figures in of_code.items():
            found.setdefault(key, []).append((code, figures))
    return {key: rows[::-1] for key, rows in found.items()}


def _without_drift(rows: Rows) -> Launched:
    """Seconds as they would be if the sentinel had always taken its usual time."""
    known = [figure.sentinel_seconds for _, figures in rows for figure in figures if figure.sentinel_seconds]
    usual = median(known) if known else None

    def corrected(figure: Figure) -> float:
        if usual is None or figure.sentinel_seconds is None:
            return figure.seconds
        return figure.seconds * usual / figure.sentinel_seconds

    return [list(map(corrected, figures)) for _, figures in rows]


def _usual_spread(cases: Iterable[Launched]) -> float | None:
    """The median over the cases, because a few of them may have steps of their own, of each case's spread.

    That is the median distance from the median in logarithms; not of successive commits, between which drift is small.
    """
    spreads = []
    for seconds in (list(map(median, of_case)) for of_case in cases):
        if len(seconds) >= FEWEST_FOR_DRIFT:
            middle = median(seconds)
            spreads.append(median(abs(log_ratio(value / middle)) for value in seconds))
    return median(spreads) if spreads else None


def _figure_variance(launched: Launched) -> float:
    """The variance of a commit's figure in logarithms by what its launches differ; NaN where none has two."""
    known = [variance(map(log_ratio, seconds)) for seconds in launched if len(seconds) > 1]
    return fmean(known) * median_loss(median(map(len, launched))) if known else nan


def _counter_changes(rows: Rows) -> Iterator[CounterChange]:
    """Changes of counters, without those that two launches of one code disagree on: no property of the code."""
    known: dict[str, int] = {}
    for code, figures in rows:
        for name in figures[0].counters:
            values = {figure.counters.get(name) for figure in figures}
            value = figures[0].counters[name]
            if len(values) > 1:
                continue
            if known.get(name, value) != value:
                yield CounterChange(name, known[name], value, code)
            known[name] = value
