"""The gate's cost on unchanged code: how long it screens, and how many benchmarks that clears.

Screening is stage 1 and the first look of stage 2, which clears what stage 1 suspects by chance.

A suite of twenty benchmarks of some tens of milliseconds with the same code on both sides, by the shipped command line;
raw samples, with the seconds of each launch pair, are kept and add up, as in `gate_false_alarms`.
"""

import sys
from collections.abc import Sequence
from statistics import median

import numpy as np

from perf_tests.gate.course import course_of
from perf_tests.gate.events import PairTime
from perf_tests.gate.rules import Rules, rules_from_settings
from perf_tests.gate.statistics import FEWEST_PAIRS
from perf_tests.proofs.gate_false_alarms import NO_OP_CHANGES
from perf_tests.proofs.gate_simulation import CALM_SPREAD, CLAIMED_CLEARED
from perf_tests.proofs.gate_trials import Plan, Trial, finished_trials, proof_arguments, prove
from perf_tests.proofs.share import Share
from perf_tests.proofs.verdict import conclude
from perf_tests.views.screens.lines import duration

LIMIT_SECONDS = 180.0
FEWEST_BENCHMARKS = 20

FASTER_SINCE = "20261124T18"
"""How the names begin of runs in which only the first launch pair counts the memory that a case needs. Others took
longer, and their time is not that of a run now."""

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
    calm = [trial for trial in valid if trial.pair_spread <= CALM_SPREAD]
    timed = [trial for trial in valid if is_as_fast_as_now(trial)]
    if not calm or not timed:
        print(f"no run's launch pairs scatter by {CALM_SPREAD:.0%} or less and launch as now, where the claim is made.")
        return 2
    cleared, cases = sum(map(cleared_in, calm)), sum(len(trial.result.cases) for trial in calm)
    claim = (
        f"{FEWEST_BENCHMARKS} unchanged benchmarks are screened in less than {LIMIT_SECONDS / 60:.0f} minutes, and "
        f"{CLAIMED_CLEARED:.0%} of them cleared where launch pairs scatter by at most {CALM_SPREAD:.0%}"
    )
    print(f"cleared where launch pairs scatter by at most {CALM_SPREAD:.0%}: {Share(cleared, cases)}")
    in_time = all(screening_seconds(trial) < LIMIT_SECONDS for trial in timed)
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
        f"{duration(median(seconds))}: {len(_screening(trial))} launch pairs in {screening_seconds(trial):.0f} s, "
        f"{cleared_in(trial)} cleared; launch pairs scatter by {trial.pair_spread:.1%}"
        f"{'' if is_as_fast_as_now(trial) else '; each pair counted memory'}"
    )


def is_as_fast_as_now(trial: Trial) -> bool:
    return trial.name >= FASTER_SINCE


def screening_seconds(trial: Trial) -> float:
    return sum(time.seconds for time in _screening(trial))


def _screening(trial: Trial) -> list[PairTime]:
    """The launch pairs of stage 1, and of stage 2 those up to its first look."""
    assert trial.samples is not None
    times = trial.samples.of(PairTime)
    stage_one, fresh = ([time for time in times if time.stage == stage] for stage in (1, 2))
    return stage_one + fresh[: _rules(trial).confirm_looks[0]]


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
