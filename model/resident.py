"""FSDP2 without its communication: every rank has gathered all weights before a step, and keeps its gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FSDPModule

from .training import Training


@contextmanager
def resident(training: Training, reshard: bool) -> Iterator[None]:
    """One step, or one backward pass: what remains of it without gathers and reductions.

    The weights are gathered here, before the step, and let go after its backward pass, so that clipping and optimizer
    work on this rank's slices as ever, with the gradients of the last exchange. A rank holds all weights and all
    gradients at once. Needs a step before it; `reshard` is that of `Ranks`, for afterwards.
    """
    root = training.model
    assert isinstance(root, FSDPModule)
    modules = [module for module in training.model.modules() if isinstance(module, FSDPModule)]
    slices = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    last = [torch.zeros_like(own) if own.grad is None else own.grad for own in slices]

    def let_go() -> None:
        for whole in training.model.parameters():
            whole.grad = None
        for module in modules:
            forget_kept_gradients(module)
            module.reshard()
        for own, gradient in zip(slices, last, strict=True):
            own.grad = gradient

    after_backward, training.after_backward = training.after_backward, let_go
    root.set_requires_gradient_sync(False)
    root.set_reshard_after_backward(False)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        training.after_backward = after_backward
        let_go()
        root.set_requires_gradient_sync(True)
        root.set_reshard_after_backward(True)
        for module in modules:
            module.set_reshard_after_forward(reshard and module is not root, recurse=False)


def forget_kept_gradients(module: FSDPModule) -> None:
    """Drop kept gradients of whole weights: where FSDP2 adds in another dtype, it keeps them aside for the next
    exchange.

    There is no public name for them. This private one stands here and not in `perf_tests.hardware.torch_private`,
    because `model` imports torch only.
    """
    group = module._get_fsdp_state()._fsdp_param_group
    for parameter in group.fsdp_params if group is not None else ():
        parameter.unsharded_accumulated_grad = None
