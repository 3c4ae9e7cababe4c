"""When other tools would say "slower", by their published rules, of rounds of base and head taken in one sitting.

Each rule takes rounds (n,) of either side and says whether it would call head slower. All treat rounds as independent.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats

from perf_tests.gate.statistics import Floats

Rule = Callable[[Floats, Floats], bool]

RESAMPLES = 2000
CRITERION_NOISE = 0.01
ASV_FACTOR = 1.1
ASV_LEVEL = 0.002


def mean_five_percent(base: Floats, head: Floats) -> bool:
    """`--benchmark-compare-fail=mean:5%` of ionelmc/pytest-benchmark."""
    return bool(head.mean() > 1.05 * base.mean())


def min_five_percent(base: Floats, head: Floats) -> bool:
    """`--benchmark-compare-fail=min:5%` of ionelmc/pytest-benchmark."""
    return bool(head.min() > 1.05 * base.min())


def mann_whitney(base: Floats, head: Floats) -> bool:
    """Two-sided at 0.05: google/benchmark's tools/compare.py, benchstat of golang/perf."""
    return bool(_mann_whitney_p_value(base, head) < 0.05 and np.median(head) > np.median(base))


def welch(base: Floats, head: Floats) -> bool:
    """Two-sided at 0.05: scripts/welch_ttest.py of sharkdp/hyperfine."""
    return bool(stats.ttest_ind(base, head, equal_var=False).pvalue < 0.05 and head.mean() > base.mean())


def criterion(base: Floats, head: Floats) -> bool:
    """bheisler/criterion.rs: p < 0.05 by a pooled bootstrap of t, and the 95 % interval of the ratio beyond 1 % noise.

    The seed is fixed, so that the same rounds get the same answer.
    """
    draw = np.random.default_rng(0)
    ratios = _resampled(draw, head).mean(axis=1) / _resampled(draw, base).mean(axis=1) - 1
    if np.quantile(ratios, 0.025) <= CRITERION_NOISE:
        return False
    pooled = np.concatenate((base, head))
    places = draw.integers(0, len(pooled), (RESAMPLES, len(pooled)))
    shuffled = pooled[places]
    null = _t_statistic(shuffled[:, len(base) :], shuffled[:, : len(base)])
    p_value = np.mean(np.abs(null) >= abs(_t_statistic(head[None], base[None])[0]))
    return bool(p_value < 0.05)


def asv(base: Floats, head: Floats) -> bool:
    """`asv compare` of airspeed-velocity/asv: median ratio beyond 1.1, and a U test at 0.002."""
    is_factor = np.median(head) > ASV_FACTOR * np.median(base)
    return bool(is_factor and _mann_whitney_p_value(base, head) < ASV_LEVEL)


PEERS: dict[str, Rule] = {
    "pytest-benchmark mean:5%": mean_five_percent,
    "pytest-benchmark min:5%": min_five_percent,
    "Mann-Whitney 0.05": mann_whitney,
    "Welch 0.05": welch,
    "criterion": criterion,
    "asv factor 1.1": asv,
}


def _mann_whitney_p_value(base: Floats, head: Floats) -> float:
    return float(stats.mannwhitneyu(base, head, method="asymptotic").pvalue)


def _resampled(draw: np.random.Generator, values: Floats) -> Floats:
    return values[draw.integers(0, len(values), (RESAMPLES, len(values)))]


def _t_statistic(head: Floats, base: Floats) -> Floats:
    variance = head.var(axis=1, ddof=1) / head.shape[1] + base.var(axis=1, ddof=1) / base.shape[1]
    return np.asarray((head.mean(axis=1) - base.mean(axis=1)) / np.sqrt(variance))
