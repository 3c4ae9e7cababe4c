"""The stages on arrays and on runs whose truth is known: who goes on, who is decided when, and how alpha is spent."""

import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from perf_tests_suite.perf_tests.gate import stages
from perf_tests_suite.perf_tests.gate.samples import ClockChoice
from perf_tests_suite.perf_tests.gate.stages import (
    InterimAnalysis,
    detectable_early,
    interim_analyses,
    replay_stages,
    screening_of,
)
from perf_tests_suite.perf_tests.gate.statistics import Estimate, Floats, Prior, estimate, moderated
from perf_tests_suite.perf_tests.gate.verdicts import conclude, next_step
from tests.support.simulated_launches import QUIET, RULES, SimulatedCase, gate_run, screened_run
from tests.support.simulated_suites import CASES, Machine, alarms_of_unchanged, judged, nothing_confirmed, planted

NOTHING_LENT = Prior(np.array([0.0]), np.array([0.0]))
FIRST, SECOND = interim_analyses(RULES)
CALM = [SimulatedCase(f"calm {place}", pair_spread=0.005) for place in range(8)]
FAR = SimulatedCase("far", slowdown=0.9, pair_spread=0.01)


def values_about(means: list[float], spread: float, pairs: int) -> Floats:
    """Values (cases, pairs) with exactly these means and this sample standard deviation."""
    shape = np.linspace(-1, 1, pairs)
    return np.array(means)[:, None] + spread * shape / shape.std(ddof=1)


def test_stage_one_passes_on_what_it_suspects_and_what_it_cannot_clear() -> None:
    noisy = values_about([0.0] * 4, 0.06, 6)
    noisy[0] = np.nan
    screened = stages.screen_values(noisy, RULES)
    assert screened.too_noisy.tolist() == screened.candidates.tolist() == [False, True, True, True]
    assert not screened.slower_suspects.any()
    close = [0.8 * RULES.screen_above, 1.2 * RULES.screen_above, -0.01]
    screened = stages.screen_values(values_about(close, 0.001, 6), RULES)
    assert (screened.estimate.slower_p_values(0.0)[:2] < RULES.screen_level).all()
    assert screened.slower_suspects.tolist() == [False, True, False], "what may not be called SLOWER is no suspect"
    assert screened.faster_suspects.tolist() == [False, False, True]


SUSPECTS = {
    # suspects, those that an earlier look rejected, and what is rejected
    "alone": ([1, 0], [0, 0], [1, 0]),
    "beside another": ([1, 1], [0, 0], [0, 0]),
    "beside one that an earlier look rejected": ([1, 1], [0, 1], [1, 0]),
}


def test_every_open_suspect_makes_it_harder_for_each() -> None:
    values = values_about([0.02, 0.0], 0.01, 12)
    found = moderated(estimate(values), NOTHING_LENT)
    level = 1.5 * float(found.slower_p_values(RULES.log_margin)[0])
    for name, (suspects, earlier, expected) in SUSPECTS.items():
        flags = np.array(suspects, dtype=bool), np.array(earlier, dtype=bool), np.array([True, True])
        assert stages.rejected_values(values, found, *flags, level, RULES).tolist() == expected, name


WAIVED: dict[str, tuple[float, int, float | None, float, int]] = {
    # scatter, pairs, the lowest pair's share of what matters, level, and how many of ten cases are called
    "large ones are found": (0.01, 10, 1.1, 1.2 * 0.5**10, 10),
    "one pair shows less than what matters": (0.01, 10, 0.9, 1.2 * 0.5**10, 0),
    "few pairs that agree say too little": (0.0001, 5, None, 0.009, 0),
}


def test_the_exact_test_is_waived_where_every_pair_shows_what_matters() -> None:
    """Ten cases are all alike; the exact test alone would hold them all up."""
    for name, (spread, pairs, lowest, level, called) in WAIVED.items():
        assert 0.5**pairs / stages.SIGN_FLIP_ALLOWANCE > level / 10
        values, all_cases = values_about([0.3] * 10, spread, pairs), np.ones(10, dtype=bool)
        if lowest is not None:
            values[:, 0] = lowest * RULES.log_matters
        found = moderated(estimate(values), NOTHING_LENT)
        flags = stages.rejected_values(values, found, all_cases, ~all_cases, all_cases, level, RULES)
        assert flags.sum() == called, name


CLEARED = {
    # mean, scatter, whether it was suspected to be faster, and whether an earlier look and the last one clear it
    "looks like nothing": (0.0, 0.01, False, True, True),
    "still looks slower": (0.01, 0.01, False, False, True),
    "too noisy to tell": (0.0, 0.2, False, False, False),
    "faster, not suspected": (-0.03, 0.02, False, True, True),
    "may be faster": (-0.03, 0.02, True, False, False),
}


