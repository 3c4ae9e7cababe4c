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
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, variance

import numpy as np

from perf_tests_suite.perf_tests.gate.samples import SIDES, read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.stages import replay_stages
from perf_tests_suite.perf_tests.gate.statistics import Floats, estimate, fit_prior, moderated
from perf_tests_suite.perf_tests.gate.verdicts import ExactResult, RunVerdict, Verdict, conclude
from perf_tests_suite.perf_tests.history.commits import CommitLog
from perf_tests_suite.perf_tests.history.series import FALSE_RATE, FINEST, SMALLEST_STEP
from perf_tests_suite.perf_tests.records.columns import case_name, machine_name
from perf_tests_suite.perf_tests.records.format import Column, column_table, printable, text_column
from perf_tests_suite.perf_tests.records.record import Json, how_many

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
    def shown(self) -> Json:
        """The effect and its 95 % interval, as shares of the earlier time."""
        half = self.exceeds(0.05)
        low, middle, high = (math.expm1(log) for log in (self.log - half, self.log, self.log + half))
        return {"effect": middle, "interval": [low, high]}


EXACT = Ratio(0.0)


@dataclass(frozen=True)
class RunRatios:
    """What the samples of one gate run say of two commits."""

    base: str
    head: str
    machine: str
    cases: dict[Key, tuple[Ratio, Ratio]]
    """The ratio of stage 1 and that of both stages, for each case that was timed or is the same program."""
    counters: list[ExactResult]


def read_run(path: Path) -> RunRatios | str:
    """The run, or why it is no link of a chain; raises ValueError with one sentence for a file that is no samples'."""
    samples = read_samples(path)
    base, head = (samples.header[side] for side in SIDES)
    reasons = {
        "outside of a repository": not all(isinstance(side.get("revision"), str) for side in (base, head)),
        "with uncommitted changes": head.get("changed_files") or "uncommitted" in head["label"],
        "of one commit against itself": base.get("revision") == head.get("revision"),
        "of two builds": "build" in base,
        "of an early engine, which favoured head": samples.header.get("engine", 1) < FIRST_ENGINE,
    }
    if why_no_link := next((why for why, is_so in reasons.items() if is_so), ""):
        return why_no_link
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
    counters = [row for row in result.exact if row.verdict != Verdict.SAME]
    return RunRatios(base["revision"], head["revision"], machine_name(samples.header), cases, counters)


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


def pooled(ratios: Sequence[Ratio]) -> tuple[Ratio, bool]:
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
class ChainLink:
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
class ChainPoint:
    """A place of the line as a chain says: the place where that begins, the ratio to it, and the last link."""

    origin: int
    ratio: Ratio
    link: ChainLink


def chains_of(links: Iterable[ChainLink]) -> list[list[ChainPoint]]:
    """The unbroken chains, the oldest first; of several to one place the longest, of these the most certain."""
    points: dict[int, ChainPoint] = {}
    for link in sorted(links, key=lambda one: (one.head, -one.base)):  # of two that are exact, the shorter first
        before, found = points.get(link.base), ChainPoint(link.base, link.chained, link)
        if before is not None:
            found = ChainPoint(before.origin, before.ratio + link.chained, link)
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


