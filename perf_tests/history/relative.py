"""A history without a machine: gate runs of parent against commit, chained over runners of any CPU.

A run measures both commits on one machine, so its ratios hold wherever it ran, and their products are a curve in per
cent. Errors add up along a chain: a step is judged by the ratio of its own pair of commits, never by the curve's level.

The curve takes each case's ratio from stage 1 alone. Stage 2 measures suspects, which lie high by chance, and what it
takes back of them it does for no case that lies low: means of both stages would drift down with each run.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, variance

import numpy as np

from perf_tests.gate.samples import SIDES, read_samples, rules_from_settings
from perf_tests.gate.stages import replay_stages
from perf_tests.gate.statistics import Floats, estimate, fit_prior, moderated
from perf_tests.gate.verdicts import ExactResult, RunVerdict, Verdict, conclude
from perf_tests.history.commits import Code, Log
from perf_tests.history.steps import FALSE_RATE, FINEST, SMALLEST_STEP
from perf_tests.records.columns import case_name, machine_name
from perf_tests.records.format import DASH, Columns, T, column_table, printable
from perf_tests.records.record import Json, how_many

FIRST_ENGINE = 3
"""Engines before it favoured head by .16 % a run in trials of equal code, which 100 runs make 16 %; the claim
`relative-history` has what later ones do."""
FEWEST_NEIGHBOURS = 12
"""Measured pairs of commits from which a case shows how far its runs differ beyond what their launches do."""
DISAGREE = 0.01
"""Level of the test whether runs of one pair of commits differ, as on two CPUs of which one gains."""

Key = tuple[str, str]
"""A case's id and its identity as JSON."""


@dataclass(frozen=True)
class Ratio:
    """The logarithm of head's time over base's, its variance and degrees of freedom; exact without a variance."""

    log: float
    variance: float = 0.0
    freedom: float = math.inf

    def __add__(self, other: "Ratio") -> "Ratio":
        """The ratio of two pairs in a row; freedom by Satterthwaite (1946)."""
        total = self.variance + other.variance
        inverse = sum(one.variance**2 / one.freedom for one in (self, other))
        return Ratio(self.log + other.log, total, total**2 / inverse if inverse else math.inf)

    def scaled(self, factor: float) -> "Ratio":
        """The same with a standard error as many times as large."""
        return Ratio(self.log, self.variance * factor**2, self.freedom)

    def exceeds(self, probability: float) -> float:
        """How far chance alone reaches with this probability, two-sided."""
        from scipy.stats import t as student

        return float(student.isf(probability / 2, self.freedom)) * self.variance**0.5 if self.variance else 0.0

    @property
    def effect(self) -> float:
        return math.expm1(self.log)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends at 95 %, as shares of the earlier time."""
        half = self.exceeds(0.05)
        return math.expm1(self.log - half), math.expm1(self.log + half)

    @property
    def in_words(self) -> tuple[str, str]:
        return f"{self.effect:+.1%}", "{:+.1%} to {:+.1%}".format(*self.interval)


EXACT = Ratio(0.0)


@dataclass(frozen=True)
class GateRun:
    """What the samples of one gate run say of two commits."""

    base: str
    head: str
    machine: str
    cases: dict[Key, tuple[Ratio, Ratio]]
    """The ratio of stage 1 and that of both stages, for each case that was timed or is the same program."""
    counters: list[ExactResult]


def read_run(path: Path) -> GateRun | str:
    """The run, or why it is no link of a chain; raises ValueError with one sentence for a file that is no samples'."""
    samples = read_samples(path)
    if why := _why_no_link(samples.header):
        return why
    try:
        rules = rules_from_settings(samples.header["settings"])
        result, history = conclude(samples, rules), replay_stages(samples, rules)
    except ValueError as error:
        raise ValueError(f"{path} cannot be judged: {error}") from error
    if result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE, RunVerdict.INTERRUPTED):
        return str(result.verdict)
    clock = result.clock.clock
    of_case = ratios_of(history.screening.by_clock[clock], history.by_clock[clock])
    same = {row.id for row in result.cases if row.verdict == Verdict.SAME}
    cases = {}
    for place, case in enumerate(samples.header["cases"]):
        ratios = (EXACT, EXACT) if case["id"] in same else of_case(place)
        if ratios is not None:
            cases[case["id"], json.dumps(case.get("identity"), sort_keys=True)] = ratios
    base, head = (samples.header[side]["revision"] for side in SIDES)
    return GateRun(
        base, head, machine_name(samples.header), cases, [row for row in result.exact if row.verdict != Verdict.SAME]
    )


