"""Optimizers for `--optimizer`: most misbehave at a known place, and are else gradient descent."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Optimizer

Named = list[tuple[str, nn.Parameter]]


def of(kind: Callable[..., Optimizer], **options: Any) -> Callable[[Named], Optimizer]:
    """A factory of this kind."""
    return lambda named_parameters: kind([parameter for _, parameter in named_parameters], **options)


healthy = of(SGD, lr=0.1, momentum=0.9, foreach=False)
averaged_descent = of(ASGD, lr=0.1, foreach=False)
"""The rate of a step comes from the step before."""
needs_a_closure = of(LBFGS)


def raises(named_parameters: Named) -> Optimizer:
    raise KeyError("lr")


def never_returns(named_parameters: Named) -> Optimizer:
    while True:
        time.sleep(0.1)


def a_class(named_parameters: Named) -> type[Optimizer]:
    return SGD


def leaves_one_out(named_parameters: Named) -> Optimizer:
    return healthy(named_parameters[1:])


def of_what_trains(named_parameters: Named) -> Optimizer:
    return healthy([(name, parameter) for name, parameter in named_parameters if parameter.requires_grad])


def holds_one_twice(named_parameters: Named) -> Optimizer:
    optimizer = healthy(named_parameters)
    optimizer.param_groups[0]["params"].append(named_parameters[0][1])
    return optimizer


def holds_a_stranger(named_parameters: Named) -> Optimizer:
    return healthy([*named_parameters, ("stranger", nn.Parameter(torch.zeros(2)))])


def one_group_without_a_learning_rate(named_parameters: Named) -> Optimizer:
    optimizer = healthy(named_parameters[1:])
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [named_parameters[0][1]]})
    del optimizer.param_groups[1]["lr"]
    return optimizer


class WithoutWords(SGD):
    def step(self, closure: Any = None) -> Any:
        assert closure is not None


fails_without_words = of(WithoutWords, lr=0.1)


def by_name(named_parameters: Named) -> Optimizer:
    """Refuses names that only a compiled module gives its parameters."""
    assert all(not name.startswith("_orig_mod") for name, _ in named_parameters)
    return healthy(named_parameters)


class NeverExpectsFrozen(SGD):
    """Descent that never expects the gradient of a frozen parameter."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        if any(parameter.grad is not None and not parameter.requires_grad for parameter in parameters):
            raise ValueError("a frozen parameter has a gradient")
        super().step()


refuses_frozen = of(NeverExpectsFrozen, lr=0.1, foreach=False)


class Descent(Optimizer):
    """x - lr g, with a place for a fault."""

    def __init__(self, named_parameters: Named) -> None:
        super().__init__([parameter for _, parameter in named_parameters], {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * self.direction(parameter, parameter.grad))

    def direction(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return gradient


class FailsAtItsStep(Descent):
    def direction(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        raise ValueError("a group without betas")


class EverySecondStep(Descent):
    """An optimizer that does more in each second step."""

    def direction(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return gradient if self.steps % 2 else gradient + gradient.square()


class Nested(Descent):
    """Keeps two tensors of each parameter in a list, beside what its constructor made."""

    def __init__(self, named_parameters: Named) -> None:
        super().__init__(named_parameters)
        for _, parameter in named_parameters:
            self.state[parameter]["kept"] = [torch.zeros_like(parameter) for _ in range(2)]

    def direction(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        first, second = self.state[parameter]["kept"]
        first.copy_(gradient)
        return first + second


def along(direction: Callable[[Tensor], Tensor]) -> Callable[[Named], Optimizer]:
    """A factory of `Descent` along what `direction` makes of a gradient."""

    def factory(named_parameters: Named) -> Optimizer:
        optimizer = Descent(named_parameters)
        vars(optimizer)["direction"] = lambda parameter, gradient: direction(gradient)
        return optimizer

    return factory


Still = along(lambda gradient: gradient * 0.0)
Normalised = along(lambda gradient: gradient / gradient.norm())
"""Divides by zero where there is no gradient."""
NotANumber = along(lambda gradient: gradient.abs().neg().sqrt())
ReadsAValue = along(lambda gradient: gradient / 2 if gradient.norm().item() > 1 else gradient)
"""Takes another way where the gradient is large, so nothing can tell without content what it does."""