def test_a_suspect_is_cleared() -> None:
    flag, unknown = np.array([True]), np.array([np.nan])
    empty = Estimate(unknown, unknown, unknown, unknown)
    for name, (mean, spread, is_faster, *by_look) in CLEARED.items():
        screened = stages.Screened(empty, NOTHING_LENT, flag & (not is_faster), flag & is_faster, too_noisy=~flag)
        for is_last, is_cleared in enumerate(by_look):
            values, state = values_about([mean], spread, 12), nothing_confirmed(screened)
            after = stages.confirm_values(values, screened, state, 1e-9, RULES, bool(is_last))
            assert (after.slower[0], after.faster[0], after.cleared[0]) == (False, False, is_cleared), name


def test_the_looks_spend_alpha_less_the_parts_of_the_suite_of_the_early_looks_and_of_the_guard() -> None:
    cases = [SimulatedCase(f"case {place}", pair_spread=0.2, cpu_pair_spread=0.2) for place in range(6)]
    left = 1 - RULES.suite_share - RULES.first_share - RULES.second_share
    for rules, kept in ((replace(RULES, clock="wall"), 1.0), (replace(RULES, clock="cpu"), 1 - RULES.guard_share)):
        looks = replay_stages(gate_run(cases, rules), rules).interim
        assert [one.level for one in looks] == pytest.approx([RULES.alpha * left * kept * s for s in RULES.look_shares])
        assert tuple(look.pairs for look in looks) == RULES.confirm_looks


def test_suspects_alone_are_launched_again_until_they_are_decided_by_fresh_launches_alone() -> None:
    samples = gate_run([*QUIET, SimulatedCase("slow", slowdown=0.03)])
    history = replay_stages(samples, RULES)
    launched_again = {m.case for m in samples.measurements if m.stage == 2}
    assert {"slow"} <= launched_again == set(screening_of(samples, RULES).candidates) < set(samples.cases)
    *_, last = history.interim
    assert (history.screening.names(history.confirmed.slower), last.undecided, last.pairs) == (("slow",), (), 10)
    assert history.pairs_used[samples.cases.index("slow")] == 10
    assert next_step(samples, RULES) is None
    assert history.by_clock["wall"].shape[1] == len(samples.pairs(2)) == RULES.confirm_looks[1]
    assert np.isnan(history.by_clock["wall"][samples.cases.index("quiet 0")]).all()


# The looks of stage 1.

PLAIN = (0.08, 0.1, 0.09, 0.11, 0.1, 0.09)


CALLED: dict[str, tuple[InterimAnalysis, tuple[float, ...], float, bool]] = {
    "far": (FIRST, (0.5, 0.5, 0.5), 0.005, True),
    "far, one pair below the limit": (FIRST, (0.5, 0.5, 0.14), 0.001, False),
    "far, within what the run scatters by": (FIRST, (0.16, 0.16, 0.16), 0.03, False),
    "far, within its own scatter": (FIRST, (0.2, 0.9, 0.5), 0.001, False),
    "far, one pair lacks it": (FIRST, (0.9, math.nan, 0.9), 0.01, False),
    "plain": (SECOND, PLAIN, 0.01, True),
    "plain, one pair below what matters": (SECOND, (*PLAIN[:5], 0.02), 0.01, False),
    "plain, within what the run scatters by": (SECOND, PLAIN, 0.15, False),
    "plain, within its own scatter": (SECOND, 3 * (0.04, 0.9), 0.01, False),
    "plain, one pair lacks it": (SECOND, (*4 * (0.9,), math.nan, 0.9), 0.01, False),
}


def test_what_a_look_of_stage_one_calls_slower() -> None:
    for name, (look, head, spread, is_called) in CALLED.items():
        left_out = np.full((20, look.pairs), math.nan)  # which keeps a look from no other case
        suite = np.vstack([np.log1p(head), spread * np.random.default_rng(1).normal(size=(9, look.pairs)), left_out])
        assert look.calls(suite, RULES).tolist() == [is_called] + 29 * [False], name


def test_a_case_that_hardly_scatters_is_not_called_below_what_the_median_case_scatters_by() -> None:
    """Where cases scatter so differently that the suite lends a case next to nothing, t alone would call it."""
    spreads = np.array([0.01] * 3 + [0.2] * 6)[:, None]
    suite = np.vstack([np.log1p(PLAIN), spreads * np.random.default_rng(1).normal(size=(9, 6))])
    assert replace(SECOND, spreads=0.0).calls(suite, RULES)[0]
    assert not SECOND.calls(suite, RULES)[0]


def test_what_is_slower_by_a_look_of_stage_one_is_measured_no_further() -> None:
    samples = gate_run([*CALM, FAR])
    assert [m.stage for m in samples.measurements if m.case == "far"] == [1] * 3
    assert len(samples.pairs(1)) == RULES.screen_pairs
    all_far = gate_run([FAR, replace(FAR, id="farther", slowdown=2.0), replace(FAR, id="too")])
    assert (len(all_far.pairs(1)), all_far.end, next_step(all_far, RULES)) == (3, "finished", None)


def test_rules_without_early_looks_take_none() -> None:
    rules = replace(RULES, first_look=None, second_share=0.0)
    samples = gate_run([*CALM, FAR], rules)
    assert interim_analyses(rules) == []
    assert rules.stage_two_alpha == pytest.approx(0.9 * RULES.alpha)
    assert len(samples.pairs(1)) == rules.screen_pairs
    assert replay_stages(samples, rules).screening.slower_early_by == {}
    assert interim_analyses(replace(RULES, first_look=RULES.screen_pairs)) == [SECOND], "it must come before the end"


