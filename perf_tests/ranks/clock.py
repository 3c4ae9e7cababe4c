"""The clock of a case on several ranks: all start together, and a round takes as long as on its slowest rank."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from perf_tests.instruments.clock import Clock


class RankClock(Clock):
    """Every rank reads the same: 0 before a round, the slowest rank's seconds after it.

    The barrier comes before the first reading of the wall clock and the exchange after the second, so neither is in
    the time. Outside of a case on ranks it is the ordinary clock.
    """

    group: Any = None
    """Of torch.distributed, on the CPU; None for a case on one device."""

    def forget(self) -> None:
        super().forget()
        self.own_seconds: list[float] = []
        """Of this rank's rounds."""
        self.slowest_seconds: list[float] = []

    def now(self) -> float:
        """Grows alike on all ranks, so that they decide alike."""
        return super().now() if self.group is None else sum(self.slowest_seconds)

    def __call__(self) -> float:
        if self.group is None:
            return super().__call__()
        if not self._is_running:
            self._device.synchronize()
            dist.barrier(group=self.group)
            super().__call__()
            return 0.0
        self.own_seconds.append(super().__call__() - self._wall_start)
        slowest = torch.tensor(self.own_seconds[-1], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self.group)
        self.slowest_seconds.append(float(slowest))
        return self.slowest_seconds[-1]

    def from_all(self, values: Sequence[float]) -> list[list[float]]:
        """As many values from each rank of the case, by rank."""
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(gathered, mine, group=self.group)
        return [found.tolist() for found in gathered]
