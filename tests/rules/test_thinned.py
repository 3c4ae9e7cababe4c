"""Fewer moments of an amount that rises and falls."""

import pytest

from perf_tests.records.record import thinned


@pytest.mark.parametrize("most", [4, 30, 300])
def test_the_highest_the_lowest_and_both_ends_stay(most: int) -> None:
    amounts = [float(place % 7) for place in range(10_000)]
    amounts[1234], amounts[8765] = 99.0, -1.0
    kept = thinned(amounts, most)
    assert {0, 1234, 8765, 9999} <= set(kept)
    assert len(kept) <= most


def test_each_local_peak_stays() -> None:
    """A step of 48 blocks, each of which rises and falls: the outline that people look for."""
    amounts = [float(min(place % 100, 100 - place % 100) + place // 100) for place in range(4800)]
    kept = thinned(amounts, 300)
    assert {50 + 100 * number for number in range(48)} <= set(kept)


def test_few_moments_are_all_kept() -> None:
    assert thinned([3.0, 1.0, 2.0], 4) == [0, 1, 2]
