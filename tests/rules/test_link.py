"""The latency and rate of a link are those that its messages were made with, inside intervals that hold them."""

import random

import pytest

from perf_tests.hardware.limits import fit_link

LATENCY, RATE = 2e-4, 5e8
SIZES = (64_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)


def seconds(size: float) -> float:
    return LATENCY + size / RATE


def test_exact_times_give_back_latency_and_rate() -> None:
    link = fit_link([(size, seconds(size)) for size in SIZES])
    assert link is not None
    assert (link.latency_seconds, link.bytes_per_second) == pytest.approx((LATENCY, RATE))
    assert link.largest_error == pytest.approx(0, abs=1e-9)
    assert link.seconds(123_456) == pytest.approx(seconds(123_456))


def test_the_error_of_a_link_is_that_of_the_message_farthest_from_its_line() -> None:
    messages = [(size, seconds(size)) for size in SIZES[:-1]] + [(SIZES[-1], 1.5 * seconds(SIZES[-1]))]
    link = fit_link(messages)
    assert link is not None
    assert link.largest_error == pytest.approx(max(abs(link.seconds(size) / taken - 1) for size, taken in messages))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw, held = random.Random(7), 0
    for _ in range(200):
        link = fit_link([(size, seconds(size) * draw.gauss(1, 0.05)) for size in SIZES])
        assert link is not None
        assert link.rate_interval is not None
        slowest, fastest = link.rate_interval
        held += slowest <= RATE and (fastest is None or fastest >= RATE)
    assert held >= 180  # of 95 % all but 10 in the mean, with a deviation of 3


def test_two_sizes_have_a_line_and_no_interval() -> None:
    link = fit_link([(size, seconds(size)) for size in SIZES[:2]])
    assert link is not None
    assert link.latency_interval is link.rate_interval is None


def test_a_latency_below_nothing_is_nothing() -> None:
    link = fit_link([(1e6, 1e-4), (2e6, 3e-4), (4e6, 7e-4)])
    assert link is not None
    assert link.latency_seconds == 0
    assert link.latency_interval is not None
    assert link.latency_interval[0] == 0


@pytest.mark.parametrize("messages", [[], [(1e6, 1e-3)], [(1e6, 1e-3), (1e6, 2e-3)], [(1e6, 2e-3), (2e6, 1e-9)]])
def test_what_shows_no_rate_has_no_link(messages: list[tuple[float, float]]) -> None:
    assert fit_link(messages) is None
