"""What is drawn for a launch pair: the order of cases, of their quadruples and of cores; how many quadruples."""

from hypothesis import given, settings
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.gate.samples import ORDERS
from perf_tests_suite.perf_tests.interleaved import measuring as draws

GROUPS = [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
CASES = [case for group in GROUPS for case in group]


@settings(deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(0, 80), st.integers(1, 40))
def test_a_pair_is_laid_out_by_the_seed_alone_and_favours_no_side(seed: int, pair: int, count: int) -> None:
    (drawn, order), again = ((draws.draw_pair(seed, pair), draws.draw_order(seed, pair, GROUPS)) for _ in range(2))
    orders = draws.draw_quadruples(seed, pair, "a1", count)
    assert (drawn, order, orders) == (*again, draws.draw_quadruples(seed, pair, "a1", count))
    assert drawn not in (draws.draw_pair(seed + 1, pair), draws.draw_pair(seed, pair + 1))
    assert (len(drawn.base_name), drawn.padding_bytes in range(4096)) == (len(drawn.head_name), True)
    # Each side starts first in one of two pairs in a row.
    assert draws.draw_pair(seed, pair ^ 1).head_starts_first is not drawn.head_starts_first
    # Both orders come equally often, but for an odd one; the cases of one model stay together.
    assert (len(orders), abs(orders.count(ORDERS[0]) - orders.count(ORDERS[1]))) == (count, count % 2)
    assert sorted(order) == CASES
    assert all(order[place][0] == order[place + 1][0] for place in (0, 2, 4))
    assert sorted(draws.draw_cores(seed, pair, "a1", [0, 1, 2], 8)) == [0, 1, 2]


def test_either_draw_may_come_and_differs_between_pairs_and_cases() -> None:
    assert {draws.draw_pair(seed, 0).head_starts_first for seed in range(20)} == {True, False}
    assert {draws.draw_quadruples(seed, 0, "a1", 5).count("ABBA") for seed in range(40)} == {2, 3}
    assert len({tuple(draws.draw_order(5, pair, GROUPS)) for pair in range(20)}) > 5
    assert {tuple(draws.draw_cores(7, pair, "a1", [0, 1], 1)) for pair in range(40)} == {(0,), (1,)}
    assert len({tuple(draws.draw_cores(7, 0, case, [0, 1, 2, 3], 2)) for case in CASES}) > 1


@settings(deadline=None)
@given(st.floats(1e-6, 30.0))
def test_a_quadruple_is_measured_once_where_it_is_long_and_else_an_even_number_of_times(seconds: float) -> None:
    first, second = (draws.quadruple_count(stage, seconds) for stage in (1, 2))
    if seconds >= draws.LONG_QUADRUPLE_SECONDS:
        assert first == second == 1
    else:
        assert draws.FEWEST_QUADRUPLES <= first <= second <= draws.MOST_QUADRUPLES
        assert (first % 2, second % 2) == (0, 0)
        for stage, count in ((1, first), (2, second)):
            is_wanted = abs(count - draws.QUADRUPLES_SECONDS[stage] / seconds) <= 1
            assert is_wanted or count in (draws.FEWEST_QUADRUPLES, draws.MOST_QUADRUPLES)


def test_a_quadruple_is_disturbed_where_one_side_takes_two_times_not_where_the_sides_differ() -> None:
    more, hardly = 1 + 1.1 * draws.DISTURBED, 1 + 0.9 * draws.DISTURBED
    assert draws.is_disturbed([[1.0, more], [1.0, 1.0]])
    assert draws.is_disturbed([[1.0, 1.0], [more, 1.0]])
    assert not draws.is_disturbed([[1.0, hardly], [2.0, 2.0]])
