"""The comparison of two runs: a row for every case of either, and an interval that holds what it promises."""

import random
from collections.abc import Callable
from math import exp
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import regressions, show_beside_baseline
from perf_tests.records.record import OUTCOMES, Json, Times
from perf_tests.records.store import ComparedCase, Status, compare, ratio_interval
from tests.support.synthetic import FORWARD, TEN_ROUNDS, record, timed, untimed


def only_row(before: Json, now: Json) -> ComparedCase:
    (row,) = compare(before, now)
    return row


TOLD: dict[str, tuple[Json, Json, Status, bool, str]] = {
    "a case without a row before is new": (record(), record([timed()]), Status.NEW, False, ""),
    "a case without a row now is gone and a failure": (record([timed()]), record(), Status.GONE, True, ""),
    "a case that has a figure at last says what it was": (
        record([], [untimed()]), record([timed()]), Status.MEASURED_NOW, False, "out of memory before"
    ),
    "a case without a figure in either is told with its reason": (
        record([], [untimed()]), record([], [untimed(reason="still too large")]), Status.NEVER, False, "still too large"
    ),
    "a case without a figure before and without a row now is not forgotten": (
        record([], [untimed()]), record(), Status.NEVER, False, "out of memory before, and not part of this run"
    ),
    "a new case without a figure says why": (
        record(), record([], [untimed(reason="too large")]), Status.NEW, False, "now out of memory: too large"
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", TOLD)
def test_a_case_without_two_figures_is_told_for_what_it_is(claim: str) -> None:
    before, now, status, is_failure, words = TOLD[claim]
    row = only_row(before, now)
    assert (row.id, row.status, row.ratio, row.is_failure) == (FORWARD, status, None, is_failure)
    assert words in row.explanation


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_case_that_no_longer_has_a_figure_is_a_failure_with_its_reason(outcome: str) -> None:
    row = only_row(record([timed()]), record([], [untimed(outcome=outcome, reason="the reason")]))
    assert (row.status, row.is_failure) == (Status.NO_LONGER, True)
    assert row.explanation == f"now {OUTCOMES[outcome]}: the reason"
    assert row.before_seconds == 1.045


@pytest.mark.parametrize(
    "name, value",
    [("batch_size", 8), ("optimizer", "fused"), ("model", "theirs:build"), ("d_model", 64), ("device", "cuda")],
)
def test_the_same_id_with_another_identity_is_incomparable_and_names_the_field(name: str, value: Any) -> None:
    row = only_row(record([timed()]), record([timed(**{name: value})]))
    assert (row.status, row.ratio, row.is_failure) == (Status.INCOMPARABLE, None, False)
    assert f"{name} was " in row.explanation
    assert f"is {value!r}" in row.explanation


def test_another_case_under_the_same_id_that_ran_out_of_memory_is_incomparable_too() -> None:
    """A batch eight times as large that does not fit says nothing about the smaller one."""
    row = only_row(record([timed(batch_size=4)]), record([], [untimed(batch_size=32)]))
    assert (row.status, row.is_failure) == (Status.INCOMPARABLE, False)
    assert row.explanation == "batch_size was 4, is 32"


def test_a_users_check_is_applied_to_comparable_cases_only() -> None:
    slower = Mock(fails=lambda current, compared: "slower" if current["median"] > compared["median"] else None)
    before = record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2), timed("c", (3.0,))])
    now = record([timed(case_id, (2.0,)) for case_id in "abcd"])
    assert regressions(now, before, [slower]) == ["a: slower"]


def test_the_table_shows_the_baselines_row_before_each_comparable_row() -> None:
    rows = [timed("a", (2.0,)), timed("b", (2.0,))]
    show_beside_baseline(rows, record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2)]), "Linux/0007_name")
    assert [(row["fullname"], row.get("source"), row.get("median")) for row in rows] == [
        ("a", "0007", 1.0),
        ("a", "NOW", None),
        ("b", None, None),
    ]


def test_seven_rounds_give_an_interval_and_fewer_none() -> None:
    for few in (Times(TEN_ROUNDS[:count]) for count in range(7)):
        assert ratio_interval(few, Times(TEN_ROUNDS)) is ratio_interval(Times(TEN_ROUNDS), few) is None
    assert ratio_interval(Times(TEN_ROUNDS[:7]), Times(TEN_ROUNDS[:7])) == (1.00 / 1.06, 1.06 / 1.00)


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "log-normal": lambda source: exp(source.gauss(0, 0.1)),
    "exponential": lambda source: 1 + source.expovariate(1),
    "uniform with outliers": lambda source: source.uniform(1, 1.1) * (10 if source.random() < 0.1 else 1),
    "two modes": lambda source: source.gauss(1.0 if source.random() < 0.6 else 1.5, 0.01),
}


@pytest.mark.parametrize("rounds", [7, 10, 30])
@pytest.mark.parametrize("name", DRAWS)
def test_the_interval_covers_the_true_ratio_in_95_of_100_pairs_of_runs(name: str, rounds: int) -> None:
    """Both runs draw from one distribution and the second is stretched, so the ratio of the medians is known."""
    source, draw = random.Random(2027), DRAWS[name]
    pairs, true_ratio, covered = 3000, 1.3, 0
    for _ in range(pairs):
        before = Times(draw(source) for _ in range(rounds))
        now = Times(true_ratio * draw(source) for _ in range(rounds))
        interval = ratio_interval(now, before)
        assert interval is not None
        covered += interval[0] <= true_ratio <= interval[1]
    assert covered / pairs >= 0.95
