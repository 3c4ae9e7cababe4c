"""The gate on real launches with a known truth: recorded runs of the same code on both sides, relabelled.

Which process of a launch pair is base and which is head is random, so permuting the labels makes another run of
an unchanged suite that the machine could as well have produced. Whole launch pairs are drawn, with all that their cases
have in common. A slowdown is planted by adding its logarithm to one case of such a run.

    python -m claims.gate_relabelled FOLDER or SAMPLES...

FOLDER holds kept trials, as `gate_worth` reads them; it takes those without a slowdown.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from claims.compact_trials import TrialsByProof, trials_under
from claims.gate_simulation import COVERAGE, PAIRS_SHOWN
from claims.share import Share
from claims.verdict import conclude
from perf_tests.gate.samples import Clock, GateSamples, Rules, read_samples
from perf_tests.gate.stages import InterimAnalysis, interim_analyses, spreads_slower
from perf_tests.gate.statistics import (
    Flags,
    Floats,
    decide_clock,
    estimate,
    fit_prior,
    moderated,
    pair_values,
    robust_spread,
)
from perf_tests.records.columns import case_name
from perf_tests.records.format import table
from tests.support.simulated_suites import JudgedSuites, judged, portions

RULES = Rules()
FEWEST_PAIRS = 36
"""Fewer than a whole run takes would be drawn over and over."""

SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)


def main() -> int:
    arguments = parsed_arguments()
    runs = [run for path in arguments.samples for run in runs_at(path)]
    clock: Clock = arguments.clock or decide_clock(runs[0], RULES).clock
    cases, values = recorded_values(runs, clock)
    if len(values) < FEWEST_PAIRS:
        print(f"{len(values)} whole launch pairs are too few to draw from; record at least {FEWEST_PAIRS}.")
        return 2
    draw = np.random.default_rng(arguments.seed)
    print(f"{len(values)} launch pairs of {len(cases)} cases in {len(runs)} runs, {clock} time, seed {arguments.seed}")
    holds = prints_early_looks(runs, clock)
    holds &= prints_false_alarms(draw, values, arguments.suites)
    prints_power(draw, cases, values, arguments.trials)
    holds &= prints_coverage(values)
    claim = (
        f"of {arguments.suites} relabelled runs of the same code at most {RULES.alpha:.0%} say SLOWER of anything, and "
        f"intervals cover 0 in {COVERAGE:.0%} of unchanged cases"
    )
    return conclude(claim, holds)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+", help="trials, or raw samples of the same code on both sides")
    parser.add_argument("--suites", type=int, default=10_000, help="relabelled runs")
    parser.add_argument("--trials", type=int, default=400, help="planted slowdowns of each size in each case")
    parser.add_argument("--clock", choices=("wall", "cpu"), help="default: the one that the first run chose")
    parser.add_argument("--seed", type=int, default=2027)
    return parser.parse_args()


def runs_at(path: Path) -> list[GateSamples]:
    """The unchanged runs of a folder of trials, or the one run of a file of raw samples."""
    return unchanged_runs(trials_under(path)) if path.is_dir() else [read_samples(path)]


def unchanged_runs(trials: TrialsByProof) -> list[GateSamples]:
    """Those without a slowdown that the gate did not refuse."""
    return [trial.samples for trial in trials["false-alarms"] if trial.says_something and trial.samples is not None]


def recorded_values(runs: Sequence[GateSamples], clock: Clock) -> tuple[list[str], Floats]:
    """The cases that every run measured, and their pair values in stage 1, (pairs, cases), without pairs with holes."""
    cases = [case for case in runs[0].cases if all(case in run.cases for run in runs)]
    found = []
    for run in runs:
        place = [run.cases.index(case) for case in cases]
        found.append(pair_values(run, 1, run.pairs(1), clock)[place].T)
    values = np.concatenate(found)
    measured = ~np.all(np.isnan(values), axis=0)
    values = values[:, measured]
    cases = [case for case, flag in zip(cases, measured, strict=True) if flag]
    return cases, values[~np.any(np.isnan(values), axis=1)]


def relabelled_runs(draw: np.random.Generator, values: Floats, suites: int, shift: Floats) -> JudgedSuites:
    """Runs from recorded pair values (pairs, cases), to which `shift` (suites, cases) is added."""

    def drawn(pairs: int) -> Floats:
        chosen = draw.integers(0, len(values), (suites, pairs))
        coins = draw.choice((-1.0, 1.0), (suites, pairs, 1))
        return np.moveaxis(values[chosen] * coins, 1, 2) + shift[..., None]

    def second_of(wanted: Flags) -> Floats:
        return np.where(wanted[..., None], drawn(RULES.confirm_looks[-1]), np.nan)

    return judged(drawn(RULES.screen_pairs), second_of, RULES)


@dataclass(frozen=True)
class Relabelled:
    """Results of runs with permuted labels."""

    alarms: Share
    """Runs that call anything SLOWER."""
    cleared: float
    """Share of the cases cleared by the first look of stage 2."""
    pairs: float
    """Launch pairs that a case took."""


def relabelled(draw: np.random.Generator, values: Floats, suites: int) -> Relabelled:
    """`suites` runs of unchanged code."""
    runs = [relabelled_runs(draw, values, size, np.zeros((size, values.shape[1]))) for size in portions(suites)]
    alarms = Share(sum(int(run.false_alarms.sum()) for run in runs), suites)
    cleared = float(np.mean([run.is_cleared_soon(RULES).mean() for run in runs]))
    pairs = float(np.mean([run.pairs.mean() for run in runs]))
    return Relabelled(alarms, cleared, pairs)


def prints_early_looks(runs: Sequence[GateSamples], clock: Clock) -> bool:
    """Whether no early look at recorded launches in a row calls anything slower, whichever side is head."""
    holds = True
    for look in interim_analyses(RULES):
        called, spreads = looks_taken(runs, clock, look)
        share = Share(sum(called), len(called))
        print(
            f"looks at {look.pairs} launch pairs in a row, either side as head: {share.count} of {share.of} call a "
            f"case slower; the rate is below {share.upper_limit:.1%} at 95%"
        )
        print(
            f"cases above {np.expm1(look.above):.0%} in every pair of such a look: {len(spreads)}, slower by at most "
            f"{max(spreads, default=0):.1f} spreads"
        )
        holds &= not any(called)
    return holds


def looks_taken(runs: Sequence[GateSamples], clock: Clock, look: InterimAnalysis) -> tuple[list[bool], list[float]]:
    """Which looks call anything slower, and how many spreads the cases above the limit in every pair are slower."""
    called, spreads = [], []
    for run in runs:
        values = pair_values(run, 1, run.pairs(1), clock)
        for start in range(0, values.shape[1] - look.pairs + 1, look.pairs):
            for taken in (values[:, start : start + look.pairs], -values[:, start : start + look.pairs]):
                called.append(bool(look.calls(taken, RULES).any()))
                spreads += spreads_slower(taken)[np.all(taken > look.above, axis=1)].tolist()
    return called, spreads


def prints_false_alarms(draw: np.random.Generator, values: Floats, suites: int) -> bool:
    """Whether the upper limit of the family-wise rate is at most alpha."""
    found = relabelled(draw, values, suites)
    print(
        f"any SLOWER {found.alarms.words(2)}; {found.cleared:.1%} of the cases cleared by the first look of stage 2; "
        f"{found.pairs:.1f} launch pairs a case"
    )
    return found.alarms.limits[1] <= RULES.alpha


def prints_coverage(values: Floats) -> bool:
    """Whether the intervals of unchanged cases cover 0 often enough, by the number of launch pairs behind them."""
    found = {pairs: coverage(values, pairs) for pairs in PAIRS_SHOWN}
    for pairs, share in found.items():
        print(f"intervals of {pairs} launch pairs that cover 0: {share.words(1)}")
    return all(share.count >= COVERAGE * share.of for share in found.values())


def coverage(values: Floats, pairs: int) -> Share:
    """Of the intervals of so many launch pairs in a row, each pair used once, from pair values (pairs, cases)."""
    runs = values[: len(values) // pairs * pairs].reshape(-1, pairs, values.shape[1]).swapaxes(1, 2)
    alone = estimate(runs)
    shown = moderated(alone, fit_prior(alone))
    return Share(int(np.sum(np.abs(shown.mean) <= shown.half_widths())), shown.mean.size)


def prints_power(draw: np.random.Generator, cases: Sequence[str], values: Floats, trials: int) -> None:
    """How often a planted slowdown of each case is detected."""
    spreads = robust_spread(values.T)
    rows = []
    for place, case in enumerate(cases):
        found = [planted(draw, values, place, slowdown, trials) for slowdown in SLOWDOWNS]
        rows.append((case_name(case), f"{spreads[place]:.1%}", *(f"{share.count / share.of:.0%}" for share in found)))
    print("\n".join(table(("slowdown found", "spread", *(f"{slowdown:.0%}" for slowdown in SLOWDOWNS)), rows)))


def planted(draw: np.random.Generator, values: Floats, place: int, slowdown: float, trials: int) -> Share:
    """One case made slower in every run."""
    shift = np.zeros((trials, values.shape[1]))
    shift[:, place] = np.log1p(slowdown)
    return Share(int(relabelled_runs(draw, values, trials, shift).confirmed.slower[:, place].sum()), trials)


if __name__ == "__main__":
    sys.exit(main())
