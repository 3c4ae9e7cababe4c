"""The gate's statistics against closed forms, brute force and scipy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike
from scipy import special, stats

from perf_tests.gate import statistics as gate
from perf_tests.gate.samples import Measurement

DRAW = np.random.default_rng(11)


def values_of_spreads(spreads: gate.Floats, pairs: int) -> gate.Floats:
    """Values (cases, pairs) whose sample standard deviations are exactly `spreads`."""
    values = DRAW.normal(size=(len(spreads), pairs))
    return values / values.std(axis=1, ddof=1, keepdims=True) * spreads[:, None]


def test_the_centre_is_the_median_of_all_means_of_two() -> None:
    assert gate.hodges_lehmann(np.array([1.0, 2.0, 10.0])) == 3.75  # 1, 1.5, 2, 5.5, 6, 10


def measurement(base: ArrayLike, head: ArrayLike) -> Measurement:
    base, head = np.array(base), np.array(head)
    return Measurement(1, 0, "a", ("ABBA",) * len(base), base, head, None, None)


@given(arrays(np.float64, (2, 5, 2), elements=st.floats(1e-4, 1e4)), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_pair_value_is_the_log_ratio_of_head_to_base_in_any_unit(times: gate.Floats, unit: float) -> None:
    base, head = unit * times
    assert gate.pair_value(measurement(base, 1.1 * base), "wall") == pytest.approx(np.log(1.1))
    swapped = gate.pair_value(measurement(head, base), "wall")
    assert gate.pair_value(measurement(base, head), "wall") == pytest.approx(-swapped, abs=1e-9)


def test_a_steady_drift_cancels_in_a_quadruple_and_one_wild_value_in_five_does_nothing() -> None:
    """ABBA on a logarithmic slope: base takes the outer turns, head the inner ones."""
    slope = np.exp(0.1 * np.arange(4))
    drifting = measurement([[slope[0], slope[3]]], [[slope[1], slope[2]]])
    assert gate.pair_value(drifting, "wall") == pytest.approx(0)
    assert 0 <= gate.hodges_lehmann(np.array([0.0, 0.1, 0.2, 0.3, 1e9])) <= 0.3


def test_means_and_p_values_are_those_of_scipy() -> None:
    values = DRAW.normal(size=(3, 8)) + 0.5
    found, reference = gate.estimate(values), stats.ttest_1samp(values, 0.2, axis=1, alternative="greater")
    np.testing.assert_allclose(found.slower_p_values(0.2), reference.pvalue, rtol=1e-10)
    mirrored = stats.ttest_1samp(values, -0.2, axis=1, alternative="less")
    np.testing.assert_allclose(found.faster_p_values(0.2), mirrored.pvalue, rtol=1e-10)
    interval = stats.ttest_1samp(values, 0, axis=1).confidence_interval(0.95)
    np.testing.assert_allclose(found.upper_limits(0.025), interval.high, rtol=1e-10)
    np.testing.assert_allclose(found.lower_limits(0.025), interval.low, rtol=1e-10)


def test_a_value_that_is_not_there_is_left_out() -> None:
    values = DRAW.normal(size=(1, 6))
    holed = np.concatenate((values, [[np.nan, np.nan]]), axis=1)
    assert gate.estimate(holed).mean[0] == pytest.approx(gate.estimate(values).mean[0])
    assert gate.estimate(holed).variance[0] == pytest.approx(gate.estimate(values).variance[0])
    assert np.isnan(gate.estimate(np.array([[1.0, 2.0, np.nan]])).mean[0])


def test_the_trigamma_function_is_inverted_from_end_to_end() -> None:
    values, known = np.logspace(-9, 9, 200), np.logspace(-3, 5, 100)
    np.testing.assert_allclose(special.polygamma(1, gate.inverse_trigamma(values)), values, rtol=2e-6)
    np.testing.assert_allclose(gate.inverse_trigamma(special.polygamma(1, known)), known, rtol=1e-10)


def test_the_prior_of_a_case_in_closed_form() -> None:
    """Two degrees of freedom and logarithms whose variance is 2 pi ** 2 / 6: by Smyth's equations d0 is 2, and s0 the
    geometric mean, because trigamma(1) is pi ** 2 / 6 and the digammas cancel."""
    logs = np.array([-1.0, 0.0, 1.0]) * math.sqrt(math.pi**2 / 3) - 9
    prior = gate.fit_prior(gate.estimate(values_of_spreads(np.exp(logs / 2), 3)))
    assert prior.dof[0] == pytest.approx(2)
    assert prior.variance[0] == pytest.approx(math.exp(-9))


def test_the_moderated_variance_is_the_weighted_mean() -> None:
    """Smyth (2004), equation of section 4: (d0 s0 ** 2 + d s ** 2) / (d0 + d), on d0 + d degrees of freedom."""
    plain = gate.estimate(values_of_spreads(np.array([1.0, 2.0]), 5))
    found = gate.moderated(plain, gate.Prior(np.array([6.0]), np.array([3.0])))
    np.testing.assert_allclose(found.variance, [(6 * 3 + 4 * 1) / 10, (6 * 3 + 4 * 4) / 10])
    np.testing.assert_allclose(found.dof, [10, 10])


def test_the_prior_is_recovered_from_many_cases() -> None:
    variances = 0.01**2 * 8 / DRAW.chisquare(8, 5000)
    prior = gate.fit_prior(gate.estimate(DRAW.normal(size=(5000, 6)) * np.sqrt(variances)[:, None]))
    assert prior.dof[0] == pytest.approx(8, rel=0.15)
    assert math.sqrt(prior.variance[0]) == pytest.approx(0.01, rel=0.03)


def test_cases_that_do_not_differ_share_one_variance() -> None:
    plain = gate.estimate(values_of_spreads(np.full(20, 0.01), 6))
    prior = gate.fit_prior(plain)
    assert np.isinf(prior.dof[0])
    assert np.unique(gate.moderated(plain, prior).variance).size == 1


def test_two_cases_lend_nothing() -> None:
    plain = gate.estimate(DRAW.normal(size=(2, 6)))
    np.testing.assert_allclose(gate.moderated(plain, gate.fit_prior(plain)).variance, plain.variance)


def holm_by_closed_testing(p_values: gate.Floats, level: float) -> list[bool]:
    """A hypothesis falls when Bonferroni rejects every intersection that it is part of: all subsets, one by one."""
    cases = range(len(p_values))
    subsets = [subset for size in cases for subset in itertools.combinations(cases, size + 1)]
    return [all(min(p_values[list(s)]) <= level / len(s) for s in subsets if case in s) for case in cases]


def test_holm_is_closed_testing_with_bonferroni() -> None:
    for _ in range(200):
        p_values = DRAW.beta(0.3, 3, 5)
        assert gate.holm(p_values, 0.05, np.array(5)).tolist() == holm_by_closed_testing(p_values, 0.05)


def test_a_case_that_was_cleared_still_counts_in_holm() -> None:
    p_values = np.array([0.02, np.nan])
    assert gate.holm(p_values, 0.03, np.array(1)).tolist() == [True, False]
    assert gate.holm(p_values, 0.03, np.array(2)).tolist() == [False, False]


@pytest.mark.parametrize("count", [2, 7, 12])
def test_sign_flips_agree_with_scipy(count: int) -> None:
    for shift in (-0.5, 0.0, 0.5, 2.0):
        values = np.round(DRAW.normal(size=count) + shift, 1)  # rounded, so that there are ties
        exact = stats.permutation_test((values,), np.sum, permutation_type="samples", alternative="greater")
        assert gate.sign_flip_p_value(values) == pytest.approx(exact.pvalue, rel=1e-12)


def test_thirty_values_that_agree_have_the_smallest_p_value_of_all() -> None:
    assert gate.sign_flip_p_value(np.linspace(1, 2, 30)) == 2.0**-30


def test_trimmed_means_are_those_of_scipy() -> None:
    values = DRAW.standard_cauchy((11, 4))
    np.testing.assert_allclose(gate.trimmed_means(values, 0.2), stats.trim_mean(values, 0.2, axis=0))
    holed = np.concatenate((values, np.full((3, 4), np.nan)))
    np.testing.assert_allclose(gate.trimmed_means(holed, 0.2), gate.trimmed_means(values, 0.2))


def test_medians_of_what_is_known_are_those_of_numpy() -> None:
    values = DRAW.normal(size=(40, 8))
    values[:, 1:][DRAW.random((40, 7)) < 0.5] = np.nan
    assert np.array_equal(gate.known_medians(values), np.nanmedian(values, axis=-1))
    assert np.isnan(gate.known_medians(np.full((1, 3), np.nan)))


def test_the_robust_spread_of_gaussian_values_is_their_standard_deviation() -> None:
    assert gate.robust_spread(DRAW.normal(size=(1, 20_000)) * 3)[0] == pytest.approx(3, rel=0.03)
