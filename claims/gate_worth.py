"""What kept runs of the gate say: false alarms, power, bias, cost, and other tools' rules on the same rounds."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

import numpy as np
from scipy.stats import binom

from claims.gate import FEWEST_UNCHANGED, INJECTED, KEPT, Trial, TrialsByProof, trials_under
from claims.planted import NO_OP_CHANGES, REAL_SLOWDOWNS
from claims.statistics import Share
from perf_tests.gate.samples import ENGINES, FEWEST_PAIRS, PRESENT_ENGINE, PairTime, rules_from_settings
from perf_tests.gate.stages import replay_stages
from perf_tests.gate.verdicts import CaseResult, RunVerdict, Verdict
from perf_tests.records.format import DASH, duration, table

FAMILY_WISE_RATE = 0.01
CALM_SPREAD, CLAIMED_SPREAD = 0.01, 0.02
"""What launch pairs scatter by at most where unchanged cases are cleared soon, and where slowdowns are found."""
FEWEST_TRIALS = 40
"""Benchmarks slowed on a calm machine, of each slowdown, that a statement on power takes."""
FEWEST_BENCHMARKS, SHORT_ROUND_SECONDS = 20, 0.01
"""A suite for which screening within minutes is claimed: so many benchmarks, whose median round is no longer."""


def worth() -> dict[str, float]:
    """Print what the committed runs say; the claimed figures of the present engine."""
    trials = trials_under(KEPT)
    say(trials)
    return figures(of_present_engine(trials))


def of_present_engine(trials: TrialsByProof) -> TrialsByProof:
    """Its runs, without those that the gate refused; every unchanged run shows what it cost."""
    runs = {**trials, "cost": [*trials["false-alarms"], *trials["cost"]]}
    return {
        proof: [trial for trial in found if trial.engine == PRESENT_ENGINE and trial.says_something]
        for proof, found in runs.items()
    }


def say(trials: TrialsByProof) -> None:
    """Print a line for each engine, the tables of the present one, and that of other tools' rules."""
    everything = [trial for found in trials.values() for trial in found]
    engines = Counter(trial.engine for trial in everything)
    for number, about in enumerate(ENGINES, start=1):
        print(f"engine {number}, {engines[number]} runs: {about}")
    refused = sum(trial.engine == PRESENT_ENGINE and not trial.says_something for trial in everything)
    print(f"\nengine {PRESENT_ENGINE}, the present one:\n")
    print(f"contaminated runs, which the gate refused: {refused} of {engines[PRESENT_ENGINE]}")
    present = of_present_engine(trials)
    for lines in (_of_false_alarms(present["false-alarms"]), _of_power(present["power"]), suites_of(present["cost"])):
        print(*lines, sep="\n")
    print("\nother tools' rules on the same rounds, of all engines:\n")
    print(*rules_table(trials), sep="\n")


def figures(present: TrialsByProof) -> dict[str, float]:
    """What is claimed, by name, without figures of which too few runs or no calm machine say anything."""
    found: dict[str, float] = {}
    unchanged = present["false-alarms"]
    alarms = sum(map(is_false_alarm, unchanged))
    # So few runs cannot show a rate of 1 %; simulated and relabelled ones do. These can refute it.
    explained = float(binom.sf(alarms - 1, len(unchanged), FAMILY_WISE_RATE))
    if len(unchanged) >= FEWEST_UNCHANGED or explained < 0.05:
        found["chance of so many false alarms at a rate of 1 %"] = explained
    real = [trial for trial in present["power"] if not is_injected(trial)]
    if real:
        found["real slowdowns missed"] = sum(
            not is_caught_by_time(trial) and not is_caught_by_counters(trial) for trial in real
        )
    slowed = slowed_in(filter(is_injected, present["power"]))
    if said := [case for case in slowed if case.is_said_to_be_found]:
        # On a noisy machine this is all that is promised: refuted where the promised share lies above its interval.
        found["found of what a run says that it detects, upper end"] = found_share(said).limits[1]
    for size in (0.03, 0.05):
        calm = [case for case in slowed if case.is_calm and case.slowdown == size]
        if len(calm) >= FEWEST_TRIALS:
            found[f"found of {size:.0%}"] = found_share(calm).count / len(calm)
            found[f"bias at {size:.0%}"] = mean(errors_of(calm))
    suites = [
        suite
        for suite in suites_of(present["cost"])
        if suite.round_seconds <= SHORT_ROUND_SECONDS
        and suite.benchmarks >= FEWEST_BENCHMARKS
        and suite.cleared(CALM_SPREAD).of
    ]
    if suites:
        found["seconds of screening"] = max(screening_seconds(trial) for suite in suites for trial in suite.trials)
        cleared = [suite.cleared(CALM_SPREAD) for suite in suites]
        found["cleared by screening"] = min(share.count / share.of for share in cleared)
    return found


def is_false_alarm(trial: Trial) -> bool:
    """Whether a run of unchanged code failed."""
    return trial.result.verdict == RunVerdict.FAILED


