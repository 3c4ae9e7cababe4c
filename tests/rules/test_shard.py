"""`--shard K/N`: shares of a grid that every machine computes alike."""

from dataclasses import replace
from itertools import product

import pytest

from perf_tests.bench.session import noted
from perf_tests.run.before import balanced, places_of_share
from perf_tests.run.ends import predicted_seconds
from tests.support.example_cases import SETTINGS, TOY, attention_case, language_model_case
from tests.support.items import benchmark

MODELS = [TOY, *(replace(TOY, num_layers=layers) for layers in (4, 40, 400))]
GRID = [
    *(
        benchmark(language_model_case(config, phase=phase), extra_pass)
        for extra_pass, config, phase in product((None, "kernels"), MODELS, ("forward", "backward"))
    ),
    *(benchmark(attention_case(sequence_length=length)) for length in (256, 512)),
]


@pytest.mark.parametrize("shares", [1, 2, 3, 6])
def test_the_shares_are_disjoint_and_together_the_grid_with_each_model_in_one_of_them(shares: int) -> None:
    parts = [places_of_share(GRID, replace(SETTINGS, shard=(share, shares))) for share in range(1, shares + 1)]
    assert sorted(place for part in parts for place in part) == list(range(len(GRID)))
    assert all(part == sorted(part) for part in parts)
    models = [{noted(GRID[place]).case.built_from for place in part} for part in parts]
    assert sum(map(len, models)) == len(set().union(*models)) == 6


def test_shares_are_balanced_by_predicted_time() -> None:
    settings = replace(SETTINGS, shard=(1, 2))
    first = sum(predicted_seconds(GRID[place], settings) for place in places_of_share(GRID, settings))
    both = sum(predicted_seconds(item, settings) for item in GRID)
    assert first == pytest.approx(both / 2, rel=0.2)


def test_the_longest_goes_first_and_to_the_share_with_the_least() -> None:
    assert balanced({"a": 2, "b": 3, "c": 4, "d": 5}, 2) == [["d", "a"], ["c", "b"]]
    assert balanced({"a": 1, "b": 1, "c": 1}, 2) == [["a", "c"], ["b"]], "of two alike the first in the grid"


def test_more_shares_than_models_are_refused() -> None:
    with pytest.raises(pytest.UsageError, match="--shard 1/7: N is at most 6"):
        places_of_share(GRID, replace(SETTINGS, shard=(1, 7)))
