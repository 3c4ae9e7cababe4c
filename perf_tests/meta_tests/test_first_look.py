"""The first look of the gate: what three launch pairs may decide, and what they may not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perf_tests.gate.conclusion import conclude, next_step
from perf_tests.gate.course import course_of
from perf_tests.gate.events import End
from perf_tests.gate.first_look import far_slowdown, far_slower
from perf_tests.gate.rules import Rules, rules_from_settings
from perf_tests.gate.verdicts import Verdict
from perf_tests.proofs.simulated_launches import SimulatedCase, gate_run

RULES = Rules()
QUIET = [SimulatedCase(f"quiet {place}", pair_spread=0.005) for place in range(8)]
FAR = SimulatedCase("far", slowdown=0.9, pair_spread=0.01)


def values(far: tuple[float, float, float], spread: float = 0.01) -> np.ndarray:
    """Pair values of one case with these, and of nine unchanged ones."""
    quiet = spread * np.random.default_rng(1).normal(size=(9, 3))
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
    assert not far_slower(values(far, spread), RULES.first_level, RULES).any()


def test_a_case_that_one_pair_lacks_is_not_decided_so_early() -> None:
    assert not far_slower(values((0.9, math.nan, 0.9)), RULES.first_level, RULES)[0]


def test_what_is_far_slower_is_measured_no_further() -> None:
    samples = gate_run([*QUIET, FAR], RULES, seed=1)
    measured = {case: sum(m.case == case for m in samples.measurements if m.stage == 1) for case in samples.cases}
    assert measured == {case.id: RULES.screen_pairs for case in QUIET} | {"far": RULES.first_look}
    assert not any(m.case == "far" for m in samples.measurements if m.stage == 2)


def test_a_run_whose_cases_are_all_decided_early_is_finished() -> None:
    samples = gate_run([FAR, replace(FAR, id="farther", slowdown=2.0), replace(FAR, id="too")], RULES, seed=1)
    assert (len(samples.pairs(1)), samples.end) == (3, "finished")
    assert next_step(samples, RULES) is None


def test_samples_without_a_first_look_are_judged_without_one() -> None:
    samples = gate_run([*QUIET, FAR], replace(RULES, first_look=None), seed=1)
    settings = dict(samples.header["settings"])
    del settings["first_look"]
    assert rules_from_settings(settings).first_look is None
    assert len(samples.pairs(1)) == RULES.screen_pairs
    assert course_of(samples, rules_from_settings(settings)).screening.far_slower_by == {}


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


def test_the_slowdown_that_the_first_look_detects_is_found_four_times_in_five() -> None:
    draw = np.random.default_rng(3)
    for spread in (0.005, 0.02, 0.05):
        slow = far_slowdown(spread, RULES) + spread * draw.normal(size=(400, 1, 3))
        suites = np.concatenate([slow, spread * draw.normal(size=(400, 19, 3))], axis=1)
        assert far_slower(suites, RULES.first_level, RULES)[:, 0].mean() > 0.78