@pytest.mark.parametrize("look", [FIRST, SECOND], ids=lambda look: f"{look.pairs} pairs")
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_the_slowdown_that_a_look_detects_is_found_four_times_in_five(look: InterimAnalysis, spread: float) -> None:
    rules = RULES if look is FIRST else replace(RULES, first_look=None)
    detectable = detectable_early(spread, 20, look.pairs, rules)
    assert detectable is not None
    assert detectable_early(spread, 20, look.pairs - 1, rules) is None
    suites = spread * np.random.default_rng(3).normal(size=(400, 20, look.pairs))
    suites[:, 0] += detectable
    assert 0.78 < look.calls(suites, rules)[:, 0].mean() < 0.92


def test_a_run_says_what_it_could_detect_with_the_launch_pairs_that_it_had() -> None:
    def detectable(spread: float, most_pairs: int | None) -> float | None:
        cases = [*(replace(case, pair_spread=spread) for case in CALM), SimulatedCase("noisy", pair_spread=0.1)]
        return conclude(gate_run(cases, seed=1, most_pairs=most_pairs), RULES).detectable

    assert detectable(0.005, 2) is None
    for spread, most_pairs, least, most in (
        (0.005, 3, RULES.far, 0.3), (0.01, 9, RULES.matters, 0.1), (0.01, 18, 0.018, 0.021), (0.01, None, 0.01, 0.018),
    ):  # fmt: skip
        assert least < (detectable(spread, most_pairs) or 0.0) < most, most_pairs


# The suite as a whole.


CLOCKS: list[tuple[bool, ClockChoice]] = [(False, "auto"), (True, "auto"), (True, "wall")]


def test_two_clocks_to_choose_from_halve_the_level_of_the_suite() -> None:
    """All runs have the same wall times, whose p-value lies between half the level and the level."""
    samples = screened_run([SimulatedCase(f"case {place}", slowdown=0.02, pair_spread=0.01) for place in range(9)])
    alone = stages.shift_of_the_suite(screening_of(samples, RULES), RULES)
    assert alone is not None
    read = [
        replace(line, base_cpu_seconds=line.base_seconds, head_cpu_seconds=line.head_seconds)
        for line in samples.measurements
    ]
    for has_cpu_time, clock in CLOCKS:
        rules = replace(RULES, alpha=1.5 * alone.p_value / RULES.suite_share, clock=clock)
        run = replace(samples, measurements=read) if has_cpu_time else samples
        shift = stages.shift_of_the_suite(screening_of(run, rules), rules)
        assert shift is not None
        assert shift.p_value == pytest.approx(alone.p_value)
        assert shift.is_significant != (has_cpu_time and clock == "auto")


IMPROBABLE = 1e-4


def is_credible(count: int, of: int, rate: float, side: str) -> bool:
    """Whether so many of so many may come of this rate, or one that is less or greater."""
    return float(stats.binomtest(count, of, rate, side).pvalue) > IMPROBABLE


def test_an_unchanged_suite_is_called_slower_as_rarely_as_alpha_says() -> None:
    machine = Machine(0.03, 0.5, heavy_tails=True, common_share=0.3)
    alarms, _ = alarms_of_unchanged(np.random.default_rng(2), machine, 0.0, 500)
    assert is_credible(alarms.count, 500, RULES.alpha, "greater")


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.04])
def test_what_a_run_says_that_it_could_detect_is_found_as_often_as_it_says_and_hardly_called_ok(spread: float) -> None:
    slower = stages.detectable_slowdown(spread, CASES, RULES)
    found, wrong, bias = planted(np.random.default_rng(3), Machine(spread), slower, 150)
    assert is_credible(found.count, 150, 0.8, "less"), "the power that is printed"
    assert found.count < 0.97 * 150, "what is detected in fact is no smaller by far"
    assert is_credible(wrong, 150, RULES.clearing_level, "greater") or slower < RULES.matters
    assert abs(bias) < 0.01


def confirmed(first: Floats, second: Floats) -> list[list[bool]]:
    """Return which cases one last look calls slower and faster."""
    screened = stages.screen_values(first, RULES)
    after = stages.confirm_values(second, screened, nothing_confirmed(screened), RULES.alpha, RULES, is_last=True)
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
    courses = [replay_stages(gate_run(cases, seed=seed), RULES) for seed in range(5)]
    for course in courses:
        confirmed = judged(course.screening.values, Mock(return_value=course.by_clock["wall"])).confirmed
        assert confirmed.slower.tolist() == course.confirmed.slower.tolist()
        assert confirmed.cleared.tolist() == course.confirmed.cleared.tolist()
    values = [course.screening.values for course in courses]
    alone = [stages.screen_values(suite, RULES).candidates for suite in values]
    np.testing.assert_array_equal(stages.screen_values(np.stack(values), RULES).candidates, alone)
