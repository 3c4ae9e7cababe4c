"""The rule for a steady series finds slow first rounds, and cries wolf no more often than it says."""

import math
import random

import pytest
from scipy import stats

from perf_tests.audit.rounds import (
    FEWEST_REST,
    LEVEL,
    MOST_SLOW,
    outlier_places,
    slow_first_rounds,
    steady_from,
    student_tail,
    suggested_warmup_rounds,
)

SERIES = 1000


def noise(draw: random.Random, rounds: int, deviation: float = 0.02) -> list[float]:
    return [draw.gauss(1.0, deviation) for _ in range(rounds)]


@pytest.mark.parametrize("rounds", [10, 20])
@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_white_noise_is_steady_but_for_a_hundredth(rounds: int, deviation: float) -> None:
    draw = random.Random(rounds)
    alarms = sum(slow_first_rounds(noise(draw, rounds, deviation)) > 0 for _ in range(SERIES))
    # The binomial's own scatter beside the level: three standard deviations.
    assert alarms <= SERIES * LEVEL + 3 * math.sqrt(SERIES * LEVEL)


def most_false_alarms(rounds: int) -> float:
    """Highest rate at which steady rounds are taken for slow first ones, if all their orders are equally likely.

    Of the C(n, k) choices, k + 1 put the first k of n above all others but one, the outlier that may be left out.
    """
    most = min(rounds // 2, rounds - FEWEST_REST, MOST_SLOW)
    return sum((count + 1) / math.comb(rounds, count) for count in range(1, most + 1))


@pytest.mark.parametrize("rounds", [10, 20])
def test_noise_of_any_kind_is_steady_as_often_as_its_order_says(rounds: int) -> None:
    """A Pareto tail has rounds of many times the usual, as a machine shared with others has."""
    draw = random.Random(rounds)
    alarms = sum(slow_first_rounds([draw.paretovariate(3.0) for _ in range(rounds)]) > 0 for _ in range(SERIES))
    assert alarms <= SERIES * most_false_alarms(rounds)
    assert alarms > 0


@pytest.mark.parametrize("slow", [[1.5], [6.0, 2.0], [3.0, 1.4, 1.3], [1.3, 1.6], [5.0, 4.0, 3.0, 2.0, 1.5]])
def test_slow_first_rounds_are_counted(slow: list[float]) -> None:
    draw = random.Random(3)
    for _ in range(50):
        assert slow_first_rounds([*slow, *noise(draw, 15)]) == len(slow)


def test_a_first_round_slower_by_less_than_a_twentieth_is_none() -> None:
    quiet = [1.0, 1.0001, 0.9999, 1.0002, 0.9998, 1.0, 1.0001, 0.9999]
    assert slow_first_rounds([1.04, *quiet]) == 0
    assert slow_first_rounds([1.06, *quiet]) == 1
    assert slow_first_rounds([2.0, *[1.0] * 8]) == 1  # where rounds agree exactly


def test_a_first_round_that_a_later_one_outdoes_is_not_slow() -> None:
    """One round in twenty as slow as the first: the machine's, not the warm-up's."""
    rounds = [1.5, *noise(random.Random(4), 19, deviation=0.001)]
    rounds[12] = 1.6
    assert slow_first_rounds(rounds) == 0


@pytest.mark.parametrize("slow", [[], [2.0]])
def test_an_outlier_in_the_middle_is_no_warm_up_and_hides_none(slow: list[float]) -> None:
    rounds = [*slow, *noise(random.Random(5), 14)]
    rounds[9] = 7.0
    assert (slow_first_rounds(rounds), steady_from(rounds), outlier_places(rounds)) == (len(slow), 1 + len(slow), [10])


def test_a_series_that_moves_on_is_steady_from_no_round() -> None:
    climbing = [value * (1 + 0.03 * place) for place, value in enumerate(noise(random.Random(8), 12))]
    assert steady_from(climbing) is None
    assert steady_from([3.0, *climbing]) is None


@pytest.mark.parametrize("rounds", [[], [1.0], [1.0, 1.0, 1.0]])
def test_too_few_rounds_tell_nothing(rounds: list[float]) -> None:
    assert steady_from(rounds) is None
    assert slow_first_rounds(rounds) == 0
    assert outlier_places(rounds) == []
    assert suggested_warmup_rounds(rounds, 5) is None


def test_a_warm_up_was_short_if_rounds_begin_slow_or_get_faster_and_is_told_what_would_do() -> None:
    steady = noise(random.Random(9), 10)
    falling = [value * (1.5 - 0.05 * place) for place, value in enumerate(steady)]
    assert suggested_warmup_rounds(falling[::-1], 5) is None, "it gets slower, which no warm-up cures"
    assert suggested_warmup_rounds(steady, 5) is None
    assert suggested_warmup_rounds([4.0, 2.0, *steady], 5) == 7
    assert suggested_warmup_rounds(falling, 5) in (6, 7, 8, 9, 10)
    assert suggested_warmup_rounds([2.0, *steady], 0) == 1


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 14, 19])
@pytest.mark.parametrize("deviations", [0.0, 0.5, 3.0, 12.0, math.inf])
def test_the_tail_of_students_t_is_that_of_scipy(degrees: int, deviations: float) -> None:
    assert student_tail(deviations, degrees) == pytest.approx(stats.t.sf(deviations, degrees), rel=1e-6, abs=1e-14)
