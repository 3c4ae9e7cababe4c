"""A training step on several ranks: each takes its share of the batch, and all end with the same weights.

One function for each way to do it. Each gets a model, the ranks and `train`, which makes a `Training` of a model,
and returns that training with its gradients averaged over the ranks. Seed every rank alike before building the model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .resident import resident
from .training import Training, ignore_backward

_DDP_TAKES = signature(DistributedDataParallel.__init__).parameters
KEEPS_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _DDP_TAKES else "broadcast_buffers": False
}
"""DDP's option not to copy buffers in each forward pass, by its name since torch 2.13 and before."""

Train = Callable[[nn.Module], Training]
Variant = Callable[[nn.Module, "Ranks", Train], Training]


@dataclass(frozen=True)
class Ranks:
    """The ranks that train one model together, of which this process is one, and how they exchange gradients."""

    group: dist.ProcessGroup
    device: torch.device
    bucket_mb: float | None = None
    """How many MiB of gradients DDP sends at once; None is PyTorch's 25, after a first bucket of 1."""
    reshard: bool = True
    """Whether FSDP2 frees a block's gathered weights after its forward pass and gathers them again for its backward."""

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def number(self) -> int:
        """This rank's number, counted from 0 within the group."""
        return dist.get_rank(self.group)

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The same ranks as FSDP2 takes them."""
        return DeviceMesh.from_group(self.group, self.device.type)


def share(batch: Tensor, ranks: Ranks) -> Tensor:
    """The rows of the batch (B, ...) that are this rank's. Raises ValueError unless all ranks get as many."""
    if len(batch) % ranks.size:
        raise ValueError(
            f"batch {len(batch)} is not divisible by {ranks.size} ranks, whose mean would not be the batch's; "
            f"choose a multiple of {ranks.size}."
        )
    return batch.chunk(ranks.size)[ranks.number]


def ddp_naive(model: nn.Module, ranks: Ranks, train: Train) -> Training:
    """Whole copies of the model; after the backward pass, one all-reduce for each gradient."""
    training = train(copied_from_first(model, ranks))

    def average() -> None:
        for gradient in gradients(model):
            dist.all_reduce(gradient, group=ranks.group)
            gradient /= ranks.size

    training.after_backward = average
    return training


def ddp_flat(model: nn.Module, ranks: Ranks, train: Train) -> Training:
    """The same with one all-reduce for all gradients, which are copied into one tensor and back."""
    training = train(copied_from_first(model, ranks))

    def average() -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients(model)])
        dist.all_reduce(flat, group=ranks.group)
        flat /= ranks.size
        parts = flat.split([gradient.numel() for gradient in gradients(model)])
        for gradient, part in zip(gradients(model), parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    training.after_backward = average
    return training


def ddp(model: nn.Module, ranks: Ranks, train: Train) -> Training:
    """All-reduce buckets of gradients while the backward pass still computes the next.

    Li et al., "PyTorch Distributed", 2020 (arXiv:2006.15704). Buffers are tables here, equal on all ranks. The first
    backward pass raises ValueError for parameters without a gradient, for whose bucket the next one would wait.
    """
    training = train(
        DistributedDataParallel(model, process_group=ranks.group, bucket_cap_mb=ranks.bucket_mb, **KEEPS_BUFFERS)
    )

    def check_once() -> None:
        training.after_backward = ignore_backward
        unused = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
        if unused:
            raise ValueError(
                f"{', '.join(unused)} got no gradient, and DDP waits for those of all parameters: use it in the "
                "forward pass, freeze it by requires_grad_(False), remove it, or choose --parallel fsdp2."
            )

    training.after_backward = check_once
    return training


def zero1(model: nn.Module, ranks: Ranks, train: Train) -> Training:
    """DDP in which each rank steps some of the parameters, keeps their moments alone, and sends them to the others.

    Rajbhandari et al., "ZeRO", 2020 (arXiv:1910.02054), section 5.1. Raises ValueError unless it is AdamW.
    """
    training = ddp(model, ranks, train)
    if type(training.optimizer) is not torch.optim.AdamW:
        raise ValueError(f"zero1 shards AdamW, not {type(training.optimizer).__name__}; choose ddp for that optimizer.")
    training.optimizer = sharded = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.AdamW,
        process_group=ranks.group,
        foreach=training.optimizer_implementation == "foreach",
        fused=training.optimizer_implementation == "fused",
    )
    # What this rank keeps stands in an optimizer inside; this is where others look for it.
    sharded.state = sharded.optim.state
    return training


def fsdp2(model: nn.Module, ranks: Ranks, train: Train, policy: MixedPrecisionPolicy | None = None) -> Training:
    """Each rank keeps a slice of every parameter, its gradient and its moments; a block is gathered while it computes.

    Zhao et al., "PyTorch FSDP", 2023 (arXiv:2304.11277). A model on the CPU moves to the device block by block.
    """
    policy = policy or MixedPrecisionPolicy()
    for block in blocks(model):
        fully_shard(block, mesh=ranks.mesh, reshard_after_forward=ranks.reshard, mp_policy=policy)
    # What is left is gathered first and needed last.
    fully_shard(model, mesh=ranks.mesh, reshard_after_forward=False, mp_policy=policy)
    return train(model)


def fsdp2_bf16(model: nn.Module, ranks: Ranks, train: Train) -> Training:
    """FSDP2 that sends and adds gradients in bfloat16; weights are gathered, and gradients kept, in float32."""
    return fsdp2(model, ranks, train, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))


PARALLEL: dict[str, Variant] = {
    "ddp-naive": ddp_naive,
    "ddp-flat": ddp_flat,
    "ddp": ddp,
    "zero1": zero1,
    "fsdp2": fsdp2,
    "fsdp2-bf16": fsdp2_bf16,
}


def reduce_dtype(variant: str) -> torch.dtype:
    """What a variant adds gradients in."""
    return torch.bfloat16 if variant == "fsdp2-bf16" else torch.float32


def copied_from_first(model: nn.Module, ranks: Ranks) -> nn.Module:
    """The model with the first rank's parameters and buffers."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), group=ranks.group, group_src=0)
    return model


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that repeat: the modules of the longest list in it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def free_gathered(model: nn.Module) -> None:
    """What FSDP2 keeps gathered after a forward pass, which a backward pass would free."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def without_synchronization(training: Training, reshard: bool = True) -> Iterator[None]:
    """A step in which ranks keep their gradients to themselves: what remains is the time without this communication.

    Weights drift apart where each rank has all of them. Of FSDP2 it leaves out the gathers too, see `resident`;
    `reshard` is that of its `Ranks`.
    """
    if isinstance(training.model, FSDPModule):
        with resident(training, reshard):
            yield
        return
    after_backward, training.after_backward = training.after_backward, ignore_backward
    try:
        if isinstance(training.model, DistributedDataParallel):
            with training.model.no_sync():
                yield
        else:
            yield
    finally:
        training.after_backward = after_backward
