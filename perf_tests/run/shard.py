"""`--shard K/N`: a share of the grid. Every share computes the same partition, on whatever machine."""

from collections.abc import Hashable, Mapping, Sequence

import pytest

from perf_tests.bench.stash import CASE
from perf_tests.options.settings import Settings
from perf_tests.run.case_time import predicted_seconds


def places_of_share(items: Sequence[pytest.Item], settings: Settings) -> list[int]:
    """Where the cases of this run's share stand in the grid; raises pytest.UsageError with one sentence.

    Cases that share a model stay together, because building it is the cost.
    """
    assert settings.shard is not None
    share, shares = settings.shard
    places: dict[Hashable, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(item.stash[CASE].built_from, []).append(place)
    if shares > len(places):
        raise pytest.UsageError(
            f"--shard {share}/{shares}: N is at most {len(places)}, the number of models in this grid."
        )
    seconds = {
        model: sum(predicted_seconds(items[place], settings) for place in of_model)
        for model, of_model in places.items()
    }
    parts = balanced(seconds, shares)
    return sorted(place for model in parts[share - 1] for place in places[model])


def balanced(seconds: Mapping[Hashable, float], shares: int) -> list[list[Hashable]]:
    """Each name in one of the shares: the longest first, to the share with the least so far."""
    parts: list[list[Hashable]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        lightest = loads.index(min(loads))
        parts[lightest].append(name)
        loads[lightest] += seconds[name]
    return parts