def _why_no_link(header: Json) -> str:
    base, head = header["base"], header["head"]
    reasons = {
        "outside of a repository": not all(isinstance(side.get("revision"), str) for side in (base, head)),
        "with uncommitted changes": head.get("changed_files") or "uncommitted" in head["label"],
        "of one commit against itself": base.get("revision") == head.get("revision"),
        "of two builds": "build" in base,
        "of an early engine, which favoured head": header.get("engine", 1) < FIRST_ENGINE,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def ratios_of(first: Floats, second: Floats) -> Callable[..., tuple[Ratio, Ratio] | None]:
    """A function from a place to its ratio by stage 1 and that by both, out of pair values (..., cases, pairs).

    The first has the case's own variance, which is right on average and so adds up; the second the one that the run's
    other cases lend it. None with too few launch pairs.
    """
    prior = fit_prior(estimate(first))
    found = estimate(first), moderated(estimate(np.concatenate((first, second), axis=-1)), prior)

    def of_case(*place: int) -> tuple[Ratio, Ratio] | None:
        if np.isnan(found[0].mean[place]):
            return None
        by_stage = [
            Ratio(float(one.mean[place]), float(max(one.variance[place], FINEST**2) / one.count[place]),
                  float((one.dof + 0 * one.mean)[place]))
            for one in found
        ]  # fmt: skip
        return by_stage[0], by_stage[1]

    return of_case


def together(ratios: Sequence[Ratio]) -> tuple[Ratio, bool]:
    """The mean of several runs of two commits, and whether they differ by more than their launches explain.

    Then their own scatter counts. A run that shows the same program settles it.
    """
    from scipy.stats import f as fisher

    exact = [one for one in ratios if one.variance == 0]
    if exact or len(ratios) == 1:
        return (exact or ratios)[0], False
    total, count = reduce(Ratio.__add__, ratios), len(ratios)
    mean, within = fmean(one.log for one in ratios), total.variance / count**2
    between = variance(one.log for one in ratios) / count
    if between > within * float(fisher.isf(DISAGREE, count - 1, total.freedom)):
        return Ratio(mean, between, count - 1), True
    return Ratio(mean, within, total.freedom), False


@dataclass(frozen=True)
class Link:
    """A case from one place of the line to a later one, by all runs of the two commits."""

    base: int
    head: int
    chained: Ratio
    tested: Ratio

    @property
    def is_step(self) -> bool:
        """Whether chance would name it once in `FALSE_RATE`, and it is large enough to name."""
        return abs(self.tested.log) >= max(math.log1p(SMALLEST_STEP), self.tested.exceeds(FALSE_RATE))


@dataclass(frozen=True)
class Point:
    """A place of the line as a chain says: the place where that begins, the ratio to it, and the last link."""

    origin: int
    ratio: Ratio
    link: Link


def chains_of(links: Iterable[Link]) -> list[list[Point]]:
    """The unbroken chains, the oldest first; of several to one place the longest, of these the most certain."""
    points: dict[int, Point] = {}
    for link in sorted(links, key=lambda one: (one.head, -one.base)):  # of two that are exact, the shorter first
        before, found = points.get(link.base), Point(link.base, link.chained, link)
        if before is not None:
            found = Point(before.origin, before.ratio + link.chained, link)
        known = points.get(link.head)
        if known is None or (found.origin, found.ratio.variance) < (known.origin, known.ratio.variance):
            points[link.head] = found
    chains = []
    for place in {point.origin: place for place, point in sorted(points.items())}.values():
        chain = []
        while place in points:
            chain.append(points[place])
            place = chain[-1].link.base
        chains.append(chain[::-1])
    return sorted(chains, key=lambda chain: chain[0].origin)


@dataclass(frozen=True)
class Curve:
    """A case over the line: the newest unbroken chain, and the steps of every chain, the oldest first."""

    case: str
    identity: Json
    points: list[Point]
    steps: list[Link]

    @property
    def newest(self) -> Point:
        return self.points[-1]

    @property
    def is_still(self) -> bool:
        """Whether its level may be 1."""
        low, high = self.newest.ratio.interval
        return low <= 0 <= high


@dataclass(frozen=True)
class Relative:
    """The curves of all cases over one line of commits, and what was said on the way."""

    codes: list[Code]
    """The commits; places are places in it."""
    machines: set[str]
    runs: int
    aside: Counter[str]
    """Runs that are no link, by why."""
    chains: list[list[Point]]
    """The commits that runs join, whatever the case."""
    curves: list[Curve]
    counters: list[tuple[int, ExactResult]]
    differing: int
    """Comparisons whose runs differ by more than their launches explain."""

    @property
    def newest(self) -> int:
        """The place of the last commit that a run has."""
        return max(chain[-1].link.head for chain in self.chains)

    @property
    def new_slowdowns(self) -> list[str]:
        """Cases that the newest commit with a run slows down."""
        return [one.case for one in self.curves for s in one.steps if s.head == self.newest and s.tested.log > 0]


def relative_of(runs: Iterable[GateRun | str], line: Sequence[str], log: Log, since: int = 0) -> Relative:
    """Chain the runs of commits on the line, from place `since` on; a run that was stored twice counts once.

    Raises ValueError, with why, where no run is left.
    """
    places, aside, counted = {commit: place for place, commit in enumerate(line)}, Counter[str](), list[GateRun]()
    for run in runs:
        why = run if isinstance(run, str) else "stored twice" if run in counted else _why_off_line(run, places, log)
        if why:
            aside[why] += 1
        elif not isinstance(run, str) and places[run.base] >= since:
            counted.append(run)
    if not counted:
        why = ", ".join(f"{count} {why}" for why, count in aside.most_common())
        raise ValueError(f"No gate run joins two commits of this line{why and ': left aside are '}{why}.")
    by_case: dict[Key, dict[tuple[int, int], list[tuple[Ratio, Ratio]]]] = {}
    counters: dict[tuple[int, str, str], ExactResult] = {}
    for run in counted:
        base, head = places[run.base], places[run.head]
        counters |= {(head, row.id, row.counter): row for row in run.counters}
        for key, ratios in run.cases.items():
            by_case.setdefault(key, {}).setdefault((base, head), []).append(ratios)
    curves, differing = [], 0
    for (case, identity), pairs in by_case.items():
        links = []
        for (base, head), found in pairs.items():
            (first, differs), (both, _) = (together([ratios[stage] for ratios in found]) for stage in (0, 1))
            links.append(Link(base, head, first, both))
            differing += differs
        curves.append(_curve(case, json.loads(identity), links))
    codes = [Code(name[:12], name, log.dates.get(name, ""), log.subjects.get(name, ""), (), False) for name in line]
    chains = chains_of(Link(places[run.base], places[run.head], EXACT, EXACT) for run in counted)
    changes = [(key[0], counters[key]) for key in sorted(counters)]
    return Relative(codes, {run.machine for run in counted}, len(counted), aside, chains, curves, changes, differing)


def _why_off_line(run: GateRun, places: dict[str, int], log: Log) -> str:
    commits = {run.base, run.head}
    if commits - log.places.keys():
        return "of commits that are not in this clone: it is shallow (`git fetch --unshallow`), or they were rewritten"
    if commits - places.keys():
        return "of commits off the line of HEAD's first parents: a branch, or a line that was rewritten"
    return "with a base newer than its head" if places[run.base] > places[run.head] else ""


def _curve(case: str, identity: Json, links: Sequence[Link]) -> Curve:
    """Chain one case's links, with standard errors as large as its runs, the neighbours of each, show them to be."""
    from scipy.stats import t as student

    known = [link.tested for link in links if link.tested.variance]
    if len(known) >= FEWEST_NEIGHBOURS:
        usual = [abs(one.log) / one.variance**0.5 / float(student.isf(0.25, one.freedom)) for one in known]
        factor = max(1.0, median(usual))
        links = [Link(one.base, one.head, one.chained.scaled(factor), one.tested.scaled(factor)) for one in links]
    chains = chains_of(links)
    return Curve(case, identity, chains[-1], [one.link for chain in chains for one in chain if one.link.is_step])


# The same in words and as JSON.


def relative_lines(found: Relative, named: str | None = None) -> list[str]:
    """What was chained and what was not, where cases have got to, steps, counters, every commit of cases so `named`."""
    codes = found.codes
    level: Columns[Curve] = {
        "case": lambda one: case_name(one.case),
        "time": lambda one: one.newest.ratio.in_words[0],
        "95 % interval": lambda one: one.newest.ratio.in_words[1],
        "since": lambda one: codes[one.newest.origin].name,
        "until": lambda one: codes[one.newest.link.head].name,
        "measured": lambda one: f"{_measured(one.points)} of {how_many(len(one.points), 'time')}",
    }
    step: Columns[tuple[Curve, Link]] = {
        "step": lambda row: case_name(row[0].case),
        "change": lambda row: row[1].tested.in_words[0],
        "95 % interval": lambda row: row[1].tested.in_words[1],
        "since": lambda row: since(row[1], codes),
        **_commit(lambda row: codes[row[1].head]),
    }
    counter: Columns[tuple[int, ExactResult]] = {
        "counter": lambda row: case_name(row[1].id),
        "name": lambda row: row[1].counter,
        "before": lambda row: f"{row[1].old:,}",
        "after": lambda row: f"{row[1].new:,}",
        "since": lambda row: codes[row[0]].name,
        **_commit(lambda row: codes[row[0]]),
    }
    point: Columns[Point] = {
        "commit": lambda one: codes[one.link.head].name,
        "time": lambda one: one.ratio.in_words[0],
        "95 % interval": lambda one: one.ratio.in_words[1],
        "by itself": lambda one: one.link.chained.in_words[0] if one.link.chained.variance else "SAME",
        "": lambda one: "step" if one.link.is_step else "",
        **_commit(lambda one: codes[one.link.head]),
    }
    still = [one for one in found.curves if one.is_still and one.newest.link.head == found.newest]
    moved = [one for one in found.curves if one not in still]
    steps = sorted(((one, s) for one in found.curves for s in one.steps), key=lambda row: -row[1].tested.log)
    lines = _conditions(found)
    lines += column_table(level, sorted(moved, key=lambda one: -one.newest.ratio.log)) if moved else []
    if still:
        most = max(one.newest.ratio.interval[1] for one in still)
        lines.append(f"{how_many(len(still), 'case')} not shown to have moved, by {most:.1%} at most")
    lines += column_table(step, steps) if steps else ["no step in any case"]
    lines += column_table(counter, found.counters) if found.counters else []
    for one in found.curves:
        if named is not None and named in case_name(one.case):
            lines += [f"{case_name(one.case)} since {codes[one.newest.origin].name}", *column_table(point, one.points)]
    new = found.new_slowdowns
    said = f"history: {how_many(len(steps), 'step')}, {how_many(len(found.counters), 'counter change')}; "
    said += f"{how_many(len(new), 'slowdown')} by" if new else "no slowdown is new with"
    return [printable(line).rstrip() for line in (*lines, f"{said} the newest commit")]


def since(link: Link, codes: Sequence[Code]) -> str:
    """The commit; of a run over several commits, which may be the one."""
    others = link.head - link.base - 1
    return codes[link.head].name + (f" or {how_many(others, 'commit')} before" if others else "")


def _commit(code_of: Callable[[T], Code]) -> Columns[T]:
    return {
        "date": lambda row: code_of(row).date[:10] or DASH,
        "subject": lambda row: code_of(row).subject[:50] or DASH,
    }


def _measured(points: Iterable[Point]) -> int:
    """How many comparisons are of two programs."""
    return sum(point.link.chained.variance > 0 for point in points)


def _conditions(found: Relative) -> list[str]:
    """The runs, and each reason why one says nothing or a curve breaks off."""
    codes, newest = found.codes, found.newest
    points = [point for one in found.curves for point in one.points]
    lines = [
        f"{how_many(found.runs, 'gate run')}, {codes[found.chains[0][0].origin].name} to {codes[newest].name}, on "
        f"{how_many(len(found.machines), 'kind')} of machine; {len(points) - _measured(points)} of {len(points)} "
        "comparisons are of the same program, a ratio of exactly 1",
        *(f"left aside: {how_many(count, 'run')} {why}" for why, count in found.aside.most_common()),
    ]
    for before, after in pairwise(found.chains):
        base, head = codes[before[-1].link.head].name, codes[after[0].origin].name
        lines.append(
            f"gap: no run joins {base} and {head}, where curves begin anew; "
            f"`perf-tests run --against {base}` at {head} closes it"
        )
    if later := len(codes) - 1 - newest:
        lines.append(f"without a run: {how_many(later, 'commit')} after {codes[newest].name}")
    if found.differing:
        lines.append(
            f"{how_many(found.differing, 'comparison')} that ran several times differ between the runs, as between two "
            "CPUs, and are as uncertain as that"
        )
    return lines


def relative_json(found: Relative) -> Json:
    """Effects and intervals are shares of the earlier time."""
    name = [code.commit for code in found.codes]
    return {
        "runs": found.runs,
        "machines": sorted(found.machines),
        "left_aside": dict(found.aside),
        "gaps": [[name[a[-1].link.head], name[b[0].origin]] for a, b in pairwise(found.chains)],
        "newest": name[found.newest],
        "cases": [
            {
                "case": one.case, "identity": one.identity, "since": name[one.newest.origin],
                "points": [
                    {"commit": name[point.link.head], "effect": point.ratio.effect, "interval": point.ratio.interval,
                     "after": name[point.link.base], "is_same": not point.link.chained.variance}
                    for point in one.points
                ],
                "steps": [
                    {"since": name[step.head], "after": name[step.base], "effect": step.tested.effect,
                     "interval": step.tested.interval}
                    for step in one.steps
                ],
            }
            for one in found.curves
        ],
        "counter_changes": [
            {"case": row.id, "counter": row.counter, "before": row.old, "after": row.new, "since": name[place]}
            for place, row in found.counters
        ],
        "new_slowdowns": found.new_slowdowns,
    }  # fmt: skip
