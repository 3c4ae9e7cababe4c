"""Each flag of a row fires on the mistake it is named for, and stays quiet on honest rounds."""

import random

from perf_tests.audit.row_flags import (
    has_outlier,
    has_trend,
    may_page,
    parts_do_not_add_up,
    peak_is_off,
    waits_for_host,
)

draw = random.Random(7)
HONEST = [draw.gauss(1.0, 0.02) for _ in range(10)]
GIB = 2**30


def test_honest_rounds_raise_no_flag() -> None:
    assert not has_outlier(HONEST)
    assert not has_trend(HONEST)
    assert not may_page(HONEST, 95, 100)


def test_one_slow_round_is_an_outlier_and_two_are_none() -> None:
    assert has_outlier([*HONEST[:9], 6.0])
    assert not has_outlier([*HONEST[:5], *(3.0 * value for value in HONEST[5:])])


def test_a_drift_is_a_trend_and_a_small_one_is_none() -> None:
    assert has_trend([value * (1 + 0.02 * place) for place, value in enumerate(HONEST)])
    assert has_trend([1.0 - 0.02 * place for place in range(10)])
    assert not has_trend([1.0 + 0.001 * place for place in range(10)])
    assert not has_trend([1.0, 2.0, 3.0])


def test_false_trends_are_rare() -> None:
    runs = [[draw.gauss(1.0, 0.2) for _ in range(10)] for _ in range(2000)]
    assert sum(map(has_trend, runs)) <= 40  # 1 % by the test's level, and 20 more


def test_a_host_that_holds_the_device_up_is_told_from_one_that_launches() -> None:
    device = [0.9 * value for value in HONEST]
    assert waits_for_host(HONEST, device, "compute")
    assert not waits_for_host(HONEST, device, "launch")
    assert not waits_for_host(HONEST, [0.99 * value for value in HONEST], "compute")
    assert not waits_for_host(HONEST, None, "compute")


def test_parts_are_added_up_round_by_round() -> None:
    """A noisy machine moves parts and whole alike."""
    noisy = [value * (1 + place) for place, value in enumerate(HONEST)]
    parts = {"forward": [0.4 * value for value in noisy], "backward": [0.6 * value for value in noisy]}
    assert not parts_do_not_add_up(noisy, parts)
    assert parts_do_not_add_up(noisy, {"forward": parts["forward"]})
    assert not parts_do_not_add_up(noisy, {})


def test_scatter_with_memory_nearly_full_may_be_paging() -> None:
    scattered = [1.0, 5.0] * 5
    assert may_page(scattered, 95, 100)
    assert not may_page(scattered, 50, 100)
    assert not may_page(scattered, None, 100)


def test_a_peak_is_off_beyond_a_hundredth_and_the_workspaces() -> None:
    assert not peak_is_off(10 * GIB + 64 * 2**20, 10 * GIB)
    assert peak_is_off(11 * GIB, 10 * GIB)
    assert peak_is_off(9 * GIB, 10 * GIB)
    assert not peak_is_off(None, 10 * GIB)