def _of_false_alarms(trials: Sequence[Trial]) -> Iterator[str]:
    for change in NO_OP_CHANGES:
        of_kind = [trial for trial in trials if trial.truth["change"] == change]
        yield f"{change:16} {sum(map(is_false_alarm, of_kind))} false alarms in {len(of_kind)} runs"
    verdicts = Counter(row.verdict for trial in trials for row in trial.result.cases)
    slower, undecided = verdicts[Verdict.SLOWER], verdicts[Verdict.UNDECIDED]
    yield f"verdicts on single benchmarks: {slower} SLOWER, {undecided} UNDECIDED of {verdicts.total()}"
    alarms = Share(sum(map(is_false_alarm, trials)), len(trials))
    if trials:
        limit = alarms.upper_limit
        yield f"runs with a false alarm: {alarms.count} of {alarms.of}; the rate is below {limit:.1%} at 95%"


@dataclass(frozen=True)
class SlowedCase:
    """A benchmark with planted extra work, and the gate's verdict."""

    trial: Trial
    row: CaseResult
    slowdown: float
    """The extra work as a share of a round's time, as planted."""
    measured: float | None = None
    """The same as measured in the run's clone, apart from the gate; None for older ones."""

    @property
    def truth(self) -> float:
        return self.slowdown if self.measured is None else self.measured

    @property
    def is_calm(self) -> bool:
        """Whether the claims are made for this run."""
        return self.trial.pair_spread <= CLAIMED_SPREAD

    @property
    def is_said_to_be_found(self) -> bool:
        """Whether the run printed that it detects as much, and was not cut short."""
        detectable = self.trial.result.detectable
        return self.trial.samples.end == "finished" and detectable is not None and self.slowdown >= detectable


def is_injected(trial: Trial) -> bool:
    """Whether extra work of known shares was planted, not a realistic change."""
    return bool(trial.truth["change"] == INJECTED)


def slowed_in(trials: Iterable[Trial]) -> list[SlowedCase]:
    """Every benchmark with extra work in these runs."""
    return [
        SlowedCase(trial, row, slowdown, trial.truth.get("measured", {}).get(name))
        for trial in trials
        for row in trial.result.cases
        for name, slowdown in trial.truth["planted"].items()
        if name in row.id
    ]


def by_slowdown(cases: Sequence[SlowedCase]) -> dict[float, list[SlowedCase]]:
    """The same, the smallest slowdown first."""
    return {size: [case for case in cases if case.slowdown == size] for size in sorted({c.slowdown for c in cases})}


def found_share(cases: Sequence[SlowedCase]) -> Share:
    return Share(sum(case.row.verdict == Verdict.SLOWER for case in cases), len(cases))


def errors_of(cases: Iterable[SlowedCase]) -> list[float]:
    """Estimates less truth, as shares of base's time."""
    return [case.row.effect.effect - case.truth for case in cases if case.row.effect is not None]


def _of_power(trials: Sequence[Trial]) -> Iterator[str]:
    injected = list(filter(is_injected, trials))
    rows = []
    for size, cases in by_slowdown(slowed_in(injected)).items():
        errors, calm = errors_of(cases), found_share([case for case in cases if case.is_calm])
        bias = f"{mean(errors):+.2%} +- {2 * stdev(errors) / math.sqrt(len(errors)):.2%}" if len(errors) > 1 else DASH
        rows.append((f"{size:.0%}", str(found_share(cases)), str(calm), bias))
    where = f"found where launch pairs scatter by at most {CLAIMED_SPREAD:.0%}"
    yield from table(("extra work", "found", where, "estimate less truth"), rows)
    others = [
        row.verdict == Verdict.SLOWER
        for trial in injected
        for row in trial.result.cases
        if not any(name in row.id for name in trial.truth["planted"])
    ]
    yield f"other benchmarks of these runs called slower: {Share(sum(others), len(others))}"
    real = [trial for trial in trials if not is_injected(trial)]
    for trial in real:
        touched = [row for row in trial.result.cases if is_touched(trial, row.id)]
        slower = [row for row in touched if row.verdict == Verdict.SLOWER]
        effects = [row.effect.effect for row in slower if row.effect is not None]
        by = f", by {min(effects):.1%} to {max(effects):.1%}" if effects else ""
        risen = f"; more {', '.join(names)}" if (names := risen_counters(trial)) else ""
        about = f"{trial.truth['change']} ({REAL_SLOWDOWNS[trial.truth['change']].about})"
        yield f"{about}: {len(slower)} of {len(touched)} benchmarks called slower{by}{risen}"
    if real:
        yield from two_by_two(real)


def is_touched(trial: Trial, case_id: str) -> bool:
    """Whether a real change touches this benchmark."""
    return any(name in case_id for name in trial.truth["cases"])


def risen_counters(trial: Trial) -> list[str]:
    """The exact counters that rose in benchmarks that a real change touches."""
    rows = [row for row in trial.result.exact if is_touched(trial, row.id)]
    return sorted({row.counter for row in rows if row.verdict == Verdict.MORE})