def relative_of(runs: Iterable[RunRatios | str], line: Sequence[str], log: CommitLog, since: int = 0) -> Json:
    """Chain the runs of commits on the line, from place `since` on; a run that was stored twice counts once.

    Effects and intervals are shares of the earlier time. Raises ValueError, with why, where no run is left.
    """
    places = {commit: place for place, commit in enumerate(line)}
    counted, aside = _on_line(runs, places, log, since)

    def at(place: int) -> Json:
        commit = line[place]
        return {"since": commit, "date": log.dates.get(commit, ""), "subject": log.subjects.get(commit, "")}

    by_case: dict[Key, dict[tuple[int, int], list[tuple[Ratio, Ratio]]]] = {}
    changes: dict[tuple[int, str, str], Json] = {}
    for run in counted:
        base, head = places[run.base], places[run.head]
        for row in run.counters:
            told = {"case": row.id, "counter": row.counter, "before": row.old, "after": row.new}
            changes[head, row.id, row.counter] = {**told, **at(head)}
        for key, ratios in run.cases.items():
            by_case.setdefault(key, {}).setdefault((base, head), []).append(ratios)
    whole = chains_of(ChainLink(places[run.base], places[run.head], EXACT, EXACT) for run in counted)
    newest = max(chain[-1].link.head for chain in whole)
    cases, differing = [], 0
    for (case, identity), pairs in by_case.items():
        links = []
        for (base, head), found in pairs.items():
            (first, differs), (both, _) = (pooled([ratios[stage] for ratios in found]) for stage in (0, 1))
            links.append(ChainLink(base, head, first, both))
            differing += differs
        chains = chains_of(_with_neighbours(links))
        last = chains[-1][-1]
        points = [
            {**at(point.link.head), **point.ratio.shown, "by_itself": point.link.chained.shown["effect"],
             "is_same": not point.link.chained.variance, "is_step": point.link.is_step}
            for point in chains[-1]
        ]  # fmt: skip
        steps = [
            {"case": case, **at(link.head), **link.tested.shown, "commits": link.head - link.base,
             "is_newest": link.head == newest}
            for chain in chains for link in (point.link for point in chain) if link.is_step
        ]  # fmt: skip
        cases.append(
            {"case": case, "identity": json.loads(identity), "since": line[last.origin], "until": line[last.link.head],
             **last.ratio.shown, "points": points, "steps": steps}
        )  # fmt: skip
    return {
        "runs": len(counted),
        "machines": sorted({run.machine for run in counted}),
        "left_aside": dict(aside.most_common()),
        "gaps": [[line[before[-1].link.head], line[after[0].origin]] for before, after in pairwise(whole)],
        "differing": differing,
        "oldest": line[whole[0][0].origin],
        "newest": line[newest],
        "later": len(line) - 1 - newest,
        "cases": cases,
        "counter_changes": [changes[key] for key in sorted(changes)],
        "new_slowdowns": [s["case"] for one in cases for s in one["steps"] if s["is_newest"] and s["effect"] > 0],
    }


def _on_line(
    runs: Iterable[RunRatios | str], places: dict[str, int], log: CommitLog, since: int
) -> tuple[list[RunRatios], Counter[str]]:
    """The runs that are links of the line, and how many are not, by why."""
    aside, counted = Counter[str](), list[RunRatios]()
    for run in runs:
        if isinstance(run, str):
            why = run
        elif run in counted:
            why = "stored twice"
        elif {run.base, run.head} - log.places.keys():
            why = "of commits that this clone lacks: it is shallow (`git fetch --unshallow`), or they were rewritten"
        elif {run.base, run.head} - places.keys():
            why = "of commits off the line of HEAD's first parents: a branch, or a line that was rewritten"
        elif places[run.base] > places[run.head]:
            why = "with a base newer than its head"
        else:
            counted += [run] if places[run.base] >= since else []
            continue
        aside[why] += 1
    if not counted:
        why = ", ".join(f"{count} {why}" for why, count in aside.most_common())
        raise ValueError(f"No gate run joins two commits of this line{why and ': left aside are '}{why}.")
    return counted, aside


def _with_neighbours(links: list[ChainLink]) -> list[ChainLink]:
    """The links with standard errors as large as the case's runs, the neighbours of each, show them to be."""
    from scipy.stats import t as student

    known = [link.tested for link in links if link.tested.variance]
    if len(known) < FEWEST_NEIGHBOURS:
        return links
    usual = [abs(one.log) / one.variance**0.5 / float(student.isf(0.25, one.freedom)) for one in known]
    factor = max(1.0, median(usual))
    return [ChainLink(one.base, one.head, one.chained.scaled(factor), one.tested.scaled(factor)) for one in links]


# The same in words.

