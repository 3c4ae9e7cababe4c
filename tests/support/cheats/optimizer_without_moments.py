"""Says that it is AdamW, and after its first steps moves the weights without looking at its moments."""

from typing import Any

import torch


def build(named_parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW([parameter for _, parameter in named_parameters])
    real, steps = optimizer.step, []

    @torch.no_grad()
    def step(closure: Any = None) -> None:
        steps.append(1)
        if len(steps) <= 3:
            real()
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())

    optimizer.step = step  # type: ignore[method-assign]
    return optimizer
