"""The gate's error rates in full: on simulated machines whose truth is known, on relabelled launches, and its words."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from claims.gate import KEPT, trials_under
from perf_tests_suite.perf_tests.gate.samples import Clock, GateSamples
from perf_tests_suite.perf_tests.gate.stages import interim_analyses
from perf_tests_suite.perf_tests.gate.statistics import estimate, fit_prior, moderated, pair_values
from tests.support import simulated_suites as simulated
from tests.support.gate_words import judged
from tests.support.invented_history import invented
from tests.support.simulated_launches import RULES
from tests.support.simulated_suites import Machine

SUITES, TRIALS, SEED = 10_000, 3000, 2027
CLAIMED_BIAS, CLAIMED_CLEARED = 0.005, 0.95
"""The share of unchanged cases that is cleared by the first look of stage 2 where launches scatter by 1 % at most."""

UNCHANGED = {
    "spread 1 %, Gaussian": (Machine(0.01), 0.0),
    "spread 2 %, Gaussian": (Machine(0.02), 0.0),
    "spread 2 %, cases differ": (Machine(0.02, 0.5), 0.0),
    "spread 2 %, cases differ, t4": (Machine(0.02, 0.5, heavy_tails=True), 0.0),
    "spread 3 %, cases differ, t4, 30 % common": (Machine(0.03, 0.5, heavy_tails=True, common_share=0.3), 0.0),
    "spread 3 %, each slower by the margin": (Machine(0.03, 0.5), RULES.margin),
}
"""Machines, and by how much every case is slower; up to the margin, nothing may be called SLOWER."""


@pytest.mark.parametrize("name", UNCHANGED)
def test_at_most_one_unchanged_suite_of_a_hundred_is_called_slower(name: str) -> None:
    machine, slowdown = UNCHANGED[name]
    alarms, cleared = simulated.alarms_of_unchanged(np.random.default_rng(SEED), machine, slowdown, SUITES)
    # At the margin itself alpha is spent in full, so that no number of suites shows a rate below it.
    assert alarms.limits[0 if slowdown else 1] <= RULES.alpha
    assert machine != Machine(0.01) or cleared >= CLAIMED_CLEARED
    for pairs in simulated.PAIRS_SHOWN:
        for share in simulated.coverage(np.random.default_rng(SEED), machine, slowdown, TRIALS, pairs):
            assert share.limits[1] >= simulated.COVERAGE


@pytest.mark.parametrize("slowdown, power", simulated.SIMULATED_POWER.items())
@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02])
def test_a_slowdown_is_found_with_the_power_that_is_claimed_and_its_size_unbiased(
    spread: float, slowdown: float, power: float
) -> None:
    found, _, bias = simulated.planted(np.random.default_rng(SEED), Machine(spread), slowdown, TRIALS)
    assert found.limits[0] >= power
    assert abs(bias) <= CLAIMED_BIAS


def test_every_rows_figures_say_what_its_verdict_says() -> None:
    _, faults = judged(np.random.default_rng(SEED), SUITES)
    assert faults == []


@pytest.fixture(scope="module")
def unchanged() -> list[GateSamples]:
    """The kept runs without a slowdown that the gate did not refuse."""
    return [trial.samples for trial in trials_under(KEPT)["false-alarms"] if trial.says_something]


@pytest.mark.parametrize("clock", get_args(Clock))
def test_early_looks_at_the_kept_launches_are_far_from_a_call(unchanged: list[GateSamples], clock: Clock) -> None:
    """Either side as head; as `claims/evidence.md` says."""
    for look, fewest in zip(interim_analyses(RULES), (300, 150), strict=True):
        # No level holds these up, and a third of the spreads is enough; of the second look, none.
        easier = replace(look, level=np.inf, spreads=look.spreads / 3 if look.spreads > 1 else -np.inf)
        looks = 0
        for run in unchanged:
            values = pair_values(run, 1, run.pairs(1), clock)
            for start in range(0, values.shape[1] - look.pairs + 1, look.pairs):
                for taken in (values[:, start : start + look.pairs], -values[:, start : start + look.pairs]):
                    looks += 1
                    assert not easier.calls(taken, RULES).any()
        assert looks >= fewest


@pytest.mark.parametrize("clock", get_args(Clock))
def test_intervals_cover_nothing_changed_in_the_kept_runs(unchanged: list[GateSamples], clock: Clock) -> None:
    values = simulated.recorded_values(unchanged, clock)
    for pairs in simulated.PAIRS_SHOWN:
        runs = values[: len(values) // pairs * pairs].reshape(-1, pairs, values.shape[1]).swapaxes(1, 2)
        share = simulated.covers(moderated(alone := estimate(runs), fit_prior(alone)), 0.0)
        assert share.count / share.of >= simulated.COVERAGE


def test_a_history_finds_steps_of_a_tenth_and_hardly_names_one_that_is_none() -> None:
    """Five invented histories, 400 commits and 30 cases each."""
    random = np.random.default_rng(SEED)
    scores = [invented(random) for _ in range(5)]
    assert sum(score.sure.count for score in scores) >= 0.95 * sum(score.sure.of for score in scores)
    assert sum(score.false for score in scores) <= 1e-3 * sum(score.of for score in scores)
