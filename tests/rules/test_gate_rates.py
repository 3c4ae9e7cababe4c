"""The gate's error rates on simulated machines, in small: seeds are fixed, and bounds are those of the binomial."""

import math

import numpy as np
import pytest
from scipy import stats

from perf_tests.gate.stages import (
    POWER_OF_DETECTION,
    confirm_values,
    confirmed_so_far,
    detectable_slowdown,
    replay_stages,
    screen_values,
)
from perf_tests.gate.statistics import Floats
from tests.support.simulated_launches import RULES, SimulatedCase, gate_run
from tests.support.simulated_suites import (
    CASES,
    COVERAGE,
    PAIRS_SHOWN,
    SIMULATED_POWER,
    Machine,
    alarms_of_unchanged,
    coverage,
    looked_early,
    planted,
    relabelled,
)

IMPROBABLE = 1e-4


def is_credible(count: int, of: int, rate: float, side: str) -> bool:
    """Whether so many of so many may come of this rate, or one that is less or greater."""
    return float(stats.binomtest(count, of, rate, side).pvalue) > IMPROBABLE


@pytest.mark.parametrize("machine", [Machine(0.01), Machine(0.03, 0.5, heavy_tails=True, common_share=0.3)], ids=str)
def test_unchanged_suites_are_called_slower_in_at_most_one_of_a_hundred(machine: Machine) -> None:
    alarms, _ = alarms_of_unchanged(np.random.default_rng(2), machine, 0.0, 500)
    assert is_credible(alarms.count, 500, RULES.alpha, "greater")


@pytest.mark.parametrize(
    ("spread", "slowdown", "power"),
    [
        *((0.02, slowdown, power) for slowdown, power in SIMULATED_POWER.items()),
        *((spread, None, POWER_OF_DETECTION) for spread in (0.005, 0.01, 0.02, 0.04)),
    ],
)
def test_what_is_claimed_to_be_found_is_found_unbiased_and_hardly_called_ok(
    spread: float, slowdown: float | None, power: float
) -> None:
    """A claimed power, or what a run says that it could detect."""
    slower = detectable_slowdown(spread, CASES, RULES) if slowdown is None else slowdown
    found, wrong, bias = planted(np.random.default_rng(3), Machine(spread), slower, 150)
    assert is_credible(found.count, 150, power, "less")
    assert is_credible(wrong, 150, RULES.clearing_level, "greater") or slower < RULES.matters
    assert abs(bias) < 0.005 or slowdown is None
    assert slowdown is not None or found.count < 0.97 * 150, "what is detected in fact is no smaller by far"


@pytest.mark.parametrize("pairs", PAIRS_SHOWN)
def test_intervals_cover_the_truth_also_of_cases_that_scatter_more_than_the_suite(pairs: int) -> None:
    for share in coverage(np.random.default_rng(13), Machine(0.03, 0.5), RULES.margin, 300, pairs):
        assert is_credible(share.count, share.of, COVERAGE, "less")


def test_a_bias_of_the_machine_is_tossed_away_with_the_labels_and_a_slowdown_is_not() -> None:
    draw = np.random.default_rng(3)
    noise = 0.001 * draw.normal(size=(40, 5))
    assert is_credible(relabelled(draw, 0.05 + noise, 500).count, 500, RULES.alpha, "greater")
    assert relabelled(draw, noise, 500, shift=0.1).count == 500


def confirmed(first: Floats, second: Floats) -> list[list[bool]]:
    """Return which cases one last look calls slower and faster."""
    screened = screen_values(first, RULES)
    after = confirm_values(second, screened, confirmed_so_far(screened), RULES.alpha, RULES, is_last=True)
    return [after.slower.tolist(), after.faster.tolist()]


def test_swapped_roles_swap_the_verdicts_and_one_wild_launch_shows_no_slowdown() -> None:
    """Eleven launches at nothing and one at a doubling: the exact test has the last word over any t."""
    draw = np.random.default_rng(7)
    shift = np.array([0.1, -0.1, *[0.0] * 8])[:, None]
    first, second = shift + 0.01 * draw.normal(size=(10, 6)), shift + 0.01 * draw.normal(size=(10, 12))
    found = confirmed(first, second)
    assert [flags[:2] for flags in found] == [[True, False], [False, True]]
    assert confirmed(-first, -second) == found[::-1]
    wild = 0.001 * draw.normal(size=(10, 12))
    wild[0, 3] = math.log(2)
    assert not any(confirmed(first, wild)[0])


def test_a_whole_run_is_judged_as_its_pair_values_are_alone_or_in_a_batch() -> None:
    """The simulation's short cut and the shipped way decide alike."""
    cases = [SimulatedCase(f"case {place}", pair_spread=0.02) for place in range(9)]
    cases.append(SimulatedCase("slow", slowdown=0.04, pair_spread=0.02))
    cases.append(SimulatedCase("far slower", slowdown=0.5, pair_spread=0.01))
    values = []
    for seed in range(5):
        course = replay_stages(gate_run(cases, seed=seed), RULES)
        values.append(course.screening.values)
        measured, slower = looked_early(values[-1])
        screened = screen_values(measured, RULES, slower)
        state = confirmed_so_far(screened, slower)
        for look in course.looks:
            level = RULES.stage_two_alpha * RULES.look_shares[look.number - 1]
            is_last = look.pairs == RULES.confirm_looks[-1]
            state = confirm_values(course.by_clock["wall"][:, : look.pairs], screened, state, level, RULES, is_last)
        assert state.slower.tolist() == course.confirmed.slower.tolist()
        assert state.cleared.tolist() == course.confirmed.cleared.tolist()
    together = screen_values(np.stack(values), RULES)
    alone = [screen_values(suite, RULES) for suite in values]
    np.testing.assert_array_equal(together.candidates, [one.candidates for one in alone])
