"""One case over the commits of one machine: figures, drift of the machine taken out, steps, counters.

Steps are commits at which the level of a series moved, found by the library ruptures and tested one by one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, expm1, log1p, nan, prod
from math import log as log_ratio
from operator import itemgetter
from statistics import fmean, median, variance
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perf_tests_suite.perf_tests.history.commits import (
    Code,
    CommitLog,
    Figure,
    Identity,
    Launch,
    Machine,
    in_order,
    moment,
)
from perf_tests_suite.perf_tests.records.record import Times

FEWEST_FOR_DRIFT = 3
"""Figures of a case that can show whether its drift is the sentinel's."""
LEAST_LAUNCHES = 3
"""The fewest launches on either side of a step: one may be disturbed, and two cannot say which of them is."""
SMALLEST_STEP = 0.02
"""The smallest change that is named a step: launches of one code differ by as much between days."""
FALSE_RATE = 3e-4
"""False alarms of the test of one step between two levels; how often it errs as a whole is measured, not derived."""

PENALTY = 2.5
"""Cost of one change point in units of the kernel, where an outlier costs at most 1: two outliers never make one."""
KERNEL_GAMMA = 0.2
"""Width of the kernel for a signal in units of its own scatter: beyond about three of them, all is equally far."""
FREEDOM = 0.41, 0.5
"""Degrees of freedom of `scatter`: so many a difference, and so many more; simulated for 4 to 400 normal values."""
FEWEST_COMMITS, FEWEST_CASES = 4, 6
"""Fewer commits have no scatter of their own; fewer cases do not show what all share, which a step would move."""
DAYS_FREEDOM = 10
"""The freedom lent to the assumption that days differ by `SMALLEST_STEP`: until they differ by more."""
MEDIAN_LOSS = 1.5708
"""The variance of a median over that of a mean, for many normal values: pi / 2; of one value they are the same."""
NORMAL_DISTANCES = np.array([0.6745, 1.1503])
"""Distances from the middle of normal values to half and to three quarters of them, in standard deviations."""
FINEST = 1e-4
"""The least scatter, in logarithms: clocks resolve no less."""


@dataclass(frozen=True)
class Step:
    """The level changes at place `start` of the series; effects are later / earlier - 1, the interval 95 %."""

    start: int
    effect: float
    interval: tuple[float, float]
    launches_before: int
    launches_after: int


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
    compiling: dict[str, list[tuple[Code, float]]] = field(default_factory=dict)
    """The median seconds to compile a part of it, by commit; `cold forward` is one with an empty cache."""

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


def newest_first(machines: Iterable[Machine], log: CommitLog) -> list[Era]:
    """The eras of every machine, that of the newest run first."""
    eras = [era for machine in machines for era in eras_of(machine, log)]
    eras.sort(key=lambda era: max(moment(one.written) for code in era.codes for one in code.launches), reverse=True)
    return eras


def eras_of(machine: Machine, log: CommitLog) -> list[Era]:
    """The older launches, which record no sentinel, apart; those that timed nothing are in the newest."""
    older = [one for one in machine.launches if one.figures and not _has_sentinel(one)]
    newer = [one for one in machine.launches if _has_sentinel(one)]
    rest = [one for one in machine.launches if not one.figures]
    found = {False: older + rest} if older and not newer else {False: older, True: newer + rest}
    return [_era(machine, has_sentinel, launches, log) for has_sentinel, launches in found.items() if launches]


def new_slowdowns(era: Era, log: CommitLog) -> list[tuple[Series, Step]]:
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


def _era(machine: Machine, has_sentinel: bool, launches: Sequence[Launch], log: CommitLog) -> Era:
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
        Series(*key, of_case, of_steps, list(_counter_changes(rows)), _compiling(rows))
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
    usual = median(known) if known else 1.0
    return [
        [one.seconds * usual / one.sentinel_seconds if one.sentinel_seconds else one.seconds for one in figures]
        for _, figures in rows
    ]


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