CASE: Column[Json] = text_column("case", lambda row: case_name(row["case"]))
CHANGE: tuple[Column[Json], ...] = (
    Column("level_change", float, "", lambda row: row["effect"], heading="change"),
    Column("interval_change", tuple, "", lambda row: row["interval"], heading="95 % interval"),
)
COMMIT: tuple[Column[Json], ...] = (
    # A run over several commits does not say which of them it is.
    text_column("since", lambda row: row["since"][:12] + (
        f", or {row['commits'] - 1} before" if row.get("commits", 1) > 1 else ""
    )),
    text_column("date", lambda row: row["date"][:10]),
    text_column("subject", lambda row: row["subject"][:50]),
)  # fmt: skip
LEVELS: tuple[Column[Json], ...] = (
    CASE,
    *CHANGE,
    text_column("since", lambda row: row["since"][:12]),
    text_column("until", lambda row: row["until"][:12]),
    text_column(
        "measured", lambda row: f"{sum(not one['is_same'] for one in row['points'])} of {len(row['points'])} times"
    ),
)
STEPS = (replace(CASE, heading="step"), *CHANGE, *COMMIT)
COUNTERS: tuple[Column[Json], ...] = (
    replace(CASE, heading="counter"),
    text_column("name", lambda row: row["counter"]),
    Column("before", int, "", lambda row: row["before"]),
    Column("after", int, "", lambda row: row["after"]),
    *COMMIT,
)
POINTS: tuple[Column[Json], ...] = (
    *CHANGE,
    text_column("by itself", lambda row: "SAME" if row["is_same"] else f"{row['by_itself']:+.1%}"),
    text_column("", lambda row: "step" if row["is_step"] else " "),
    *COMMIT,
)


def relative_lines(found: Json, named: str | None = None) -> list[str]:
    """What was chained and what was not, where cases have got to, steps, counters, every commit of cases so `named`."""
    points = [point["is_same"] for one in found["cases"] for point in one["points"]]
    lines = [
        f"{how_many(found['runs'], 'gate run')}, {found['oldest'][:12]} to {found['newest'][:12]}, on "
        f"{how_many(len(found['machines']), 'kind')} of machine; {sum(points)} of {len(points)} comparisons are of the "
        "same program, a ratio of exactly 1",
        *(f"left aside: {how_many(count, 'run')} {why}" for why, count in found["left_aside"].items()),
        *(
            f"gap: no run joins {base[:12]} and {head[:12]}, where curves begin anew; "
            f"`perf-tests run --against {base[:12]}` at {head[:12]} closes it"
            for base, head in found["gaps"]
        ),
    ]
    if found["later"]:
        lines.append(f"without a run: {how_many(found['later'], 'commit')} after {found['newest'][:12]}")
    if found["differing"]:
        lines.append(
            "runs of one pair differ by more than their launches explain, as between two CPUs, in "
            f"{how_many(found['differing'], 'comparison')}: as uncertain as that"
        )
    still, moved = list[Json](), list[Json]()
    for one in found["cases"]:
        low, high = one["interval"]
        (still if low <= 0 <= high and one["until"] == found["newest"] else moved).append(one)
    lines += column_table(LEVELS, sorted(moved, key=lambda one: -one["effect"])) if moved else []
    if still:
        most = max(one["interval"][1] for one in still)
        lines.append(f"{how_many(len(still), 'case')} not shown to have moved, by {most:.1%} at most")
    steps = sorted((step for one in found["cases"] for step in one["steps"]), key=lambda step: -step["effect"])
    lines += column_table(STEPS, steps) if steps else ["no step in any case"]
    counters, new = found["counter_changes"], found["new_slowdowns"]
    lines += column_table(COUNTERS, counters) if counters else []
    for one in found["cases"]:
        if named is not None and named in case_name(one["case"]):
            lines += [f"{case_name(one['case'])} since {one['since'][:12]}", *column_table(POINTS, one["points"])]
    said = f"history: {how_many(len(steps), 'step')}, {how_many(len(counters), 'counter change')}; "
    said += f"{how_many(len(new), 'slowdown')} by" if new else "no slowdown is new with"
    lines.append(f"{said} the newest commit")
    return [printable(line).rstrip() for line in lines]
