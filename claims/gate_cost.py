"""The gate's cost on unchanged code: how long it screens, and how many benchmarks that clears.

Screening is stage 1 and the first look of stage 2, which clears what stage 1 suspects by chance.

Two suites, of short rounds and of long ones, with the same code on both sides, by the shipped command line; raw
samples, with the seconds of each launch pair, are kept and add up, as in `gate_false_alarms`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from claims import gate_false_alarms
from claims.gate_false_alarms import NO_OP_CHANGES
from claims.gate_simulation import CALM_SPREAD, CLAIMED_CLEARED
from claims.gate_trials import Plan, Trial, kept_trials, proof_arguments, prove
from claims.share import Share
from claims.verdict import conclude
from perf_tests.gate.samples import PairTime, Rules, rules_from_settings
from perf_tests.gate.stages import course_of
from perf_tests.gate.statistics import FEWEST_PAIRS
from perf_tests.records.format import duration

LIMIT_SECONDS = 180.0
FEWEST_BENCHMARKS = 20
SHORT_ROUND_SECONDS = 0.01
"""What the median round of a suite takes for which the claim is made; longer ones are measured longer."""

LONG_ROUNDS = (
    "--device=cpu", "--threads=1", "--size=tiny", "--context=48,64", "--precision=fp32", "--attention=naive,sdpa",
    "--phase=forward,backward,full_step", "--head-dim=64,128", "--sequence-length=512",
)  # fmt: skip
"""Twenty benchmarks of some tens of milliseconds."""

SUITES = {"short rounds": gate_false_alarms.SUITE, "long rounds": LONG_ROUNDS}


@dataclass(frozen=True)
class SuiteRuns:
    """Runs of the same unchanged benchmarks."""

    trials: Sequence[Trial]

    @property
    def benchmarks(self) -> int:
        return len(self.trials[0].result.cases)

    @property
    def round_seconds(self) -> float:
        rows = [row for trial in self.trials for row in trial.result.cases]
        return median(row.base_seconds for row in rows if row.base_seconds is not None)

    @property
    def screening(self) -> list[float]:
        """Seconds of each run."""
        return [screening_seconds(trial) for trial in self.trials]

    def cleared(self, pair_spread: float) -> Share:
        """In the runs whose launch pairs scatter by at most so much."""
        calm = [trial for trial in self.trials if trial.pair_spread <= pair_spread]
        return Share(sum(map(cleared_in, calm)), self.benchmarks * len(calm))

    @property
    def keeps_the_claim(self) -> bool:
        cleared = self.cleared(CALM_SPREAD)
        return max(self.screening) < LIMIT_SECONDS and cleared.count >= CLAIMED_CLEARED * cleared.of

    def __str__(self) -> str:
        seconds = self.screening
        return (
            f"{self.benchmarks} benchmarks, median round {duration(self.round_seconds)}, {len(self.trials)} runs: "
            f"screened in {min(seconds):.0f} to {max(seconds):.0f} s, median {median(seconds):.0f} s; "
            f"cleared {self.cleared(np.inf)}, where launch pairs scatter by at most {CALM_SPREAD:.0%} "
            f"{self.cleared(CALM_SPREAD)}"
        )


def main() -> int:
    arguments = proof_arguments(__doc__, "cost", runs=1, minutes=5).parse_args()
    return prove(arguments, plans(arguments.folder, arguments.runs), conclude_from)


def plans(folder: Path, runs: int) -> Iterator[Plan]:
    """The runs of each suite that `folder` lacks."""
    there = [trial.truth.get("suite") for trial in kept_trials(folder)]
    for name, suite in SUITES.items():
        for _ in range(runs - there.count(name)):
            yield Plan({"change": "same-code", "suite": name}, NO_OP_CHANGES["same-code"], suite)


def conclude_from(trials: Sequence[Trial]) -> int:
    """A line for each suite, and whether the claim holds for every one of short rounds."""
    tell(trials)
    claimed = [
        suite
        for suite in suites_of(trials)
        if suite.round_seconds <= SHORT_ROUND_SECONDS
        and suite.benchmarks >= FEWEST_BENCHMARKS
        and suite.cleared(CALM_SPREAD).of
    ]
    if not claimed:
        print(
            f"no run of {FEWEST_BENCHMARKS} benchmarks of up to {duration(SHORT_ROUND_SECONDS)} has launch pairs that "
            f"scatter by {CALM_SPREAD:.0%} or less, where the claim is made."
        )
        return 2
    claim = (
        f"{FEWEST_BENCHMARKS} unchanged benchmarks of up to {duration(SHORT_ROUND_SECONDS)} are screened in less than "
        f"{LIMIT_SECONDS / 60:.0f} minutes, and {CLAIMED_CLEARED:.0%} of them cleared where launch pairs scatter by at "
        f"most {CALM_SPREAD:.0%}"
    )
    return conclude(claim, all(suite.keeps_the_claim for suite in claimed))


def tell(trials: Sequence[Trial]) -> None:
    """A line for each suite."""
    for suite in suites_of(trials):
        print(suite)


def suites_of(trials: Sequence[Trial]) -> list[SuiteRuns]:
    """The suite of the shortest rounds first; without runs that the gate refused."""
    by_cases: dict[frozenset[str], list[Trial]] = {}
    for trial in trials:
        if trial.says_something:
            by_cases.setdefault(frozenset(row.id for row in trial.result.cases), []).append(trial)
    return sorted(map(SuiteRuns, by_cases.values()), key=lambda suite: suite.round_seconds)


def screening_seconds(trial: Trial) -> float:
    """Of the launch pairs of stage 1, and of stage 2 those up to its first look."""
    assert trial.samples is not None
    times = trial.samples.of(PairTime)
    stage_one, fresh = ([time.seconds for time in times if time.stage == stage] for stage in (1, 2))
    return sum(stage_one) + sum(fresh[: _rules(trial).confirm_looks[0]])


def cleared_in(trial: Trial) -> int:
    """Benchmarks called OK in screening."""
    assert trial.samples is not None
    course = course_of(trial.samples, _rules(trial))
    still = course.looks[0].undecided if course.looks else course.screening.candidates
    measured = course.screening.screened.estimate.count >= FEWEST_PAIRS
    is_open = np.asarray([case in still for case in course.screening.cases])
    return int(np.sum(measured & ~is_open & ~course.confirmed.slower))


def _rules(trial: Trial) -> Rules:
    assert trial.samples is not None
    return rules_from_settings(trial.samples.header["settings"])


if __name__ == "__main__":
    sys.exit(main())
