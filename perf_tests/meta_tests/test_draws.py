"""What is drawn for a launch pair: the order of cases, of their quadruples and of cores; how many quadruples."""

from perf_tests.paired.draws import (
    FEWEST_QUADRUPLES,
    LONG_QUADRUPLE_SECONDS,
    MOST_QUADRUPLES,
    QUADRUPLES_SECONDS,
    draw_cores,
    draw_order,
    draw_pair,
    draw_quadruples,
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
    counts = [quadruple_count(2, QUADRUPLES_SECONDS[2] / short) for short in (1e-3, 1, 7, 10, 13, 1e6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (FEWEST_QUADRUPLES, MOST_QUADRUPLES)
    assert FEWEST_QUADRUPLES < counts[3] < MOST_QUADRUPLES
    assert all(count % 2 == 0 for count in counts)


def test_stage_one_measures_long_rounds_least() -> None:
    long, shorter = LONG_QUADRUPLE_SECONDS, 0.99 * LONG_QUADRUPLE_SECONDS
    assert (quadruple_count(1, long), quadruple_count(1, shorter)) == (1, FEWEST_QUADRUPLES)
    assert quadruple_count(2, long) == FEWEST_QUADRUPLES
    assert all(quadruple_count(1, seconds) <= quadruple_count(2, seconds) for seconds in (1e-3, 0.01, 0.1, 1.0))
