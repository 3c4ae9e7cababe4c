"""Moves every sixteenth weight."""

from typing import Any

import torch


class Few(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in self.param_groups[0]["params"]:
            one.view(-1)[::16].sub_(self.param_groups[0]["lr"] * one.grad.reshape(-1)[::16])


def build(named_parameters: Any) -> torch.optim.Optimizer:
    return Few([parameter for _, parameter in named_parameters], lr=0.1)