def _compiling(rows: Rows) -> dict[str, list[tuple[Code, float]]]:
    parts = dict.fromkeys(part for _, figures in rows for figure in figures for part in figure.compile_seconds)
    by_code = [
        (part, code, [one.compile_seconds[part] for one in figures if part in one.compile_seconds])
        for part in parts for code, figures in rows
    ]  # fmt: skip
    return {part: [(code, median(of)) for of_part, code, of in by_code if of_part == part and of] for part in parts}


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


# The steps of a series.


Floats = NDArray[np.float64]


def scatter(values: Sequence[float] | Floats) -> float:
    """The standard deviation of one value, from successive differences, so that steps and outliers hardly count.

    By their median distance or by the third quartile, whichever is larger: of launches that fall into two modes the
    median may see only what one of them scatters by.
    """
    differences = np.diff(np.asarray(values, dtype=float))
    if len(differences) == 0:
        return 0.0
    # Of four differences, the one with a step would be half of the quartile.
    method: Literal["lower", "linear"] = "lower" if len(differences) < 5 else "linear"
    distances = np.quantile(np.abs(differences), (0.5, 0.75), method=method)
    return float(max(distances / NORMAL_DISTANCES) / 2**0.5)


def noise_of(logs: Floats, within: Floats) -> tuple[Floats, Floats]:
    """How a commit's figure scatters in each row of `logs`, (cases, commits), NaN where one did not measure a case.

    These are the deviation in logarithms, and the freedom of its estimate, both (cases,).

    A young history's cases lend each other freedom, as far as they scatter alike (Smyth 2004; see `moderated`). What
    moves all of them from one commit to the next, a day of the machine, is no case's own scatter: it is estimated apart
    with the freedom of one series, and both are added (Satterthwaite 1946). Where there are few cases or commits, days
    are taken to differ by `SMALLEST_STEP` until they show otherwise, beside what launches do: `within`, (cases,), is
    the variance of a commit's figure by its launches, NaN where no commit has two.
    """
    from scipy.stats import t as student

    from perf_tests_suite.perf_tests.gate.statistics import Estimate, fit_prior, moderated

    counts = np.sum(~np.isnan(logs), axis=1)
    freedoms = np.where(counts >= FEWEST_COMMITS, FREEDOM[0] * (counts - 1) + FREEDOM[1], np.nan)
    is_shared = np.sum(counts >= FEWEST_COMMITS) >= FEWEST_CASES
    together = np.zeros(logs.shape[1])
    if is_shared:
        moves = np.diff(logs)
        known = np.sum(~np.isnan(moves), axis=0) >= FEWEST_CASES
        together[1:][known] = np.nanmedian(moves[:, known], axis=0)
        together = np.cumsum(together)
    own = np.array([max(scatter(row[~np.isnan(row)]), FINEST) ** 2 for row in logs - together])
    own[np.isnan(freedoms)] = np.nan
    found = own**0.5, freedoms
    if is_shared:
        plain = Estimate(np.ones(len(own)), np.zeros(len(own)), own, freedoms)
        lent = moderated(plain, fit_prior(plain))
        day, day_freedom = scatter(together) ** 2, FREEDOM[0] * (logs.shape[1] - 1) + FREEDOM[1]
        freedom = np.minimum(lent.dof, np.nansum(freedoms) * (1 - 1 / len(own)))
        total = lent.variance + day
        found = total**0.5, total**2 / (lent.variance**2 / freedom + day**2 / day_freedom)
    # Those that are left to themselves: by what days are taken to do, where that shows smaller steps.
    known_freedoms = np.nan_to_num(freedoms)
    taken = DAYS_FREEDOM * (SMALLEST_STEP**2 + within) + known_freedoms * np.nan_to_num(own)
    taken_freedoms = DAYS_FREEDOM + known_freedoms
    alone = (taken / taken_freedoms) ** 0.5, taken_freedoms
    limits = [deviations * student.isf(FALSE_RATE / 2, freedom) for deviations, freedom in (alone, found)]
    uses = np.isnan(limits[1]) | ((not is_shared) & (limits[0] < limits[1]))
    return np.where(uses, alone[0], found[0]), np.where(uses, alone[1], found[1])


