"""The two stages on arrays: who goes on, who is cleared when, and how alpha is spent."""

from dataclasses import replace

import numpy as np
import pytest

from perf_tests.gate import stages as decisions
from perf_tests.gate.samples import Rules
from perf_tests.gate.stages import replay_stages
from perf_tests.gate.statistics import Estimate, Floats, Prior
from tests.support.simulated_launches import SimulatedCase, gate_run

RULES = Rules()
NOTHING_LENT = Prior(np.array([0.0]), np.array([0.0]))


def values_about(means: list[float], spread: float, pairs: int) -> Floats:
    """Values (cases, pairs) with exactly these means and this sample standard deviation."""
    shape = np.linspace(-1, 1, pairs)
    return np.array(means)[:, None] + spread * shape / shape.std(ddof=1)


def suspected(cases: int, faster: bool = False) -> decisions.Screened:
    """A screening that suspects every case."""
    flags, none = np.ones(cases, dtype=bool), np.zeros(cases, dtype=bool)
    unknown = np.full(cases, np.nan)
    empty = Estimate(unknown, unknown, unknown, unknown)
    return decisions.Screened(empty, NOTHING_LENT, none if faster else flags, flags if faster else none, none)


def test_a_case_that_hides_what_matters_behind_its_noise_goes_on() -> None:
    screened = decisions.screen_values(values_about([0.0, 0.0, 0.0, 0.0], 0.06, 6), RULES)
    assert screened.too_noisy.all()
    assert not screened.slower_suspects.any()


def test_an_estimate_that_may_not_be_called_slower_makes_no_suspect_however_little_launches_scatter() -> None:
    means = [0.8 * RULES.log_screen_above, 1.2 * RULES.log_screen_above]
    screened = decisions.screen_values(values_about(means, 0.001, 6), RULES)
    assert (screened.estimate.slower_p_values(0.0) < RULES.screen_level).all()
    assert screened.candidates.tolist() == [False, True]


def test_a_case_without_values_goes_nowhere() -> None:
    values = values_about([0.0, 0.0, 0.0, 0.0], 0.06, 6)
    values[0] = np.nan
    assert decisions.screen_values(values, RULES).candidates.tolist() == [False, True, True, True]


def test_every_suspect_makes_it_harder_for_each() -> None:
    values = values_about([0.02, 0.0], 0.01, 12)
    found = decisions.stage_two_estimate(values, NOTHING_LENT)
    level = 1.5 * float(found.slower_p_values(RULES.log_margin)[0])

    def rejected(suspects: list[bool], earlier: list[bool]) -> list[bool]:
        """Of two cases, of which some were rejected at an earlier look and leave the count."""
        flags = np.array(suspects), np.array(earlier), np.array([True, True])
        return list(decisions.rejected_values(values, found, *flags, level, RULES))

    assert rejected([True, False], [False, False]) == [True, False]
    assert rejected([True, True], [False, False]) == [False, False]
    assert rejected([True, True], [False, True]) == [True, False]


def rejected_of_ten(values: Floats, level: float) -> int:
    """How many of ten cases that are all alike are called slower."""
    found = decisions.stage_two_estimate(values, NOTHING_LENT)
    all_cases = np.ones(10, dtype=bool)
    return int(decisions.rejected_values(values, found, all_cases, ~all_cases, all_cases, level, RULES).sum())


def test_many_large_slowdowns_are_found_at_the_second_look() -> None:
    pairs = RULES.confirm_looks[1]
    level = 1.2 * 0.5**pairs
    assert 0.5**pairs / decisions.SIGN_FLIP_ALLOWANCE > level / 10, "the exact test alone would hold them all up"
    assert rejected_of_ten(values_about([0.3] * 10, 0.01, pairs), level) == 10


def test_one_pair_that_shows_less_than_what_matters_puts_many_slowdowns_off() -> None:
    values = values_about([0.3] * 10, 0.01, RULES.confirm_looks[1])
    level = 1.2 * 0.5 ** RULES.confirm_looks[1]
    values[:, 0] = 0.9 * RULES.log_matters
    assert rejected_of_ten(values, level) == 0
    values[:, 0] = 1.1 * RULES.log_matters
    assert rejected_of_ten(values, level) == 10


def test_pairs_that_agree_say_too_little_when_they_are_few() -> None:
    assert rejected_of_ten(values_about([0.3] * 10, 0.0001, 5), 0.009) == 0


@pytest.mark.parametrize(
    "mean, spread, at_an_earlier_look, at_the_last",
    [(0.0, 0.01, True, True), (0.01, 0.01, False, True), (0.0, 0.2, False, False)],
    ids=["looks like nothing", "still looks slower", "too noisy to tell"],
)
def test_a_suspect_is_cleared(mean: float, spread: float, at_an_earlier_look: bool, at_the_last: bool) -> None:
    values, screened = values_about([mean], spread, 12), suspected(1)
    for is_last, is_cleared in ((False, at_an_earlier_look), (True, at_the_last)):
        after = decisions.confirm_values(values, screened, decisions.confirmed_so_far(screened), 1e-4, RULES, is_last)
        assert (after.slower[0], after.cleared[0]) == (False, is_cleared)


def test_who_may_be_faster_by_what_matters_is_measured_on() -> None:
    values = values_about([-0.03], 0.02, 12)
    for faster in (False, True):
        screened = suspected(1, faster)
        before = decisions.confirmed_so_far(screened)
        after = decisions.confirm_values(values, screened, before, 1e-9, RULES, is_last=False)
        assert after.cleared[0] != faster


def spent(cases: list[SimulatedCase], rules: Rules) -> float:
    return sum(look.level for look in replay_stages(gate_run(cases, rules, 1), rules).looks)


LEFT = 1 - RULES.suite_share - RULES.first_share - RULES.second_share


def test_the_looks_spend_alpha_less_the_parts_of_the_suite_and_of_the_early_looks() -> None:
    cases = [SimulatedCase(f"case {place}", pair_spread=0.2) for place in range(6)]
    assert spent(cases, RULES) == pytest.approx(RULES.alpha * LEFT)


def test_where_cpu_time_decides_wall_time_has_its_own_part() -> None:
    rules = replace(RULES, clock="cpu")
    cases = [SimulatedCase(f"case {place}", pair_spread=0.2, cpu_pair_spread=0.2) for place in range(6)]
    assert spent(cases, rules) == pytest.approx(rules.alpha * LEFT * (1 - rules.guard_share))
