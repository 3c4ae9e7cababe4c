"""Verdicts of other tools, by their published rules, on the same rounds as the gate's.

Each rule takes rounds (n,) of either side and says whether it would call head slower. All treat rounds as independent.
Two views of a run: two launches apart, minutes from each other, as in a comparison with a recorded run; and every round
of stage 1, taken in turns, which costs what the gate's own first stage costs.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import stats

from perf_tests.gate.samples import GateSamples, Measurement
from perf_tests.gate.statistics import Floats

Rule = Callable[[Floats, Floats], bool]
Calls = dict[str, frozenset[str]]
"""Rule and view to the benchmarks that it calls slower."""

APART = "two launches"
POOLED = "all rounds of stage 1"
VIEWS = (APART, POOLED)

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


def calls_of_peers(samples: GateSamples) -> Calls:
    """The cases that each rule calls slower in a run with all its rounds; takes most of a second."""
    slower: dict[str, set[str]] = {f"{rule}, {view}": set() for view in VIEWS for rule in PEERS}
    for case in samples.cases:
        lines = [line for line in samples.measurements if (line.stage, line.case) == (1, case)]
        for view in VIEWS if len(lines) > 1 else ():
            base, head = _rounds(lines, view)
            for rule, says_slower in PEERS.items():
                if says_slower(base, head):
                    slower[f"{rule}, {view}"].add(case)
    return {name: frozenset(found) for name, found in slower.items()}


def _rounds(lines: Sequence[Measurement], view: str) -> tuple[Floats, Floats]:
    """Wall times of base and head (n,), in seconds."""
    if view == APART:
        return lines[0].base_seconds.ravel(), lines[-1].head_seconds.ravel()
    return _pooled(line.base_seconds for line in lines), _pooled(line.head_seconds for line in lines)


def _pooled(turns: Iterable[Floats]) -> Floats:
    return np.concatenate([seconds.ravel() for seconds in turns])


def _mann_whitney_p_value(base: Floats, head: Floats) -> float:
    return float(stats.mannwhitneyu(base, head, method="asymptotic").pvalue)


def _resampled(draw: np.random.Generator, values: Floats) -> Floats:
    return values[draw.integers(0, len(values), (RESAMPLES, len(values)))]


def _t_statistic(head: Floats, base: Floats) -> Floats:
    variance = head.var(axis=1, ddof=1) / head.shape[1] + base.var(axis=1, ddof=1) / base.shape[1]
    return np.asarray((head.mean(axis=1) - base.mean(axis=1)) / np.sqrt(variance))
