"""Statistics of many rounds are computed once, however often a verb shows them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json, Times
from perf_tests.records.store import compare, encoded, write_whole
from tests.support.synthetic import BACKWARD, FORWARD, record, timed

MOST_PASSES = 6
"""Over the rounds of one case, in any verb: sorting, mean, deviation, the line of rounds on the page."""


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
