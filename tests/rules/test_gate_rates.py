"""The gate's error rates on simulated machines, in small: seeds are fixed, and bounds are those of the binomial."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from perf_tests.gate.samples import GateSamples, Rules
from perf_tests.gate.stages import (
    POWER_OF_DETECTION,
    confirm_values,
    confirmed_so_far,
    detectable_slowdown,
    replay_stages,
    screen_values,
    stage_two_estimate,
)
from perf_tests.gate.statistics import Floats
from tests.support.gate_rates import (
    CASES,
    COVERAGE,
    PAIRS_SHOWN,
    SIMULATED_POWER,
    coverage,
    null_p_values,
    planted,
    recorded_values,
    relabelled_runs,
    unchanged_runs,
)
from tests.support.simulated_launches import SimulatedCase, gate_run, header, line
from tests.support.simulated_suites import Machine, judged_suites, looked_early, unit_pair_values

RULES = Rules()
IMPROBABLE = 1e-4


def test_a_simulated_pair_value_has_the_spread_it_says() -> None:
    for heavy_tails in (False, True):
        values = unit_pair_values(np.random.default_rng(1), 2000, 10, heavy_tails)
        assert np.std(values) == pytest.approx(1, rel=0.05)
        assert np.mean(values) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("machine", [Machine(0.01), Machine(0.03, 0.5, heavy_tails=True, common_share=0.3)], ids=str)
def test_unchanged_suites_are_called_slower_in_at_most_one_of_a_hundred(machine: Machine) -> None:
    suites = 500
    alarms = sum(int(run.false_alarms.sum()) for run in unchanged_runs(np.random.default_rng(2), machine, 0.0, suites))
    assert stats.binomtest(alarms, suites, RULES.alpha, "greater").pvalue > IMPROBABLE


def test_an_inflated_level_is_caught_by_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: rules that promise 30 % keep no promise of 1 %."""
    monkeypatch.setattr("tests.support.gate_rates.RULES", Rules(alpha=0.3, margin=0.0))
    (run,) = unchanged_runs(np.random.default_rng(2), Machine(0.03), 0.0, 300)
    assert stats.binomtest(int(run.false_alarms.sum()), 300, 0.01, "greater").pvalue < IMPROBABLE


@pytest.mark.parametrize(("slowdown", "power"), SIMULATED_POWER.items())
def test_a_planted_slowdown_is_found_and_its_size_unbiased(slowdown: float, power: float) -> None:
    trials = 150
    found, _, bias = planted(np.random.default_rng(3), Machine(0.02), slowdown, trials)
    assert stats.binomtest(found.count, trials, power, "less").pvalue > IMPROBABLE
    assert abs(bias) < 0.005


def test_a_slowdown_that_matters_is_called_ok_in_at_most_one_of_twenty() -> None:
    trials = 300
    _, wrong, _ = planted(np.random.default_rng(4), Machine(0.02), RULES.matters, trials)
    assert stats.binomtest(wrong, trials, RULES.clearing_level, "greater").pvalue > IMPROBABLE


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.04])
def test_what_the_gate_says_it_can_detect_it_detects(spread: float) -> None:
    trials = 150
    slowdown = detectable_slowdown(spread, CASES, RULES)
    found, _, _ = planted(np.random.default_rng(12), Machine(spread), slowdown, trials)
    assert stats.binomtest(found.count, trials, POWER_OF_DETECTION, "less").pvalue > IMPROBABLE


def test_a_greater_slowdown_is_found_at_least_as_often() -> None:
    counts = [planted(np.random.default_rng(5), Machine(0.02), s, 100)[0].count for s in (0.0, 0.01, 0.03, 0.1)]
    assert counts == sorted(counts)


def test_p_values_of_unchanged_cases_are_uniform() -> None:
    plain, moderated, exact = null_p_values(np.random.default_rng(6), 100, 10)
    assert stats.kstest(plain, "uniform").pvalue > IMPROBABLE
    assert stats.kstest(moderated, "uniform").pvalue > IMPROBABLE
    for level in (0.01, 0.05, 0.25):
        assert stats.binomtest(int(np.sum(exact <= level)), len(exact), level, "greater").pvalue > IMPROBABLE


@pytest.mark.parametrize("pairs", PAIRS_SHOWN)
def test_intervals_cover_the_truth_also_of_cases_that_scatter_more_than_the_suite(pairs: int) -> None:
    for share in coverage(np.random.default_rng(13), Machine(0.03, 0.5), RULES.margin, 150, pairs):
        assert stats.binomtest(share.count, share.of, COVERAGE, "less").pvalue > IMPROBABLE


def test_intervals_by_the_variance_of_the_suite_alone_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.support.gate_rates.stage_two_estimate", lambda *given: replace(stage_two_estimate(*given), own=None)
    )
    _, share = coverage(np.random.default_rng(13), Machine(0.03, 0.5), RULES.margin, 400, 3)
    assert stats.binomtest(share.count, share.of, COVERAGE, "less").pvalue < IMPROBABLE


