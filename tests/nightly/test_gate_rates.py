"""The gate's error rates in full: on simulated machines whose truth is known, on relabelled launches, and its words."""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from claims.gate import KEPT, Trial, trials_under
from claims.statistics import Share
from perf_tests.gate.samples import Clock, GateSamples
from perf_tests.gate.stages import interim_analyses
from perf_tests.gate.verdicts import Verdict
from tests.support.gate_rates import (
    CALM_SPREAD,
    CLAIMED_BIAS,
    CLAIMED_CLEARED,
    CLAIMED_SPREAD,
    COVERAGE,
    PAIRS_SHOWN,
    RULES,
    SIMULATED_POWER,
    SPREADS,
    UNCHANGED,
    coverage,
    looks_taken,
    null_p_values,
    planted,
    recorded_coverage,
    recorded_values,
    unchanged_runs,
)
from tests.support.gate_words import MODES, judged
from tests.support.invented_history import invented
from tests.support.simulated_suites import Machine

SUITES, TRIALS, SEED = 10_000, 3000, 2027


@pytest.mark.parametrize("name", UNCHANGED)
def test_at_most_one_unchanged_suite_of_a_hundred_is_called_slower(name: str) -> None:
    machine, slowdown = UNCHANGED[name]
    runs = unchanged_runs(np.random.default_rng(SEED), machine, slowdown, SUITES)
    alarms = Share(sum(int(run.false_alarms.sum()) for run in runs), SUITES)
    # At the margin itself alpha is spent in full, so that no number of suites shows a rate below it.
    assert alarms.limits[0 if slowdown else 1] <= RULES.alpha
    if machine.pair_spread <= CALM_SPREAD and not machine.case_spread:
        assert np.mean([run.is_cleared_soon(RULES).mean() for run in runs]) >= CLAIMED_CLEARED


def test_p_values_of_unchanged_cases_are_uniform_and_of_heavy_tails_no_smaller() -> None:
    plain, moderated, exact = null_p_values(np.random.default_rng(SEED), TRIALS, RULES.confirm_looks[0])
    assert stats.kstest(plain, "uniform").pvalue > 0.001
    assert stats.kstest(moderated, "uniform").pvalue > 0.001
    for level in (0.001, 0.01, 0.05):
        assert stats.binomtest(int(np.sum(exact <= level)), len(exact), level, "greater").pvalue > 0.001


@pytest.mark.parametrize("slowdown, power", SIMULATED_POWER.items())
@pytest.mark.parametrize("spread", [spread for spread in SPREADS if spread <= CLAIMED_SPREAD])
def test_a_slowdown_is_found_with_the_power_that_is_claimed_and_its_size_unbiased(
    spread: float, slowdown: float, power: float
) -> None:
    found, _, bias = planted(np.random.default_rng(SEED), Machine(spread), slowdown, TRIALS)
    assert found.limits[0] >= power
    assert abs(bias) <= CLAIMED_BIAS


@pytest.mark.parametrize("pairs", PAIRS_SHOWN)
@pytest.mark.parametrize("name", UNCHANGED)
def test_intervals_cover_the_truth_of_unchanged_cases(name: str, pairs: int) -> None:
    machine, slowdown = UNCHANGED[name]
    for share in coverage(np.random.default_rng(SEED), machine, slowdown, TRIALS, pairs):
        assert share.limits[1] >= COVERAGE


@pytest.mark.parametrize("mode", MODES)
def test_every_rows_figures_say_what_its_verdict_says(mode: str) -> None:
    rows, faults = judged(np.random.default_rng(SEED), MODES[mode], SUITES)
    assert faults == []
    assert {Verdict.SLOWER, Verdict.OK, Verdict.UNDECIDED} <= Counter(row.verdict for row in rows).keys()


@pytest.fixture(scope="module")
def unchanged() -> list[GateSamples]:
    """The kept runs without a slowdown that the gate did not refuse."""
    trials: Sequence[Trial] = trials_under(KEPT)["false-alarms"]
    return [trial.samples for trial in trials if trial.says_something and trial.samples is not None]


@pytest.mark.parametrize("clock", get_args(Clock))
def test_early_looks_at_the_kept_launches_are_far_from_calling_anything_slower(
    unchanged: list[GateSamples], clock: Clock
) -> None:
    """Either side as head; as `docs/gate.md` says."""
    first, second = interim_analyses(RULES)
    called, farthest = looks_taken(unchanged, clock, first)
    assert len(called) >= 300
    assert not any(called)
    assert 0 < max(farthest) < RULES.far_spreads / 3
    called, farthest = looks_taken(unchanged, clock, second)
    assert len(called) >= 150
    assert not any(called)
    assert not farthest, "none is above the limit in every pair"


@pytest.mark.parametrize("clock", get_args(Clock))
def test_intervals_cover_nothing_changed_in_the_kept_runs(unchanged: list[GateSamples], clock: Clock) -> None:
    _, values = recorded_values(unchanged, clock)
    found = [recorded_coverage(values, pairs) for pairs in PAIRS_SHOWN]
    assert min(share.count / share.of for share in found) >= COVERAGE


def test_a_history_finds_steps_of_a_tenth_and_hardly_names_one_that_is_none() -> None:
    """Five invented histories, 400 commits and 30 cases each."""
    random = np.random.default_rng(SEED)
    scores = [invented(random) for _ in range(5)]
    assert sum(score.sure.count for score in scores) >= 0.95 * sum(score.sure.of for score in scores)
    assert sum(score.false for score in scores) <= 1e-3 * sum(score.of for score in scores)
