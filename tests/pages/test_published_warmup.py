"""What others measured without a warm-up is what one slow first round makes of their warm figures."""

from collections import defaultdict
from math import sqrt
from statistics import median

import pytest

from perf_tests.audit.physics import OUTLIER_SHARE, slow_round
from perf_tests.records.published import published_rows
from tests.support.documents import page

ROUNDS = 10
"""What the assignment that all of them answer asks for."""
AGREE = 0.05

Times = tuple[float, float]
"""Mean and standard deviation in milliseconds."""


def cells() -> list[tuple[Times, float]]:
    """Cold mean and spread, and warm mean, of each cell measured both ways whose cold rounds scatter."""
    by_cell: dict[tuple[str, ...], dict[int, Times]] = defaultdict(dict)
    for row in published_rows("warmup.csv"):
        repository = row["source"].partition(":")[0]
        cell = (repository, row["gpu"], row["size"], row["context"], row["phase"])
        by_cell[cell][int(row["warmup"])] = float(row["mean_ms"]), float(row["std_ms"])
    both = [(times[0], times[max(times)][0]) for times in by_cell.values() if 0 in times and max(times) >= 1]
    return [((mean, std), warm) for (mean, std), warm in both if std > OUTLIER_SHARE * mean]


def the_others(cold: Times) -> float:
    """Mean of the rounds but the first, if that alone makes the spread, which libraries give of a sample."""
    mean, std = cold
    pair = slow_round(mean, std * sqrt((ROUNDS - 1) / ROUNDS), ROUNDS)
    assert pair is not None
    return pair[0]


def test_the_readme_says_how_often_one_slow_first_round_explains_a_cold_mean() -> None:
    found = cells()
    agree = sum(abs(the_others(cold) / warm - 1) <= AGREE for cold, warm in found)
    text = " ".join(page("warm-up").split())
    claim = f"within {100 * AGREE:.0f} % of their mean after a warm-up in {agree} of {len(found)} published cells"
    assert claim in text


def test_without_that_round_cold_figures_are_the_warm_ones_and_with_it_far_off() -> None:
    found = cells()
    assert median(the_others(cold) / warm for cold, warm in found) == pytest.approx(1.0, abs=0.01)
    assert median(cold[0] / warm for cold, warm in found) > 1.25
