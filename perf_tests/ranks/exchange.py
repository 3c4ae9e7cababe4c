"""One collective among the ranks of a group: its tensors, what fills them, and what must come out."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Until torch 2.12 under their older names, of which 2.13 warns.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_RUN: dict[str, Callable[[Tensor, Tensor, Any], object]] = {
    "all_reduce": lambda given, taken, group: dist.all_reduce(taken, group=group),
    "all_gather": lambda given, taken, group: _all_gather(taken, given, group=group),
    "reduce_scatter": lambda given, taken, group: _reduce_scatter(taken, given, group=group),
}


class Exchange:
    """A float32 message of `elements_of_a_rank` times as many elements as there are ranks."""

    def __init__(self, collective: str, elements_of_a_rank: int, group: Any, device: torch.device) -> None:
        self.collective, self.group = collective, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        part = torch.empty(elements_of_a_rank, device=device)
        whole = torch.empty(elements_of_a_rank * self.world, device=device)
        self.given, self.taken = {
            "all_reduce": (whole, whole),  # in place
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
        }[collective]

    def fill(self) -> None:
        """Each rank gives its number, counted from 1."""
        self.taken.zero_()
        self.given.fill_(self.rank + 1)

    def run(self) -> None:
        _RUN[self.collective](self.given, self.taken, self.group)

    def check(self) -> None:
        """Raises AssertionError unless the last round gave the sum of all numbers, or each number in its place."""
        numbers = torch.arange(1, self.world + 1, dtype=torch.float32, device=self.taken.device)
        wanted = numbers if self.collective == "all_gather" else numbers.sum()
        rows = self.taken.view(self.world, -1) if self.collective == "all_gather" else self.taken.view(1, -1)
        assert (rows == wanted.view(-1, 1)).all(), f"{self.collective} gave other numbers than the ranks have"