def steps_of(
    seconds: Floats, launches: NDArray[np.int_], within: Floats | None = None
) -> tuple[list[list[Step]], float | None]:
    """The steps of each case, and the least slowdown of a usual case's newest commit that is found in 4 of 5 histories.

    `seconds` are the medians of commits, (cases, commits), NaN where one did not measure a case; `launches` are as
    many, and `within` is that of `noise_of`. None where no case has launches enough for a step.
    """
    if seconds.shape[1] < 2:
        return [[] for _ in seconds], None
    from scipy.stats import norm  # takes most of a second
    from scipy.stats import t as student

    logs = np.log(seconds)
    noise = noise_of(logs, np.full(len(logs), np.nan) if within is None else within)
    found: list[list[Step]] = []
    least: list[float] = []
    for row, counts, deviation, freedom in zip(logs, launches, *noise, strict=True):
        if np.isnan(freedom):
            found.append([])
            continue
        values, counts = row[~np.isnan(row)], counts[~np.isnan(row)]
        limit, around = (float(student.isf(rate / 2, freedom)) for rate in (FALSE_RATE, 0.05))
        found.append(_steps(values, counts, float(deviation), limit, around))
        newest = ceil(LEAST_LAUNCHES / np.median(counts))
        if newest < len(counts):
            error = (median_loss(len(counts) - newest) + median_loss(newest)) ** 0.5  # of the difference, in deviations
            least.append(deviation * error * (limit + norm.ppf(0.8)))
    return found, max(SMALLEST_STEP, expm1(np.median(least))) if least else None


def _steps(values: Floats, launches: NDArray[np.int_], noise: float, limit: float, around: float) -> list[Step]:
    """The borders between levels that are `limit` standard errors apart; intervals reach `around` to either side.

    The search for borders is generous, because each is tested afterwards. A commit has as many points there as
    launches, so that they weigh it; all have the commit's figure.
    """
    starts, ends = [0, len(values)], np.cumsum(launches)
    if ends[-1] >= 2 * LEAST_LAUNCHES:
        from ruptures import KernelCPD  # loads scipy

        signal = np.repeat((values - np.median(values)) / noise, launches)
        search = KernelCPD(kernel="rbf", min_size=LEAST_LAUNCHES, params={"gamma": KERNEL_GAMMA})
        borders = search.fit(signal[:, None]).predict(pen=PENALTY)[:-1]
        starts = sorted({*starts, *(int(np.argmin(np.abs(ends - border))) + 1 for border in borders)})
    level = cache(lambda first, end: float(np.median(values[first:end])))
    while True:
        found = []
        for first, start, last in zip(starts, starts[1:], starts[2:], strict=False):
            move, before, after = level(start, last) - level(first, start), launches[first:start], launches[start:last]
            difference, error = abs(move), float((median_loss(len(before)) + median_loss(len(after))) ** 0.5)
            too_few = min(sum(before), sum(after)) < LEAST_LAUNCHES
            # A commit alone may be a day on which the machine was disturbed; the newest one cannot wait for another,
            # nor can the first of two.
            is_alone = (len(before) == 1 and len(launches) > 2) or (len(after) == 1 and last < len(launches))
            may_be = not (too_few or is_alone or difference < log1p(SMALLEST_STEP))
            half = noise * around * error
            low, middle, high = (expm1(value) for value in (move - half, move, move + half))
            step = Step(start, middle, (low, high), int(sum(before)), int(sum(after)))
            found.append(((may_be, difference / (noise * error)), step))
        weakest = min(found, key=itemgetter(0), default=None)
        if weakest is None or weakest[0] >= (True, limit):
            return [step for _, step in found]
        starts.remove(weakest[1].start)


def median_loss(count: float) -> float:
    """The variance of the median of so many normal values, in units of one value's; exact within 4 % but of two."""
    return MEDIAN_LOSS / (count + MEDIAN_LOSS - 1)
