"""The stages on arrays and on runs whose truth is known: who goes on, who is decided when, and how alpha is spent."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perf_tests.gate import stages
from perf_tests.gate.samples import Clock, ClockChoice
from perf_tests.gate.stages import InterimAnalysis, detectable_early, interim_analyses, replay_stages, screening_of
from perf_tests.gate.statistics import Estimate, Floats, Prior, estimate, moderated
from perf_tests.gate.verdicts import conclude, next_step
from tests.support.simulated_launches import QUIET, RULES, SimulatedCase, gate_run, screened_run

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


@pytest.mark.parametrize(
    ("suspects", "earlier", "expected"),
    [([1, 0], [0, 0], [1, 0]), ([1, 1], [0, 0], [0, 0]), ([1, 1], [0, 1], [1, 0])],
    ids=["alone", "beside another", "beside one that an earlier look rejected"],
)
def test_every_open_suspect_makes_it_harder_for_each(
    suspects: list[int], earlier: list[int], expected: list[int]
) -> None:
    values = values_about([0.02, 0.0], 0.01, 12)
    found = moderated(estimate(values), NOTHING_LENT)
    level = 1.5 * float(found.slower_p_values(RULES.log_margin)[0])
    flags = np.array(suspects, dtype=bool), np.array(earlier, dtype=bool), np.array([True, True])
    assert stages.rejected_values(values, found, *flags, level, RULES).tolist() == expected


@pytest.mark.parametrize(
    ("spread", "pairs", "lowest", "level", "called"),
    [
        (0.01, 10, 1.1, 1.2 * 0.5**10, 10),
        (0.01, 10, 0.9, 1.2 * 0.5**10, 0),
        (0.0001, 5, None, 0.009, 0),
    ],
    ids=["large ones are found", "one pair shows less than what matters", "few pairs that agree say too little"],
)
def test_the_exact_test_is_waived_where_every_pair_shows_what_matters(
    spread: float, pairs: int, lowest: float | None, level: float, called: int
) -> None:
    """Ten cases are all alike; the exact test alone would hold them all up."""
    assert 0.5**pairs / stages.SIGN_FLIP_ALLOWANCE > level / 10
    values, all_cases = values_about([0.3] * 10, spread, pairs), np.ones(10, dtype=bool)
    if lowest is not None:
        values[:, 0] = lowest * RULES.log_matters
    found = moderated(estimate(values), NOTHING_LENT)
    flags = stages.rejected_values(values, found, all_cases, ~all_cases, all_cases, level, RULES)
    assert flags.sum() == called


@pytest.mark.parametrize(
    ("mean", "spread", "suspected_faster", "at_an_earlier_look", "at_the_last"),
    [
        (0.0, 0.01, False, True, True),
        (0.01, 0.01, False, False, True),
        (0.0, 0.2, False, False, False),
        (-0.03, 0.02, False, True, True),
        (-0.03, 0.02, True, False, False),
    ],
    ids=["looks like nothing", "still looks slower", "too noisy to tell", "faster, not suspected", "may be faster"],
)
def test_a_suspect_is_cleared(
    mean: float, spread: float, suspected_faster: bool, at_an_earlier_look: bool, at_the_last: bool
) -> None:
    values, flag, unknown = values_about([mean], spread, 12), np.array([True]), np.array([np.nan])
    empty = Estimate(unknown, unknown, unknown, unknown)
    screened = stages.Screened(
        empty, NOTHING_LENT, flag & (not suspected_faster), flag & suspected_faster, too_noisy=~flag
    )
    for is_last, is_cleared in ((False, at_an_earlier_look), (True, at_the_last)):
        after = stages.confirm_values(values, screened, stages.confirmed_so_far(screened), 1e-9, RULES, is_last)
        assert (after.slower[0], after.faster[0], after.cleared[0]) == (False, False, is_cleared)


@pytest.mark.parametrize(("clock", "kept"), [("wall", 1.0), ("cpu", 1 - RULES.guard_share)])
def test_the_looks_spend_alpha_less_the_parts_of_the_suite_of_the_early_looks_and_of_the_guard(
    clock: Clock, kept: float
) -> None:
    rules = replace(RULES, clock=clock)
    cases = [SimulatedCase(f"case {place}", pair_spread=0.2, cpu_pair_spread=0.2) for place in range(6)]
    looks = replay_stages(gate_run(cases, rules), rules).looks
    left = 1 - RULES.suite_share - RULES.first_share - RULES.second_share
    assert [look.level for look in looks] == pytest.approx([RULES.alpha * left * kept * s for s in RULES.look_shares])
    assert tuple(look.pairs for look in looks) == RULES.confirm_looks


def test_suspects_alone_are_launched_again_until_they_are_decided_by_fresh_launches_alone() -> None:
    samples = gate_run([*QUIET, SimulatedCase("slow", slowdown=0.03)])
    history = replay_stages(samples, RULES)
    launched_again = {m.case for m in samples.measurements if m.stage == 2}
    assert {"slow"} <= launched_again == set(screening_of(samples, RULES).candidates) < set(samples.cases)
    *_, last = history.looks
    assert (history.screening.names(history.confirmed.slower), last.undecided, last.pairs) == (("slow",), (), 10)
    assert history.pairs_used[samples.cases.index("slow")] == 10
    assert next_step(samples, RULES) is None
    assert history.by_clock["wall"].shape[1] == len(samples.pairs(2)) == RULES.confirm_looks[1]
    assert np.isnan(history.by_clock["wall"][samples.cases.index("quiet 0")]).all()


# The looks of stage 1.

PLAIN = (0.08, 0.1, 0.09, 0.11, 0.1, 0.09)


@pytest.mark.parametrize(
    ("look", "head", "spread", "is_called"),
    [
        pytest.param(FIRST, (0.5, 0.5, 0.5), 0.005, True, id="far"),
        pytest.param(FIRST, (0.5, 0.5, 0.14), 0.001, False, id="far, one pair below the limit"),
        pytest.param(FIRST, (0.16, 0.16, 0.16), 0.03, False, id="far, within what the run scatters by"),
        pytest.param(FIRST, (0.2, 0.9, 0.5), 0.001, False, id="far, within its own scatter"),
        pytest.param(FIRST, (0.9, math.nan, 0.9), 0.01, False, id="far, one pair lacks it"),
        pytest.param(SECOND, PLAIN, 0.01, True, id="plain"),
        pytest.param(SECOND, (*PLAIN[:5], 0.02), 0.01, False, id="plain, one pair below what matters"),
        pytest.param(SECOND, PLAIN, 0.15, False, id="plain, within what the run scatters by"),
        pytest.param(SECOND, 3 * (0.04, 0.9), 0.01, False, id="plain, within its own scatter"),
        pytest.param(SECOND, (*4 * (0.9,), math.nan, 0.9), 0.01, False, id="plain, one pair lacks it"),
    ],
)
def test_what_a_look_of_stage_one_calls_slower(
    look: InterimAnalysis, head: tuple[float, ...], spread: float, is_called: bool
) -> None:
    left_out = np.full((20, look.pairs), math.nan)  # which keeps a look from no other case
    unchanged = spread * np.random.default_rng(1).normal(size=(9, look.pairs))
    assert look.calls(np.vstack([np.log1p(head), unchanged, left_out]), RULES).tolist() == [is_called] + 29 * [False]


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
    draw = np.random.default_rng(3)
    rules = RULES if look is FIRST else replace(RULES, first_look=None)
    detectable = detectable_early(spread, 20, look.pairs, rules)
    assert detectable is not None
    assert detectable_early(spread, 20, look.pairs - 1, rules) is None
    slow = detectable + spread * draw.normal(size=(400, 1, look.pairs))
    suites = np.concatenate([slow, spread * draw.normal(size=(400, 19, look.pairs))], axis=1)
    assert 0.78 < look.calls(suites, rules)[:, 0].mean() < 0.92


@pytest.mark.parametrize(
    ("most_pairs", "at_least", "at_most"),
    [(2, None, None), (3, RULES.far, 0.3), (9, RULES.matters, 0.1), (18, 0.018, 0.021), (None, 0.01, 0.018)],
)
def test_a_run_says_what_it_could_detect_with_the_launch_pairs_that_it_had(
    most_pairs: int | None, at_least: float | None, at_most: float | None
) -> None:
    noisy = SimulatedCase("noisy", pair_spread=0.1)
    spread = 0.01 if most_pairs is None or most_pairs > 3 else 0.005
    cases = [replace(case, pair_spread=spread) for case in CALM]
    detectable = conclude(gate_run([*cases, noisy], seed=1, most_pairs=most_pairs), RULES).detectable
    if detectable is None or at_least is None or at_most is None:
        assert detectable is at_least
    else:
        assert at_least < detectable < at_most


# The suite as a whole.


@pytest.mark.parametrize(("has_cpu_time", "clock"), [(False, "auto"), (True, "auto"), (True, "wall")])
def test_two_clocks_to_choose_from_halve_the_level_of_the_suite(has_cpu_time: bool, clock: ClockChoice) -> None:
    """All runs have the same wall times, whose p-value lies between half the level and the level."""
    cases = [SimulatedCase(f"case {place}", slowdown=0.02, pair_spread=0.01) for place in range(9)]
    samples = screened_run(cases)
    alone = stages.shift_of_the_suite(screening_of(samples, RULES), RULES)
    assert alone is not None
    rules = replace(RULES, alpha=1.5 * alone.p_value / RULES.suite_share, clock=clock)
    if has_cpu_time:
        samples.measurements = [
            replace(m, base_cpu_seconds=m.base_seconds, head_cpu_seconds=m.head_seconds) for m in samples.measurements
        ]
    shift = stages.shift_of_the_suite(screening_of(samples, rules), rules)
    assert shift is not None
    assert shift.p_value == pytest.approx(alone.p_value)
    assert shift.is_significant != (has_cpu_time and clock == "auto")
