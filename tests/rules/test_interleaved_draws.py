"""What is drawn for a launch pair: the order of cases, of their quadruples and of cores; how many quadruples."""

from hypothesis import given, settings
from hypothesis import strategies as st

from perf_tests.gate.samples import ORDERS
from perf_tests.interleaved.measuring import (
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

GROUPS = [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
CASES = [case for group in GROUPS for case in group]


@settings(deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(0, 80), st.integers(1, 40))
def test_a_pair_is_laid_out_by_the_seed_alone_and_favours_no_side(seed: int, pair: int, count: int) -> None:
    drawn, orders, order = (
        draw_pair(seed, pair),
        draw_quadruples(seed, pair, "a1", count),
        draw_order(seed, pair, GROUPS),
    )
    again = draw_pair(seed, pair), draw_quadruples(seed, pair, "a1", count), draw_order(seed, pair, GROUPS)
    assert (drawn, orders, order) == again
    assert drawn not in (draw_pair(seed + 1, pair), draw_pair(seed, pair + 1))
    assert len(drawn.base_name) == len(drawn.head_name)
    assert 0 <= drawn.padding_bytes < 4096
    # Each side starts first in one of two pairs in a row.
    first, second = (draw_pair(seed, 2 * (pair // 2) + place).head_starts_first for place in (0, 1))
    assert first is not second
    # Both orders come equally often, but for an odd one; the cases of one model stay together.
    assert (len(orders), abs(orders.count(ORDERS[0]) - orders.count(ORDERS[1]))) == (count, count % 2)
    assert sorted(order) == CASES
    assert all(order[place][0] == order[place + 1][0] for place in (0, 2, 4))
    assert sorted(draw_cores(seed, pair, "a1", [0, 1, 2], 8)) == [0, 1, 2]


def test_either_draw_may_come_and_differs_between_pairs_and_cases() -> None:
    assert {draw_pair(seed, 0).head_starts_first for seed in range(20)} == {True, False}
    assert {draw_quadruples(seed, 0, "a1", 5).count("ABBA") for seed in range(40)} == {2, 3}
    assert len({tuple(draw_order(5, pair, GROUPS)) for pair in range(20)}) > 5
    assert {tuple(draw_cores(7, pair, "a1", [0, 1], 1)) for pair in range(40)} == {(0,), (1,)}
    assert len({tuple(draw_cores(7, 0, case, [0, 1, 2, 3], 2)) for case in CASES}) > 1


@settings(deadline=None)
@given(st.floats(1e-6, 30.0))
def test_a_quadruple_is_measured_once_where_it_is_long_and_else_an_even_number_of_times(seconds: float) -> None:
    first, second = (quadruple_count(stage, seconds) for stage in (1, 2))
    if seconds >= LONG_QUADRUPLE_SECONDS:
        assert first == second == 1
    else:
        assert FEWEST_QUADRUPLES <= first <= second <= MOST_QUADRUPLES
        assert (first % 2, second % 2) == (0, 0)
        for stage, count in ((1, first), (2, second)):
            is_wanted = abs(count - QUADRUPLES_SECONDS[stage] / seconds) <= 1
            assert is_wanted or count in (FEWEST_QUADRUPLES, MOST_QUADRUPLES)


def test_a_quadruple_is_disturbed_where_one_side_takes_two_times_not_where_the_sides_differ() -> None:
    more, hardly = 1 + 1.1 * DISTURBED, 1 + 0.9 * DISTURBED
    assert is_disturbed([[1.0, more], [1.0, 1.0]])
    assert is_disturbed([[1.0, 1.0], [more, 1.0]])
    assert not is_disturbed([[1.0, hardly], [2.0, 2.0]])
