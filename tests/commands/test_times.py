"""Statistics of many times: right, and computed once for a whole page."""

import json
from collections.abc import Iterator
from itertools import product
from math import comb
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import FEWEST_FOR_PERCENTILES, PERCENTILES, Json, Times
from perf_tests.records.store import announced, compare, encoded, write_whole
from tests.support.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, record, timed

MOST_PASSES = 6
"""Over the rounds of one case, in any verb: sorting, mean, deviation, the line of rounds on the page."""


def coverage(count: int, skipped: int) -> float:
    """Chance that the median of a continuous distribution lies between `skipped + 1` from below and from above."""
    return 1 - 2 * sum(comb(count, below) for below in range(skipped + 1)) / 2**count


@pytest.mark.parametrize("count", [7, 10, 20, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.975, 0.99])
def test_the_interval_of_a_median_is_the_narrowest_that_covers_it(count: int, confidence: float) -> None:
    enclosed = Times(range(count)).median_interval(confidence)
    wide_enough = [skipped for skipped in range(count // 2) if coverage(count, skipped) >= confidence]
    assert enclosed == ((wide_enough[-1], count - 1 - wide_enough[-1]) if wide_enough else None)


def test_ten_rounds_leave_out_one_at_each_end_and_cover_the_median_as_the_binomial_says() -> None:
    """Each of ten rounds falls below or above the median with the same chance: all 1024 ways are counted."""
    assert Times(TEN_ROUNDS).median_interval(0.975) == (TEN_ROUNDS[1], TEN_ROUNDS[8])
    covering = sum(2 <= sum(below) <= 8 for below in product((0, 1), repeat=10))
    assert covering / 1024 == coverage(10, 1) == 0.978515625


def test_statistics_are_those_of_the_definitions_whatever_the_order() -> None:
    times = Times([3.0, 1.0, 2.0, 6.0])
    assert (times.median, times.mean, times.ordered) == (2.5, 3.0, [1.0, 2.0, 3.0, 6.0])
    assert times.deviation == pytest.approx((14 / 3) ** 0.5)
    assert Times([1.0]).deviation is None


def test_percentiles_need_a_hundred_times() -> None:
    assert Times(range(FEWEST_FOR_PERCENTILES - 1)).percentiles == {}
    assert Times(range(101)).percentiles == {percent: float(percent) for percent in PERCENTILES}


def test_what_is_known_of_times_stays_known() -> None:
    times = Times([1.0])
    assert Times.of(times) is times
    assert Times.of([1.0]) == times


def many(rounds: int = 250) -> Json:
    return record([timed(case, [1 + place % 7 / 100 for place in range(rounds)]) for case in (FORWARD, BACKWARD)])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of the times at each pass over some."""
    counted: list[int] = []

    def counting(times: Times) -> Iterator[float]:
        counted.append(len(times))
        return tuple.__iter__(times)

    monkeypatch.setattr(Times, "__iter__", counting, raising=False)
    return counted


@pytest.mark.parametrize("words", [["report", "-o", "{folder}/page.html"], ["tables"], ["tables", "--format", "csv"],
                                   ["tables", "--json"], ["history"]])  # fmt: skip
def test_a_verb_passes_over_the_rounds_of_a_case_a_few_times_however_often_it_shows_them(
    words: list[str], passes: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "machine/0001_many.json"
    path.parent.mkdir()
    write_whole(path, encoded(many()))
    verb, *rest = (word.format(folder=tmp_path) for word in words)
    assert main([verb, str(path), *rest]) == 0
    assert 0 < passes.count(250) <= 2 * MOST_PASSES


def test_a_comparison_passes_over_the_rounds_of_each_side_once(passes: list[int]) -> None:
    assert len(compare(many(), many())) == 2
    assert passes.count(250) == 4


def test_a_large_file_is_named_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "0001_many.json"
    write_whole(path, encoded(many()))
    assert list(announced([path, tmp_path / "missing"])) == [path, tmp_path / "missing"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("perf_tests.records.store.LARGE_BYTES", 1000)
    json.loads(next(announced([path])).read_bytes())
    assert capsys.readouterr().err == f"Reading {path}, 0 MB ...\n"
