"""The gate's statistics against closed forms, brute force and scipy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike
from scipy import special, stats

from perf_tests_suite.perf_tests.gate import statistics as gate
from perf_tests_suite.perf_tests.gate.samples import Measurement


def values_of_spreads(spreads: ArrayLike, pairs: int) -> gate.Floats:
    """Values (cases, pairs) whose sample standard deviations are exactly `spreads`."""
    values = np.random.default_rng(11).normal(size=(np.size(spreads), pairs))
    return values / values.std(axis=1, ddof=1, keepdims=True) * np.asarray(spreads)[:, None]


def measurement(base: ArrayLike, head: ArrayLike) -> Measurement:
    base, head = np.array(base), np.array(head)
    return Measurement(1, 0, "a", ("ABBA",) * len(base), base, head, None, None)


@settings(deadline=None)
@given(arrays(np.float64, (2, 5, 2), elements=st.floats(1e-4, 1e4)), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_pair_value_is_the_log_ratio_of_head_to_base_in_any_unit(times: gate.Floats, unit: float) -> None:
    base, head = unit * times
    assert gate.pair_value(measurement(base, 1.1 * base), "wall") == pytest.approx(np.log(1.1))
    swapped = gate.pair_value(measurement(head, base), "wall")
    assert gate.pair_value(measurement(base, head), "wall") == pytest.approx(-swapped, abs=1e-9)
    assert math.isnan(gate.pair_value(measurement(base, head), "cpu"))


def test_a_steady_drift_cancels_and_the_centre_of_quadruples_withstands_a_wild_one() -> None:
    """ABBA on a logarithmic slope: base takes the outer turns, head the inner ones."""
    slope = np.exp(0.1 * np.arange(4))
    drifting = measurement([[slope[0], slope[3]]], [[slope[1], slope[2]]])
    assert gate.pair_value(drifting, "wall") == pytest.approx(0)
    assert gate.hodges_lehmann(np.array([1.0, 2.0, 10.0])) == 3.75  # of 1, 1.5, 2, 5.5, 6, 10
    assert 0 <= gate.hodges_lehmann(np.array([0.0, 0.1, 0.2, 0.3, 1e9])) <= 0.3


@pytest.mark.parametrize("seed", range(8))
def test_means_p_values_intervals_and_medians_are_those_of_scipy_without_what_is_missing(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(3, 8)) + 0.5
    found = gate.estimate(np.concatenate((values, np.full((3, 2), np.nan)), axis=1))
    sides = (0.2, "greater"), (-0.2, "less")
    greater, less = (stats.ttest_1samp(values, at, axis=1, alternative=side) for at, side in sides)
    interval = stats.ttest_1samp(values, 0, axis=1).confidence_interval(0.95)
    for ours, theirs in (
        (found.slower_p_values(0.2), greater.pvalue),
        (found.faster_p_values(0.2), less.pvalue),
        (found.upper_limits(0.025), interval.high),
        (np.array(found.interval(1)), np.expm1([found.mean[1], interval.low[1], interval.high[1]])),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    cauchy = np.concatenate((draw.standard_cauchy((11, 4)), np.full((3, 4), np.nan)))
    np.testing.assert_allclose(gate.trimmed_means(cauchy, 0.2), stats.trim_mean(cauchy[:11], 0.2, axis=0))
    holed = np.where(draw.random((4, 8)) < 0.5, np.nan, draw.normal(size=(4, 8)))
    holed[:, 0] = 1.0
    np.testing.assert_array_equal(gate.known_medians(holed), np.nanmedian(holed, axis=-1))


def test_fewer_than_three_values_have_no_estimate_and_nothing_known_no_median() -> None:
    assert np.isnan(gate.estimate(np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]])).mean).tolist() == [True, False]
    assert np.isnan(gate.known_medians(np.full((1, 3), np.nan)))


def test_the_trigamma_function_is_inverted_from_end_to_end() -> None:
    values, known = np.logspace(-9, 9, 200), np.logspace(-3, 5, 100)
    np.testing.assert_allclose(special.polygamma(1, gate.inverse_trigamma(values)), values, rtol=2e-6)
    np.testing.assert_allclose(gate.inverse_trigamma(special.polygamma(1, known)), known, rtol=1e-10)


def test_the_prior_in_closed_form_and_recovered_from_many_cases() -> None:
    """Two degrees of freedom and logarithms whose variance is 2 pi ** 2 / 6: by Smyth's equations d0 is 2, and s0 the
    geometric mean, because trigamma(1) is pi ** 2 / 6 and the digammas cancel."""
    logs = np.array([-1.0, 0.0, 1.0]) * math.sqrt(math.pi**2 / 3) - 9
    prior = gate.fit_prior(gate.estimate(values_of_spreads(np.exp(logs / 2), 3)))
    assert (prior.dof[0], prior.variance[0]) == (pytest.approx(2), pytest.approx(math.exp(-9)))
    draw = np.random.default_rng(11)
    spreads = 0.01 * np.sqrt(8 / draw.chisquare(8, (5000, 1)))
    prior = gate.fit_prior(gate.estimate(draw.normal(size=(5000, 6)) * spreads))
    assert prior.dof[0] == pytest.approx(8, rel=0.15)
    assert math.sqrt(prior.variance[0]) == pytest.approx(0.01, rel=0.03)


DRAWN: dict[str, tuple[list[float], gate.Prior | None, list[float], float]] = {
    # Smyth (2004), section 4: (d0 s0 ** 2 + d s ** 2) / (d0 + d), on d0 + d degrees of freedom
    "the weighted mean": ([1, 2], gate.Prior(np.array([6.0]), np.array([3.0])), [(18 + 4) / 10, (18 + 16) / 10], 10),
    "cases that do not differ share one": ([0.01] * 20, None, [2e-4 / math.exp(special.digamma(2.0))] * 20, math.inf),
    "two cases lend nothing": ([1, 3], None, [1, 9], 4),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_variance_is_drawn_towards_that_of_the_suite(name: str) -> None:
    spreads, prior, variances, dof = DRAWN[name]
    plain = gate.estimate(values_of_spreads(spreads, 5))
    found = gate.moderated(plain, prior or gate.fit_prior(plain))
    np.testing.assert_allclose(found.variance, variances)
    np.testing.assert_allclose(found.dof, dof)
    wider = np.maximum(stats.t.isf(0.025, dof) * found.standard_error, plain.half_widths())
    np.testing.assert_allclose(found.half_widths(), wider)


def holm_by_closed_testing(p_values: gate.Floats, level: float) -> list[bool]:
    """A hypothesis falls when Bonferroni rejects every intersection that it is part of: all subsets, one by one."""
    cases = range(len(p_values))
    subsets = [subset for size in cases for subset in itertools.combinations(cases, size + 1)]
    return [all(min(p_values[list(s)]) <= level / len(s) for s in subsets if case in s) for case in cases]


def test_holm_is_closed_testing_with_bonferroni_and_counts_what_was_cleared() -> None:
    draw = np.random.default_rng(11)
    for p_values in draw.beta(0.3, 3, (200, 5)):
        assert gate.holm(p_values, 0.05, np.array(5)).tolist() == holm_by_closed_testing(p_values, 0.05)
    assert [gate.holm(np.array([0.02, np.nan]), 0.03, np.array(n)).tolist()[0] for n in (1, 2)] == [True, False]


def test_sign_flips_agree_with_scipy() -> None:
    for count, shift in itertools.product((2, 7, 12), (-0.5, 0.0, 0.5, 2.0)):
        values = np.round(np.random.default_rng(count).normal(size=count) + shift, 1)  # rounded, so that there are ties
        exact = stats.permutation_test((values,), np.sum, permutation_type="samples", alternative="greater")
        assert gate.sign_flip_p_value(np.append(values, np.nan)) == pytest.approx(exact.pvalue, rel=1e-12)
    assert gate.sign_flip_p_value(np.linspace(1, 2, 30)) == 2.0**-30


def test_the_robust_spread_of_gaussian_values_is_their_standard_deviation() -> None:
    assert gate.robust_spread(np.random.default_rng(1).normal(size=(1, 20_000)) * 3)[0] == pytest.approx(3, rel=0.03)
