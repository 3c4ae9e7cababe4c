"""The early looks of the gate: what three and six launch pairs may decide, and what they may not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perf_tests.gate.samples import End, Rules, rules_from_settings
from perf_tests.gate.stages import InterimAnalysis, detectable_early, interim_analyses, replay_stages
from perf_tests.gate.verdicts import Verdict, conclude, next_step
from tests.support.simulated_launches import SimulatedCase, gate_run

RULES = Rules()
FIRST, SECOND = interim_analyses(RULES)
QUIET = [SimulatedCase(f"quiet {place}", pair_spread=0.005) for place in range(8)]
FAR = SimulatedCase("far", slowdown=0.9, pair_spread=0.01)


def values(far: tuple[float, ...], spread: float = 0.01) -> np.ndarray:
    """Pair values of one case with these, and of nine unchanged ones."""
    quiet = spread * np.random.default_rng(1).normal(size=(9, len(far)))
    return np.vstack([np.log1p(far), quiet])


def test_a_slowdown_far_beyond_the_scatter_is_named_after_three_pairs() -> None:
    result = conclude(gate_run([*QUIET, FAR], RULES, seed=1, most_pairs=3), RULES)
    row = next(row for row in result.cases if row.id == "far")
    assert row.verdict == Verdict.SLOWER
    assert row.effect is not None
    assert (row.effect.pairs, row.effect.low > RULES.far) == (3, True)
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("far", "spread"),
    [((0.5, 0.5, 0.14), 0.001), ((0.16, 0.16, 0.16), 0.03), ((0.2, 0.9, 0.5), 0.001)],
    ids=["one pair below the limit", "within what the run scatters by", "within its own scatter"],
)
def test_less_is_left_to_fresh_launches(far: tuple[float, float, float], spread: float) -> None:
    assert not FIRST.calls(values(far, spread), RULES).any()


def test_a_case_that_one_pair_lacks_is_not_decided_so_early() -> None:
    for look in (FIRST, SECOND):
        assert not look.calls(values((0.9, math.nan, *((look.pairs - 2) * [0.9]))), RULES)[0]


def test_cases_that_were_left_out_do_not_keep_a_look_from_the_others() -> None:
    left_out = np.full((20, FIRST.pairs), math.nan)
    assert FIRST.calls(np.vstack([values((0.5, 0.5, 0.5), 0.005), left_out]), RULES).tolist() == [True] + 29 * [False]


PLAIN = (0.08, 0.1, 0.09, 0.11, 0.1, 0.09)


@pytest.mark.parametrize(
    ("head", "spread", "is_called"),
    [
        (PLAIN, 0.01, True),
        ((*PLAIN[:5], 0.02), 0.01, False),
        (PLAIN, 0.15, False),
        ((0.04, 0.9, 0.04, 0.9, 0.04, 0.9), 0.01, False),
    ],
    ids=["plain", "one pair below what matters", "within what the run scatters by", "within its own scatter"],
)
def test_the_end_of_stage_one_names_what_each_pair_shows_plainly(
    head: tuple[float, ...], spread: float, is_called: bool
) -> None:
    assert SECOND.calls(values(head, spread), RULES).tolist() == [is_called] + 9 * [False]


def test_a_case_that_hardly_scatters_is_not_called_below_what_the_median_case_scatters_by() -> None:
    """Where cases scatter so differently that the suite lends a case next to nothing, t alone would call it."""
    spreads = np.array([0.01] * 3 + [0.2] * 6)[:, None]
    others = spreads * np.random.default_rng(1).normal(size=(9, 6))
    suite = np.vstack([np.log1p(PLAIN), others])
    assert replace(SECOND, spreads=0.0).calls(suite, RULES)[0]
    assert not SECOND.calls(suite, RULES)[0]


def test_what_is_plainly_slower_needs_no_fresh_launches() -> None:
    plain = SimulatedCase("plain", slowdown=0.1, pair_spread=0.005)
    samples = gate_run([*QUIET, plain], RULES, seed=1)
    row = conclude(samples, RULES).cases[-1]
    assert row.effect is not None
    assert (row.verdict, row.effect.pairs) == (Verdict.SLOWER, RULES.screen_pairs)
    assert row.effect.low > RULES.margin
    assert not any(m.case == "plain" for m in samples.measurements if m.stage == 2)


def test_what_is_far_slower_is_measured_no_further() -> None:
    samples = gate_run([*QUIET, FAR], RULES, seed=1)
    measured = {case: sum(m.case == case for m in samples.measurements if m.stage == 1) for case in samples.cases}
    assert measured == {case.id: RULES.screen_pairs for case in QUIET} | {"far": RULES.first_look}
    assert not any(m.case == "far" for m in samples.measurements if m.stage == 2)


def test_a_run_whose_cases_are_all_decided_early_is_finished() -> None:
    samples = gate_run([FAR, replace(FAR, id="farther", slowdown=2.0), replace(FAR, id="too")], RULES, seed=1)
    assert (len(samples.pairs(1)), samples.end) == (3, "finished")
    assert next_step(samples, RULES) is None


def test_samples_without_early_looks_are_judged_without_them() -> None:
    samples = gate_run([*QUIET, FAR], replace(RULES, first_look=None, second_share=0.0), seed=1)
    settings = dict(samples.header["settings"])
    del settings["first_look"], settings["second_share"]
    rules = rules_from_settings(settings)
    assert interim_analyses(rules) == []
    assert len(samples.pairs(1)) == rules.screen_pairs
    assert replay_stages(samples, rules).screening.slower_early_by == {}


def test_a_far_slowdown_of_cpu_time_stays_one_where_wall_time_decides_later() -> None:
    """The clock of the first look need not be that of the whole stage."""
    case = SimulatedCase("far", slowdown=0.0, pair_spread=0.05, cpu_pair_spread=0.002, cpu_slowdown=0.9)
    calm = [replace(case, id=f"quiet {place}", cpu_slowdown=0.0) for place in range(8)]
    samples = gate_run([*calm, case], RULES, seed=1, most_pairs=3)
    result = conclude(samples, RULES)
    row = result.cases[-1]
    assert (row.verdict, row.clock, list(row.slower_by)) == (Verdict.SLOWER, "cpu", ["cpu"])
    assert not row.is_by_guard


def test_a_run_that_ended_after_three_pairs_says_what_it_could_detect() -> None:
    samples = gate_run(QUIET, RULES, seed=1, most_pairs=3)
    assert samples.of(End)[0].reason == "budget"
    detectable = conclude(samples, RULES).detectable
    assert detectable is not None
    assert RULES.far < detectable < 0.3


@pytest.mark.parametrize("look", [FIRST, SECOND], ids=lambda look: f"{look.pairs} pairs")
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_the_slowdown_that_a_look_detects_is_found_four_times_in_five(look: InterimAnalysis, spread: float) -> None:
    draw = np.random.default_rng(3)
    rules = RULES if look is FIRST else replace(RULES, first_look=None)
    detectable = detectable_early(spread, 20, look.pairs, rules)
    assert detectable is not None
    slow = detectable + spread * draw.normal(size=(400, 1, look.pairs))
    suites = np.concatenate([slow, spread * draw.normal(size=(400, 19, look.pairs))], axis=1)
    assert 0.78 < look.calls(suites, rules)[:, 0].mean() < 0.92
