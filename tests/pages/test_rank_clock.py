"""The clock of several ranks: a round is the slowest rank's, the same on all, and waiting for a late one is no part."""

from typing import Any

from perf_tests_suite.numerics_tests.harness.rank_pool import POOL, Task

LATE_SECONDS, SLOW_SECONDS = 0.3, 0.05


def on_ranks(function: str, world: int, *arguments: object) -> list[Any]:
    return POOL.run(Task("tests.support.on_ranks", function, world, arguments))


def test_every_rank_reads_the_slowest_ones_seconds_bit_for_bit() -> None:
    ranks = on_ranks("readings", 3, 0.0, SLOW_SECONDS)
    assert all(rank["seen"] == ranks[0]["seen"] for rank in ranks)
    assert all(rank["now"] == [sum(ranks[0]["seen"])] for rank in ranks)
    assert ranks[0]["seen"] == [max(own) for own in zip(*(rank["own"] for rank in ranks), strict=True)]
    assert all(seconds >= SLOW_SECONDS for seconds in ranks[0]["seen"])
    assert {start for rank in ranks for start in rank["starts"]} == {0.0}


def test_a_rank_that_comes_late_delays_the_start_and_not_the_figure() -> None:
    ranks = on_ranks("readings", 2, LATE_SECONDS, 0.0)
    assert min(ranks[0]["seen"]) < LATE_SECONDS / 2


def test_values_of_all_ranks_come_in_their_order() -> None:
    assert on_ranks("gathered", 2) == [[[0.0, 7.0], [1.0, 7.0]]] * 2


def test_messages_count_in_the_part_that_issues_them_and_whole_numbers_not_at_all() -> None:
    """An all-reduce of 5 float32 on 2 ranks: each sends half of 20 bytes twice."""
    sent = {"collectives": {"all_reduce": 1}, "sent_bytes": 20}
    assert on_ranks("sent_outside_and_inside", 2) == [{"backward": sent}] * 2
