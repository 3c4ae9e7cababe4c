"""The gate on a simulated machine whose truth is known: false alarms, power and bias.

Thousands of whole runs, judged by the functions that judge a real one. It measures no time, so it may run anywhere.
"""

import argparse
import math
import sys

import numpy as np
from scipy import stats

from claims.share import Share
from claims.verdict import conclude
from perf_tests.gate.samples import Rules
from perf_tests.gate.stages import screen_values, stage_two_estimate
from perf_tests.gate.statistics import Estimate, Floats, estimate, fit_prior, moderated, sign_flip_p_value
from perf_tests.records.format import table
from tests.support.simulated_suites import (
    JudgedSuites,
    Machine,
    judged_suites,
    pair_values_of_stages,
    portions,
    unit_pair_values,
)

CASES = 20
RULES = Rules()

UNCHANGED = {
    "spread 1 %, Gaussian": (Machine(0.01), 0.0),
    "spread 2 %, Gaussian": (Machine(0.02), 0.0),
    "spread 2 %, cases differ": (Machine(0.02, 0.5), 0.0),
    "spread 2 %, cases differ, t4": (Machine(0.02, 0.5, heavy_tails=True), 0.0),
    "spread 3 %, cases differ, t4, 30 % common": (Machine(0.03, 0.5, heavy_tails=True, common_share=0.3), 0.0),
    "spread 3 %, each slower by the margin": (Machine(0.03, 0.5), RULES.margin),
}
"""Machines, and by how much every case is slower; up to the margin, nothing may be called SLOWER."""

SPREADS = (0.005, 0.01, 0.02, 0.03)
SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)
SIMULATED_POWER = {0.02: 0.75, 0.03: 0.95, 0.05: 0.99}
"""By slowdown, where launch pairs scatter by the claimed spread at most."""
CLAIMED_POWER = {0.03: 0.80, 0.05: 0.95}
"""The same of whole runs, of which there are too few to claim more."""
CLAIMED_SPREAD = 0.02
CLAIMED_BIAS = 0.005
CLAIMED_CLEARED = 0.95
"""Of unchanged cases, what is cleared by the first look of stage 2 where no case scatters by more than this."""
CALM_SPREAD = 0.01


PAIRS_SHOWN = (3, 5, 10, 20)
COVERAGE = 0.95


def main() -> int:
    arguments = parsed_arguments()
    print(f"{CASES} cases, seed {arguments.seed}, rules {RULES}")
    draw = np.random.default_rng(arguments.seed)
    is_calm = prints_false_alarms(draw, arguments.suites)
    is_uniform = prints_p_values(draw, arguments.trials)
    is_strong = prints_power(draw, arguments.trials)
    is_covered = prints_coverage(draw, arguments.trials)
    powers = ", ".join(f"{slowdown:.0%} is found in {power:.0%}" for slowdown, power in SIMULATED_POWER.items())
    claim = (
        f"runs of {arguments.suites} simulated suites without a slow case say SLOWER in at most {RULES.alpha:.0%} on "
        "every machine, consistent with that where each case is slower by the margin; p-values are valid; up to a "
        f"spread of {CLAIMED_SPREAD:.0%}, {powers} of trials, with a bias below {CLAIMED_BIAS:.1%}; at "
        f"{CALM_SPREAD:.0%} the first look of stage 2 has cleared {CLAIMED_CLEARED:.0%} of unchanged cases; intervals "
        f"of {PAIRS_SHOWN[0]} to {PAIRS_SHOWN[-1]} launch pairs cover the truth in {COVERAGE:.0%} of cases"
    )
    return conclude(claim, is_calm and is_uniform and is_strong and is_covered)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=int, default=10_000, help="runs of an unchanged suite on each machine")
    parser.add_argument("--trials", type=int, default=3000, help="planted slowdowns in each cell")
    parser.add_argument("--seed", type=int, default=2027)
    return parser.parse_args()


def prints_false_alarms(draw: np.random.Generator, suites: int) -> bool:
    """Whether every machine's family-wise rate is below alpha, or consistent with it where each case is slower by the
    margin, and stage 1 clears enough."""
    rows, holds = [], True
    for name, (machine, slowdown) in UNCHANGED.items():
        judged = unchanged_runs(draw, machine, slowdown, suites)
        alarms = Share(sum(int(run.false_alarms.sum()) for run in judged), suites)
        faster = Share(sum(int(run.confirmed.faster.any(axis=-1).sum()) for run in judged), suites)
        cleared = np.mean([run.is_cleared_soon(RULES).mean() for run in judged])
        pairs = np.mean([run.pairs.mean() for run in judged])
        undecided = np.mean([_undecided(run).mean() for run in judged])
        rows += [(name, alarms.words(2), faster.words(2), f"{cleared:.1%}", f"{pairs:.1f}", f"{undecided:.2%}")]
        # At the margin itself alpha is spent in full, so that no number of suites shows a rate below it.
        holds &= alarms.limits[0 if slowdown else 1] <= RULES.alpha
        if machine.pair_spread <= CALM_SPREAD and not machine.case_spread:
            holds &= bool(cleared >= CLAIMED_CLEARED)
    header = ("unchanged suites", "any SLOWER", "any FASTER", "cleared soon", "launch pairs a case", "UNDECIDED")
    print("\n".join(table(header, rows)))
    return holds


def unchanged_runs(draw: np.random.Generator, machine: Machine, slowdown: float, suites: int) -> list[JudgedSuites]:
    truth = np.full(CASES, math.log1p(slowdown))
    return [judged_suites(draw, machine, truth, RULES, size) for size in portions(suites)]


