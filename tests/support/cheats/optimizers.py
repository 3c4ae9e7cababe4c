"""Optimizers that are recorded as fast and are wrong: one cheat in a factory, as its user would give it."""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.optim import SGD, Adagrad, AdamW, Optimizer

Factory = Callable[[Any], Optimizer]


def cheating(
    kind: type[Optimizer],
    is_honest: Callable[[int], object],
    otherwise: Callable[[Any, Any], object] = lambda rate, parameters: None,
    **options: Any,
) -> Factory:
    """A factory of optimizers whose steps of some numbers, from 1, are honest; `otherwise` are the others."""

    def build(named_parameters: Any) -> Optimizer:
        optimizer = kind([parameter for _, parameter in named_parameters], **options)
        real, numbers = optimizer.step, count(1)

        @torch.no_grad()
        def step(closure: Any = None) -> None:
            if is_honest(next(numbers)):
                real()
            else:
                otherwise(optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["params"])

        optimizer.step = step  # type: ignore[assignment,method-assign]
        return optimizer

    return build


optimizer_every_other_step = cheating(SGD, lambda number: number <= 2 or number % 2, lr=0.1, momentum=0.9)
optimizer_that_freezes = cheating(Adagrad, lambda number: number <= 3, lr=0.1)
"""Steps as long as it may be checked."""
optimizer_without_moments = cheating(
    AdamW,
    lambda number: number <= 3,
    lambda rate, parameters: [parameter.sub_(rate * parameter.grad.sign()) for parameter in parameters],
)
"""Says that it is AdamW, and after its first steps moves the weights without looking at its moments."""
optimizer_of_one_tensor = cheating(
    SGD, lambda number: False, lambda rate, parameters: parameters[0].sub_(rate * parameters[0].grad), lr=0.1
)
"""Moves the first parameter alone, which is enough to be seen moving."""