def is_caught_by_time(trial: Trial) -> bool:
    """Whether any benchmark that a real change touches was called slower."""
    return any(row.verdict == Verdict.SLOWER for row in trial.result.cases if is_touched(trial, row.id))


def is_caught_by_counters(trial: Trial) -> bool | None:
    """Whether any of its exact counters rose; None for a run that counted nothing."""
    return bool(risen_counters(trial)) if trial.result.exact else None


def two_by_two(trials: Sequence[Trial]) -> list[str]:
    """Table the changes that time caught, counters, both or neither; below, those that counted nothing."""
    names: dict[tuple[bool, bool | None], list[str]] = {}
    for trial in trials:
        kind = is_caught_by_time(trial), is_caught_by_counters(trial)
        names.setdefault(kind, []).append(trial.truth["change"])
    rows = [
        (words, *(", ".join(names.get((by_time, by_counters), [])) or DASH for by_counters in (True, False)))
        for words, by_time in (("caught by time", True), ("not by time", False))
    ]
    lines = table(("real slowdowns", "caught by counters", "not by counters"), rows)
    without = [name for (_, by_counters), found in names.items() if by_counters is None for name in found]
    return [*lines, *([f"without counters: {', '.join(without)}"] if without else [])]


@dataclass(frozen=True)
class SuiteRuns:
    """Runs of the same unchanged benchmarks.

    Screening is stage 1 and the first look of stage 2, which clears what stage 1 suspects by chance.
    """

    trials: Sequence[Trial]

    @property
    def benchmarks(self) -> int:
        return len(self.trials[0].result.cases)

    @property
    def round_seconds(self) -> float:
        rows = [row for trial in self.trials for row in trial.result.cases]
        return median(row.base_seconds for row in rows if row.base_seconds is not None)

    def cleared(self, pair_spread: float) -> Share:
        """Benchmarks cleared in the runs whose launch pairs scatter by at most so much."""
        calm = [trial for trial in self.trials if trial.pair_spread <= pair_spread]
        return Share(sum(map(cleared_in, calm)), self.benchmarks * len(calm))

    def __str__(self) -> str:
        seconds = list(map(screening_seconds, self.trials))
        return (
            f"{self.benchmarks} benchmarks, median round {duration(self.round_seconds)}, {len(self.trials)} runs: "
            f"screened in {min(seconds):.0f} to {max(seconds):.0f} s, median {median(seconds):.0f} s; "
            f"cleared {self.cleared(np.inf)}, where launch pairs scatter by at most {CALM_SPREAD:.0%} "
            f"{self.cleared(CALM_SPREAD)}"
        )


def suites_of(trials: Iterable[Trial]) -> list[SuiteRuns]:
    """The suite of the shortest rounds first."""
    by_cases: dict[frozenset[str], list[Trial]] = {}
    for trial in trials:
        by_cases.setdefault(frozenset(row.id for row in trial.result.cases), []).append(trial)
    return sorted(map(SuiteRuns, by_cases.values()), key=lambda suite: suite.round_seconds)


def screening_seconds(trial: Trial) -> float:
    """Seconds of the launch pairs of stage 1, and of stage 2 those up to its first look."""
    times = trial.samples.of(PairTime)
    stage_one, fresh = ([time.seconds for time in times if time.stage == stage] for stage in (1, 2))
    return sum(stage_one) + sum(fresh[: rules_from_settings(trial.samples.header["settings"]).confirm_looks[0]])


def cleared_in(trial: Trial) -> int:
    """Benchmarks called OK in screening."""
    course = replay_stages(trial.samples, rules_from_settings(trial.samples.header["settings"]))
    still = course.looks[0].undecided if course.looks else course.screening.candidates
    measured = course.screening.screened.estimate.count >= FEWEST_PAIRS
    is_open = np.asarray([case in still for case in course.screening.cases])
    return int(np.sum(measured & ~is_open & ~course.confirmed.slower))


def rules_table(trials: TrialsByProof) -> list[str]:
    """A line for each rule, the gate first: false alarms and detections in the runs that kept the others' calls."""
    unchanged, power = (
        [trial for trial in trials[proof] if trial.says_something and trial.peers]
        for proof in ("false-alarms", "power")
    )
    injected = list(filter(is_injected, power))
    calls = {
        trial: {"this gate": {row.id for row in trial.result.cases if row.verdict == Verdict.SLOWER}, **trial.peers}
        for trial in (*unchanged, *injected)
    }
    sizes, rows = by_slowdown(slowed_in(injected)), []
    for rule in dict.fromkeys(rule for of_trial in calls.values() for rule in of_trial):
        alarms = Share(sum(bool(calls[trial][rule]) for trial in unchanged), len(unchanged))
        found = [
            f"{sum(case.row.id in calls[case.trial][rule] for case in cases)} of {len(cases)}"
            for cases in sizes.values()
        ]
        rows.append((rule, str(alarms), *found))
    return table(("rule", "runs with a false alarm", *(f"{size:.0%} found" for size in sizes)), rows)
