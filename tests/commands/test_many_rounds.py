"""Statistics of many rounds are computed once, however often a verb shows them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.record import Times
from tests.support.synthetic import BACKWARD, FORWARD, record, timed, write_record

MOST_PASSES = 6
"""Passes over the rounds of one case, in any verb: sorting, mean, deviation, the line of rounds on the page."""
ROUNDS = [1 + place % 7 / 100 for place in range(250)]


@pytest.mark.parametrize("words", ["report {run} -o {folder}/page.html", "tables {run}", "tables {run} --format csv",
                                   "tables {run} --json", "history {run}", "compare {run} {run}"])  # fmt: skip
def test_a_verb_passes_over_the_rounds_of_a_case_a_few_times_however_often_it_shows_them(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(times: Times) -> Iterator[float]:
        counted.append(len(times))
        return tuple.__iter__(times)

    monkeypatch.setattr(Times, "__iter__", counting, raising=False)
    path = write_record(tmp_path / "machine/0001_many.json", record([timed(of, ROUNDS) for of in (FORWARD, BACKWARD)]))
    assert main([word.format(folder=tmp_path, run=path) for word in words.split()]) == 0
    assert 0 < counted.count(len(ROUNDS)) <= 2 * MOST_PASSES
