"""The process groups of cases: for each number of ranks one that carries the case's bytes and one for its clock."""

import gc
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from perf_tests.ranks.peers import Peers
from perf_tests.ranks.sharing import Sharing


@dataclass
class Groups:
    """Made anew after a case that failed on some rank: what such a case left in a group would meet the next one.

    Dropping a group closes its connections, so ranks that still wait in it see an error at once.
    """

    peers: Peers
    device: torch.device
    seconds: float = 600.0
    """After which a collective that some rank never joins is an error; making a group takes at most as long."""
    generation: int = 0
    _of_cases: dict[int, Any] = field(default_factory=dict)
    _of_clocks: dict[int, Any] = field(default_factory=dict)

    def make(self, world: int) -> None:
        """Called by all ranks before a case of this many; only the first ones become members."""
        if not dist.is_initialized():
            self._begin()
        if world not in self._of_cases:
            ranks, limit = list(range(world)), timedelta(seconds=self.seconds)
            self._of_cases[world] = dist.new_group(ranks, timeout=limit)
            self._of_clocks[world] = dist.new_group(ranks, timeout=limit, backend="gloo")

    def _begin(self) -> None:
        launched = self.peers.launched
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
            store=self.peers.store_of(f"groups/{self.generation}"),
            rank=launched.rank,
            world_size=launched.world,
            timeout=timedelta(seconds=self.seconds),
        )

    def clock(self, world: int) -> Any:
        return self._of_clocks[world]

    def case(self, world: int) -> Any:
        return self._of_cases[world]

    def ranks(self, sharing: Sharing) -> Any:
        """`model.parallel.Ranks` of a case."""
        from model.parallel import Ranks

        return Ranks(self.case(sharing.world), self.device, sharing.bucket_mb, not sharing.keeps_gathered)

    def part_of(self, batch: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        """This rank's rows of the global batch."""
        from model.parallel import share

        return share(batch, self.ranks(sharing))

    def drop(self) -> None:
        self.generation += 1
        self._of_cases.clear()
        self._of_clocks.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
