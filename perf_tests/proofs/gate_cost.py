"""The gate's cost on unchanged code: the time of the first stage, and how many benchmarks it clears.

A suite of twenty benchmarks of some tens of milliseconds with the same code on both sides, by the shipped command line;
raw samples, with the seconds of each launch pair, are kept and add up, as in `gate_false_alarms`.
"""

import sys
from collections.abc import Sequence
from statistics import median

import numpy as np

from perf_tests.gate.course import course_of
from perf_tests.gate.events import PairTime
from perf_tests.gate.rules import rules_from_settings
from perf_tests.gate.statistics import FEWEST_PAIRS
from perf_tests.proofs.gate_false_alarms import NO_OP_CHANGES
from perf_tests.proofs.gate_simulation import CLAIMED_CLEARED, CLAIMED_SPREAD
from perf_tests.proofs.gate_trials import Plan, Trial, finished_trials, proof_arguments, prove
from perf_tests.proofs.share import Share
from perf_tests.proofs.verdict import conclude
from perf_tests.views.screens.lines import duration

LIMIT_SECONDS = 300.0
FEWEST_BENCHMARKS = 20

SUITE = (
    "--device=cpu", "--threads=1", "--size=tiny", "--context=48,64", "--precision=fp32", "--attention=naive,sdpa",
    "--phase=forward,backward,full_step", "--head-dim=64,128", "--sequence-length=512",
)  # fmt: skip


def main() -> int:
    arguments = proof_arguments(__doc__, "cost", runs=1, minutes=5).parse_args()
    same_code = Plan({"change": "same-code"}, NO_OP_CHANGES["same-code"], SUITE)
    missing = arguments.runs - len(finished_trials(arguments.folder))
    return prove(arguments, [same_code] * missing, conclude_from)


def conclude_from(trials: list[Trial]) -> int:
    """A line for each run, and whether the claim holds for all of them."""
    tell(trials)
    valid = [trial for trial in trials if trial.says_something]
    if not valid:
        return 2
    calm = [trial for trial in valid if trial.pair_spread <= CLAIMED_SPREAD]
    if not calm:
        print(f"in no run did a launch pair scatter by {CLAIMED_SPREAD:.0%} or less, where the claim is made.")
        return 2
    cleared, cases = sum(map(cleared_in, calm)), sum(len(trial.result.cases) for trial in calm)
    claim = (
        f"{FEWEST_BENCHMARKS} unchanged benchmarks are screened in less than {LIMIT_SECONDS / 60:.0f} minutes, and "
        f"{CLAIMED_CLEARED:.0%} of them cleared where launch pairs scatter by at most {CLAIMED_SPREAD:.0%}"
    )
    print(f"cleared where launch pairs scatter by at most {CLAIMED_SPREAD:.0%}: {Share(cleared, cases)}")
    in_time = all(screening_seconds(trial) < LIMIT_SECONDS for trial in valid)
    whole = all(len(trial.result.cases) >= FEWEST_BENCHMARKS for trial in valid)
    return conclude(claim, in_time and whole and cleared >= CLAIMED_CLEARED * cases)


def tell(trials: Sequence[Trial]) -> None:
    """A line for each of these runs."""
    valid = [trial for trial in trials if trial.says_something]
    print(f"contaminated runs, which the gate refused: {len(trials) - len(valid)} of {len(trials)}")
    for trial in valid:
        print(in_words(trial))


def in_words(trial: Trial) -> str:
    seconds = [row.base_seconds for row in trial.result.cases if row.base_seconds is not None]
    return (
        f"{len(trial.result.cases)} benchmarks, {duration(min(seconds))} to {duration(max(seconds))}, median "
        f"{duration(median(seconds))}: {trial.result.pairs[0]} launch pairs in {screening_seconds(trial):.0f} s, "
        f"{cleared_in(trial)} cleared; launch pairs scatter by {trial.pair_spread:.1%}"
    )


def screening_seconds(trial: Trial) -> float:
    """Of stage 1."""
    assert trial.samples is not None
    return sum(time.seconds for time in trial.samples.of(PairTime) if time.stage == 1)


def cleared_in(trial: Trial) -> int:
    """Benchmarks called OK after stage 1."""
    assert trial.samples is not None
    course = course_of(trial.samples, rules_from_settings(trial.samples.header["settings"]))
    screened = course.screening.screened
    clear = ~screened.candidates & ~course.confirmed.slower
    return int(np.sum(clear & (screened.estimate.count >= FEWEST_PAIRS)))


if __name__ == "__main__":
    sys.exit(main())