def confirmed(first: Floats, second: Floats, rules: Rules = RULES) -> tuple[list[bool], list[bool]]:
    """Which cases one last look calls slower and faster."""
    screened = screen_values(first, rules)
    after = confirm_values(second, screened, confirmed_so_far(screened), rules.alpha, rules, is_last=True)
    return after.slower.tolist(), after.faster.tolist()


def test_swapped_roles_swap_the_verdicts() -> None:
    draw = np.random.default_rng(7)
    shift = np.array([0.1, -0.1, *[0.0] * 8])[:, None]
    first, second = shift + 0.01 * draw.normal(size=(10, 6)), shift + 0.01 * draw.normal(size=(10, 12))
    slower, faster = confirmed(first, second)
    assert (slower[:2], faster[:2]) == ([True, False], [False, True])
    assert confirmed(-first, -second) == (faster, slower)


def test_one_wild_launch_shows_no_slowdown() -> None:
    """Eleven launches at nothing and one at a doubling: the exact test has the last word over any t."""
    draw = np.random.default_rng(8)
    first, second = 0.01 * draw.normal(size=(10, 6)), 0.001 * draw.normal(size=(10, 12))
    first[0] += 0.05
    second[0, 3] = math.log(2)
    assert not any(confirmed(first, second)[0])


def test_a_whole_run_is_judged_as_its_pair_values_are() -> None:
    """The simulation's short cut and the shipped way decide alike."""
    cases = [SimulatedCase(f"case {place}", pair_spread=0.02) for place in range(9)]
    cases.append(SimulatedCase("slow", slowdown=0.04, pair_spread=0.02))
    cases.append(SimulatedCase("far slower", slowdown=0.5, pair_spread=0.01))
    for seed in range(5):
        course = replay_stages(gate_run(cases, RULES, seed), RULES)
        values, slower = looked_early(course.screening.values, RULES)
        screened = screen_values(values, RULES, slower)
        state = confirmed_so_far(screened, slower)
        for look in course.looks:
            level = RULES.stage_two_alpha * RULES.look_shares[look.number - 1]
            is_last = look.pairs == RULES.confirm_looks[-1]
            fresh = course.by_clock["wall"][:, : look.pairs]
            state = confirm_values(fresh, screened, state, level, RULES, is_last)
        assert state.slower.tolist() == course.confirmed.slower.tolist()
        assert state.cleared.tolist() == course.confirmed.cleared.tolist()


def test_a_batch_of_suites_is_judged_as_each_alone() -> None:
    values = 0.02 * np.random.default_rng(9).normal(size=(6, 20, 6))
    together = screen_values(values, RULES)
    alone = [screen_values(suite, RULES) for suite in values]
    np.testing.assert_array_equal(together.candidates, [one.candidates for one in alone])
    np.testing.assert_allclose(together.estimate.variance, [one.estimate.variance for one in alone])


def test_launch_pairs_are_counted_for_who_is_launched() -> None:
    truth = np.array([0.0] * 9 + [0.03, 0.1, math.log(2)])
    run = judged_suites(np.random.default_rng(10), Machine(0.01), truth, RULES, 20)
    assert set(run.pairs[:, -3]) == {RULES.screen_pairs + RULES.confirm_looks[1]}
    assert set(run.pairs[:, -2]) == {RULES.screen_pairs}
    assert set(run.pairs[:, -1]) == {RULES.first_look}
    assert run.pairs[:, :-3].mean() < RULES.screen_pairs + 2


def test_a_bias_of_the_machine_is_tossed_away_and_a_planted_slowdown_is_not() -> None:
    """Every recorded pair says 5 % slower: with its labels drawn again that is noise."""
    draw = np.random.default_rng(3)
    values = 0.05 + 0.001 * draw.normal(size=(40, 5))
    run = relabelled_runs(draw, values, 50, np.zeros((50, 5)))
    assert run.false_alarms.sum() <= 2
    slowed = np.zeros((30, 5))
    slowed[:, 2] = np.log1p(0.1)
    found = relabelled_runs(draw, 0.01 * draw.normal(size=(40, 5)), 30, slowed)
    assert found.confirmed.slower[:, 2].all()


def test_whole_pairs_of_all_runs_are_pooled_and_others_left_out() -> None:
    draw, runs = np.random.default_rng(1), []
    cases = [SimulatedCase(f"t.py::test_x[{place}]") for place in range(5)]
    for pairs, hole in ((4, None), (5, 3)):
        runs.append(GateSamples(header(cases, Rules())))
        for pair in range(pairs):
            for case in cases[pair == hole :]:
                runs[-1].add(line(draw, case, 1, pair, 3, False))
    names, values = recorded_values(runs, "wall")
    assert names == [case.id for case in cases]
    assert values.shape == (4 + 5 - 1, 5)
