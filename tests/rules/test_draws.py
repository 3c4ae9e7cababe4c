"""What is drawn for a launch pair: the order of cases, of their quadruples and of cores; how many quadruples."""

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


def test_cores_are_drawn_for_each_case_of_each_pair() -> None:
    drawn = {tuple(draw_cores(7, pair, case, [0, 1], 1)) for pair in range(4) for case in CASES}
    assert drawn == {(0,), (1,)}
    assert sorted(draw_cores(7, 0, "one", [0, 1], 8)) == [0, 1]
    assert {tuple(draw_cores(7, pair, "one", [0, 1], 2)) for pair in range(9)} == {(0, 1), (1, 0)}


def test_the_same_seed_lays_a_run_out_again() -> None:
    first, again = ([draw_pair(1, 3), draw_order(1, 3, [CASES]), draw_quadruples(1, 3, "one", 9)] for _ in range(2))
    assert first == again
    assert first[0] not in (draw_pair(2, 3), draw_pair(1, 4))


def test_each_side_starts_first_in_one_of_two_pairs_in_a_row() -> None:
    starts = [[draw_pair(seed, pair).head_starts_first for pair in range(6)] for seed in range(20)]
    assert all(one != other for run in starts for one, other in zip(run[::2], run[1::2], strict=True))
    assert {run[0] for run in starts} == {True, False}


def test_the_order_of_cases_changes_from_pair_to_pair_but_keeps_a_model_together() -> None:
    groups = [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
    orders = [draw_order(5, pair, groups) for pair in range(20)]
    assert len({tuple(order) for order in orders}) > 5
    for order in orders:
        assert sorted(order) == ["a1", "a2", "b1", "b2", "c1", "c2"]
        assert all(order[place][0] == order[place + 1][0] for place in (0, 2, 4))


def test_both_orders_come_equally_often() -> None:
    for seed in range(20):
        assert sorted(draw_quadruples(seed, 0, "one", 8)) == ["ABBA"] * 4 + ["BAAB"] * 4
    odd = [draw_quadruples(seed, 0, "one", 5).count("ABBA") for seed in range(40)]
    assert set(odd) == {2, 3}


def test_short_rounds_get_more_quadruples_within_limits_and_each_order_its_counterpart() -> None:
    counts = [quadruple_count(2, QUADRUPLES_SECONDS[2] / short) for short in (2, 7, 10, 13, 1e6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (FEWEST_QUADRUPLES, MOST_QUADRUPLES)
    assert FEWEST_QUADRUPLES < counts[2] < MOST_QUADRUPLES
    assert all(count % 2 == 0 for count in counts)


def test_a_launch_measures_long_rounds_least() -> None:
    long, shorter = LONG_QUADRUPLE_SECONDS, 0.99 * LONG_QUADRUPLE_SECONDS
    for stage in (1, 2):
        assert (quadruple_count(stage, long), quadruple_count(stage, shorter)) == (1, FEWEST_QUADRUPLES)


def test_the_second_stage_measures_no_fewer_rounds() -> None:
    assert all(quadruple_count(1, seconds) <= quadruple_count(2, seconds) for seconds in (1e-3, 0.01, 0.1, 1.0))


def test_a_quadruple_is_disturbed_where_one_side_takes_two_times_not_where_the_sides_differ() -> None:
    more = 1 + 1.1 * DISTURBED
    assert is_disturbed([[1.0, more], [1.0, 1.0]])
    assert is_disturbed([[1.0, 1.0], [more, 1.0]])
    assert not is_disturbed([[1.0, 1.0], [2.0, 2.0]])
    assert not is_disturbed([[1.0, 1 + 0.9 * DISTURBED], [1.0, 1.0]])
