"""An optimizer of the user's own: built for the parameters of a model, and tried for one step before it is timed.

A factory is called with the list of a model's (name, parameter) and returns a `torch.optim.Optimizer`."""

from collections import Counter

import torch
from torch import nn
from torch.optim import Optimizer

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.user_code.given import UserOptimizer
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, check_kind, guarded
from perf_tests_suite.perf_tests.user_code.named import load


def put_into(own: UserOptimizer, training: Training, module: nn.Module, seconds: float | None = None) -> None:
    """Let it train `module`, which `training` runs as it is or compiled. Raises UserCodeError."""
    training.optimizer = build_optimizer(own, module, seconds)


def build_optimizer(own: UserOptimizer, module: nn.Module, seconds: float | None = None) -> Optimizer:
    """Build it; raises UserCodeError unless it holds each trainable parameter once, and within `seconds`."""
    what = f"--optimizer {own.name}"
    with guarded(f"{what} cannot be imported"):
        factory = load(own.name)
    with guarded(f"{what} builds no optimizer", seconds):
        optimizer: Optimizer = factory(list(module.named_parameters()))
    check_kind(what, optimizer, Optimizer, "a torch.optim.Optimizer")
    held = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    left_out = [named[id(one)] for one in module.parameters() if one.requires_grad and id(one) not in held]
    if left_out:
        count = f"{len(left_out)} of {len(named)} parameters"
        raise UserCodeError(f"{what} leaves out {count}, the first {left_out[0]}; put each into one group.")
    doubled = [named.get(place, "one") for place, times in held.items() if times > 1]
    if doubled:
        raise UserCodeError(f"{what} holds {doubled[0]} twice; put each parameter into one group.")
    if held.keys() - named.keys():
        raise UserCodeError(f"{what} holds a tensor that is not a parameter of the model; give it only those.")
    if not all("lr" in group for group in optimizer.param_groups):
        next_step = "its state is made by a step with lr 0, so name the learning rate lr"
        raise UserCodeError(f"{what} has a group without `lr`; {next_step}.")
    return optimizer


MOST_STEPS = 32
"""Steps without a move, of which one that adds up more gradients is refused."""


def check_a_step(
    optimizer: UserOptimizer, module: nn.Module, device: torch.device, seconds: float | None = None
) -> None:
    """Try a step; raises UserCodeError unless a step on random gradients moves the weights and leaves them finite.

    The weights of `module`, which lies on `device`, are others afterwards.
    """
    what = f"--optimizer {optimizer.name}"

    def check_finite(given: str) -> None:
        for name, parameter in module.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise UserCodeError(
                    f"{what} turns {given} into weights that are not finite, the first in {name}; keep what it "
                    "divides by away from 0."
                )

    def digests() -> list[int]:
        """Sums of the bits, so that any change shows, also of weights that are not numbers."""
        return [int(parameter.detach().contiguous().view(torch.int32).sum()) for parameter in module.parameters()]

    training = Training(module, PRECISIONS["fp32"], device)
    put_into(optimizer, training, module, seconds)
    with guarded(f"{what} fails at zero gradients", seconds):
        training.create_optimizer_state()
    check_finite("zero gradients, of which its state is made,")
    before = digests()
    generator = torch.Generator(device).manual_seed(0)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator, device=device)
    with guarded(f"{what} fails at its first step", seconds):
        for _ in range(MOST_STEPS):
            training.update()
            if before != digests():  # ASGD takes two, as the first derives a rate; what adds up gradients, more
                break
    if before == digests():
        raise UserCodeError(f"{what} changes no parameter in {MOST_STEPS} steps on random gradients.")
    check_finite("random gradients of norm 1")
    training.release()
