"""What each rank of the clock's tests runs: rounds in which one of them is late, or slow."""

import time
from typing import Any
from unittest.mock import Mock

import torch
import torch.distributed as dist

from perf_tests.bench.ranks import RankClock, messages_by_region, values_by_part


def clock_of(group: dist.ProcessGroup) -> RankClock:
    clock = RankClock(Mock(**{"record_event.return_value": None}))
    clock.group = group
    return clock


def readings(group: dist.ProcessGroup, late_seconds: float, slow_seconds: float) -> dict[str, list[float]]:
    """Readings of three rounds with an exchange each; rank 1 arrives late, and works slowly after the exchange."""
    clock, is_last = clock_of(group), dist.get_rank(group) == 1
    starts = []
    for _ in range(3):
        time.sleep(late_seconds * is_last)
        clock.begin_round()
        starts.append(clock())
        dist.all_reduce(torch.zeros(1), group=group)
        time.sleep(slow_seconds * is_last)
        clock.wall_seconds.append(clock() - starts[-1])
    return {"starts": starts, "seen": clock.wall_seconds, "own": clock.rank_seconds, "now": [clock.now()]}


def gathered(group: dist.ProcessGroup) -> list[list[float]]:
    return clock_of(group).from_all([float(dist.get_rank(group)), 7.0])


def sent_outside_and_inside(group: dist.ProcessGroup) -> dict[str, Any]:
    """Two messages in the backward pass, one of whole numbers, and one outside of any part."""
    from model.regions import region

    def send() -> None:
        dist.all_reduce(torch.zeros(3), group=group)
        with region("backward"):
            dist.all_reduce(torch.zeros(5), group=group)
            dist.all_reduce(torch.zeros(5, dtype=torch.int64), group=group)

    return values_by_part(messages_by_region(send), dist.get_world_size(group))
