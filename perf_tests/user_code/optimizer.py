"""An optimizer of the user's own: built for the parameters of a model, and tried for one step before it is timed.

A factory is called with the list of a model's (name, parameter) and returns a `torch.optim.Optimizer`."""

import inspect
from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from model.precision import PRECISIONS
from model.training import OPTIMIZERS, Training
from perf_tests.user_code.guard import UserCodeError, guarded
from perf_tests.user_code.named import from_its_repository, load


@dataclass(frozen=True)
class UserOptimizer:
    """`--optimizer` as typed; equal ones are the same optimizer."""

    name: str

    @property
    def in_identity(self) -> str:
        """The same wherever it was typed."""
        return from_its_repository(self.name)

    def put_into(self, training: Training, module: nn.Module, seconds: float | None = None) -> None:
        """Let it train `module`, which `training` runs as it is or compiled. Raises UserCodeError."""
        training.optimizer = self.build(module, seconds)

    def build(self, module: nn.Module, seconds: float | None = None) -> Optimizer:
        """Raises UserCodeError unless it holds each trainable parameter once, and within `seconds`."""
        with guarded(f"--optimizer {self.name} cannot be imported"):
            factory = load(self.name)
        with guarded(f"--optimizer {self.name} builds no optimizer", seconds):
            optimizer = factory(list(module.named_parameters()))
        if not isinstance(optimizer, Optimizer):
            got = f"the class {optimizer.__name__}" if inspect.isclass(optimizer) else f"a {type(optimizer).__name__}"
            raise UserCodeError(f"--optimizer {self.name} returned {got}; it must return a torch.optim.Optimizer.")
        self._check_groups(optimizer, module)
        return optimizer

    def _check_groups(self, optimizer: Optimizer, module: nn.Module) -> None:
        held = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        named = {id(parameter): name for name, parameter in module.named_parameters()}
        left_out = [named[id(one)] for one in module.parameters() if one.requires_grad and id(one) not in held]
        if left_out:
            raise UserCodeError(
                f"--optimizer {self.name} leaves out {len(left_out)} of {len(named)} parameters, the first "
                f"{left_out[0]}; put each into one group."
            )
        doubled = [named.get(place, "one") for place, times in held.items() if times > 1]
        if doubled:
            raise UserCodeError(f"--optimizer {self.name} holds {doubled[0]} twice; put each parameter into one group.")
        if held.keys() - named.keys():
            raise UserCodeError(
                f"--optimizer {self.name} holds a tensor that is no parameter of the model; give it those it was given."
            )
        if not all("lr" in group for group in optimizer.param_groups):
            raise UserCodeError(
                f"--optimizer {self.name} has a group without `lr`; its state is made by a step with lr 0, so name "
                "the learning rate lr."
            )


def user_optimizer(text: str | None) -> UserOptimizer | None:
    """The user's; None for a way to run AdamW, and for phases without a step."""
    return None if text is None or text in OPTIMIZERS else UserOptimizer(text)


def check_a_step(own: UserOptimizer, module: nn.Module, device: torch.device, seconds: float | None = None) -> None:
    """Raises UserCodeError unless a step on random gradients moves the weights and leaves them finite.

    The weights of `module`, which lies on `device`, are others afterwards.
    """
    training = Training(module, PRECISIONS["fp32"], device)
    own.put_into(training, module, seconds)
    with guarded(f"--optimizer {own.name} fails at zero gradients", seconds):
        training.create_optimizer_state()
    _check_finite(own, module, "zero gradients, of which its state is made,")
    before = [_digest(parameter) for parameter in module.parameters()]
    generator = torch.Generator(device).manual_seed(0)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator, device=device)
    with guarded(f"--optimizer {own.name} fails at its first step", seconds):
        training.update()
    if before == [_digest(parameter) for parameter in module.parameters()]:
        raise UserCodeError(f"--optimizer {own.name} changes no parameter in a step on random gradients.")
    _check_finite(own, module, "random gradients of norm 1")
    training.release()


def _check_finite(own: UserOptimizer, module: nn.Module, given: str) -> None:
    for name, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise UserCodeError(
                f"--optimizer {own.name} turns {given} into weights that are not finite, the first in {name}; keep "
                "what it divides by away from 0."
            )


def _digest(parameter: torch.Tensor) -> int:
    """Sum its bits, so that any change shows, and none for weights that are not numbers."""
    return int(parameter.detach().contiguous().view(torch.int32).sum())