def _undecided(run: JudgedSuites) -> Floats:
    unclear = run.screened.slower_suspects | run.screened.too_noisy
    return np.asarray(unclear & ~run.confirmed.decided, dtype=float)


def prints_p_values(draw: np.random.Generator, suites: int) -> bool:
    """Whether p-values of unchanged cases are uniform (Kolmogorov and Smirnov), and those of heavy tails no smaller."""
    pairs = RULES.confirm_looks[0]
    plain, moderated, exact = null_p_values(draw, suites, pairs)
    tests = {"t test": stats.kstest(plain, "uniform"), "moderated t test": stats.kstest(moderated, "uniform")}
    for name, found in tests.items():
        print(f"{name}, {len(plain)} unchanged cases of {pairs} pairs: KS {found.statistic:.4f}, p {found.pvalue:.3f}")
    levels = np.asarray([0.001, 0.01, 0.05])
    counts = [(int(np.sum(exact <= level)), level) for level in levels]
    for count, level in counts:
        print(f"sign flips, t4: p <= {level:g} in {Share(count, len(exact)).words(2)}")
    valid = all(stats.binomtest(count, len(exact), level, "greater").pvalue > 0.001 for count, level in counts)
    return valid and all(found.pvalue > 0.001 for found in tests.values())


def null_p_values(draw: np.random.Generator, suites: int, pairs: int) -> tuple[Floats, Floats, Floats]:
    """One-sided p-values (cases of all suites,): t, moderated t, and exact under heavy tails.

    The spreads of a suite come from the scaled inverse chi-square that the moderation supposes, with 8 degrees of
    freedom; the prior is fitted on other launches, as in a run.
    """
    spreads = 0.02 * np.sqrt(8 / draw.chisquare(8, (suites, CASES, 1)))
    first = spreads * draw.normal(size=(suites, CASES, RULES.screen_pairs))
    second = spreads * draw.normal(size=(suites, CASES, pairs))
    plain = estimate(second).slower_p_values(0.0)
    moderated = stage_two_estimate(second, fit_prior(estimate(first))).slower_p_values(0.0)
    heavy = unit_pair_values(draw, suites * CASES, pairs, heavy_tails=True)
    return plain.ravel(), moderated.ravel(), np.asarray([sign_flip_p_value(values) for values in heavy])


def prints_power(draw: np.random.Generator, trials: int) -> bool:
    """Whether what is claimed up to a spread of 2 % holds: power at its lower limit, and bias."""
    rows, holds = [], True
    for spread in SPREADS:
        for slowdown in SLOWDOWNS:
            found, wrong, bias = planted(draw, Machine(spread), slowdown, trials)
            rows += [(f"{spread:.1%}", f"{slowdown:.0%}", found.words(1), f"{wrong / trials:.1%}", f"{bias:+.2%}")]
            if spread <= CLAIMED_SPREAD and slowdown in SIMULATED_POWER:
                holds &= found.limits[0] >= SIMULATED_POWER[slowdown] and abs(bias) <= CLAIMED_BIAS
    header = ("spread of a pair", "slowdown", "called SLOWER", "called OK", "bias of the effect")
    print("\n".join(table(header, rows)))
    return holds


def planted(draw: np.random.Generator, machine: Machine, slowdown: float, trials: int) -> tuple[Share, int, float]:
    """One slow case in each suite: found how often, called OK how often, and the mean error of its estimate."""
    truth = np.zeros(CASES)
    truth[0] = math.log1p(slowdown)
    run = judged_suites(draw, machine, truth, RULES, trials)
    slower, cleared = run.confirmed.slower[:, 0], run.confirmed.cleared[:, 0] | ~run.screened.candidates[:, 0]
    return (
        Share(int(slower.sum()), trials),
        int(np.sum(cleared & ~slower)),
        float(np.mean(run.estimates[:, 0]) - truth[0]),
    )


def prints_coverage(draw: np.random.Generator, suites: int) -> bool:
    """Whether intervals cover the truth of unchanged cases often enough, by the number of launch pairs behind them."""
    rows, holds = [], True
    for name, (machine, slowdown) in UNCHANGED.items():
        for pairs in PAIRS_SHOWN:
            screened, fresh = coverage(draw, machine, slowdown, suites, pairs)
            rows.append((name, str(pairs), screened.words(1), fresh.words(1)))
            holds &= min(screened.limits[1], fresh.limits[1]) >= COVERAGE
    header = ("intervals that cover the truth", "pairs", "of all cases, in stage 1", "of the suspects, in stage 2")
    print("\n".join(table(header, rows)))
    return holds


def coverage(
    draw: np.random.Generator, machine: Machine, slowdown: float, suites: int, pairs: int
) -> tuple[Share, Share]:
    """Intervals that cover the truth: of all cases after so many pairs, and of suspects after as many fresh ones.

    Stage 2 measures the cases that scatter more than the suite, whose variance would make their intervals too narrow.
    """
    truth = np.full(CASES, math.log1p(slowdown))
    first, second = pair_values_of_stages(draw, machine, truth, RULES, suites, pairs)
    alone = estimate(first[..., :pairs])
    screened = screen_values(first[..., : RULES.screen_pairs], RULES)
    everyone = moderated(alone, fit_prior(alone))
    fresh = stage_two_estimate(np.where(screened.candidates[..., None], second, np.nan), screened.prior)
    return _covers(everyone, truth), _covers(fresh, truth)


def _covers(found: Estimate, truth: Floats) -> Share:
    inside = np.abs(found.mean - truth) <= found.half_widths()
    return Share(int(inside.sum()), int(np.sum(~np.isnan(found.mean))))


if __name__ == "__main__":
    sys.exit(main())
