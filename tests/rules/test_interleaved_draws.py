"""What is drawn for a launch pair: the order of cases, of their quadruples and of cores; how many quadruples."""

from hypothesis import given
from hypothesis import strategies as st

from perf_tests.gate.samples import ORDERS
from perf_tests.interleaved.draws import (
    DISTURBED,
    FEWEST_QUADRUPLES,
    LONG_QUADRUPLE_SECONDS,
    MOST_QUADRUPLES,
    QUADRUPLES_SECONDS,
    draw_cores,
    draw_order,
    draw_pair,
    draw_quadruples,
    is_disturbed,
    quadruple_count,
)

CASES = ("one", "two", "three")
SEEDS = st.integers(0, (1 << 32) - 1)


@given(SEEDS, st.integers(0, 80))
def test_a_pair_is_laid_out_by_the_seed_alone(seed: int, pair: int) -> None:
    first, again = (
        [draw_pair(seed, pair), draw_order(seed, pair, [CASES]), draw_quadruples(seed, pair, "one", 9)]
        for _ in range(2)
    )
    assert first == again
    drawn = draw_pair(seed, pair)
    assert drawn not in (draw_pair(seed + 1, pair), draw_pair(seed, pair + 1))
    assert len(drawn.base_name) == len(drawn.head_name)
    assert 0 <= drawn.padding_bytes < 4096
    # Each side starts first in one of two pairs in a row.
    one, other = (draw_pair(seed, 2 * (pair // 2) + place).head_starts_first for place in (0, 1))
    assert one is not other


def test_either_side_may_start_a_run() -> None:
    assert {draw_pair(seed, 0).head_starts_first for seed in range(20)} == {True, False}


@given(SEEDS, st.integers(1, 40))
def test_both_orders_come_equally_often_but_for_an_odd_one(seed: int, count: int) -> None:
    orders = draw_quadruples(seed, 0, "one", count)
    assert len(orders) == count
    assert abs(orders.count(ORDERS[0]) - orders.count(ORDERS[1])) == count % 2


def test_the_order_of_cases_changes_from_pair_to_pair_but_keeps_a_model_together() -> None:
    groups = [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
    orders = [draw_order(5, pair, groups) for pair in range(20)]
    assert len({tuple(order) for order in orders}) > 5
    for order in orders:
        assert sorted(order) == ["a1", "a2", "b1", "b2", "c1", "c2"]
        assert all(order[place][0] == order[place + 1][0] for place in (0, 2, 4))
    assert {draw_quadruples(seed, 0, "one", 5).count("ABBA") for seed in range(40)} == {2, 3}


def test_cores_are_drawn_for_each_case_of_each_pair() -> None:
    drawn = {tuple(draw_cores(7, pair, case, [0, 1], 1)) for pair in range(4) for case in CASES}
    assert drawn == {(0,), (1,)}
    assert sorted(draw_cores(7, 0, "one", [0, 1], 8)) == [0, 1]
    assert {tuple(draw_cores(7, pair, "one", [0, 1], 2)) for pair in range(9)} == {(0, 1), (1, 0)}


@given(st.floats(1e-6, 30.0))
def test_a_quadruple_is_measured_once_where_it_is_long_and_else_an_even_number_of_times(seconds: float) -> None:
    first, second = (quadruple_count(stage, seconds) for stage in (1, 2))
    if seconds >= LONG_QUADRUPLE_SECONDS:
        assert first == second == 1
    else:
        assert FEWEST_QUADRUPLES <= first <= second <= MOST_QUADRUPLES
        assert (first % 2, second % 2) == (0, 0)


def test_short_rounds_get_more_quadruples() -> None:
    counts = [quadruple_count(2, QUADRUPLES_SECONDS[2] / short) for short in (2, 7, 10, 13, 1e6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[2], counts[-1]) == (FEWEST_QUADRUPLES, 10, MOST_QUADRUPLES)
    assert quadruple_count(1, 0.99 * LONG_QUADRUPLE_SECONDS) == FEWEST_QUADRUPLES


def test_a_quadruple_is_disturbed_where_one_side_takes_two_times_not_where_the_sides_differ() -> None:
    more = 1 + 1.1 * DISTURBED
    assert is_disturbed([[1.0, more], [1.0, 1.0]])
    assert is_disturbed([[1.0, 1.0], [more, 1.0]])
    assert not is_disturbed([[1.0, 1.0], [2.0, 2.0]])
    assert not is_disturbed([[1.0, 1 + 0.9 * DISTURBED], [1.0, 1.0]])
