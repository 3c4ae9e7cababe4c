"""What one rank of many sends in a training step, counted in this process alone: the others are imagined.

PyTorch's backend `fake` answers every collective at once without sending anything.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.instruments.collectives import CollectiveCounter
from perf_tests.instruments.torch_private import FakeTensorMode
from perf_tests.limits.communication import Message, ParameterShapes, Shape
from perf_tests.limits.ways import BUCKETED

if TYPE_CHECKING:  # earlier revisions of `model`, which the gate measures, lack it
    from model.parallel import Ranks

HOST = torch.device("cpu")
NEED_CONTENT = BUCKETED
"""DDP reads the order of gradients out of a tensor, so these compute a real step; before torch 2.13 all do."""
_TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
PLAYS_COLLECTIVES = _TORCH >= (2, 13)
NORM_OF_EACH = _TORCH >= (2, 10)
"""Whether FSDP2 adds up a norm of each parameter for clipping, or one of all."""


@contextmanager
def imagined_ranks(world: int, bucket_mb: float | None = None, reshard: bool = True) -> "Iterator[Ranks]":
    """Rank 0 of `world`. Raises ValueError inside of a run by ranks, which has a group already."""
    from model.parallel import Ranks

    if dist.is_initialized():
        raise ValueError("messages of imagined ranks cannot be counted among real ones; run this without torchrun.")
    dist.init_process_group("fake", rank=0, world_size=world)
    try:
        assert dist.group.WORLD is not None
        ranks = Ranks(dist.group.WORLD, HOST, bucket_mb, reshard)
        assert ranks.mesh is not None  # made of tensors with content, so before any without
        yield ranks
    finally:
        dist.destroy_process_group()


def counted_messages(
    variant: str, config: ModelConfig, world: int, bucket_mb: float | None = None, reshard: bool = True
) -> list[Message]:
    """Every message of a step once DDP has found its buckets; the batch does not matter."""
    from model.parallel import PARALLEL

    with imagined_ranks(world, bucket_mb, reshard) as ranks, ExitStack() as stack:
        if PLAYS_COLLECTIVES and variant not in NEED_CONTENT:
            stack.enter_context(FakeTensorMode())
        training = PARALLEL[variant](_model(config), ranks, _train)
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64)
        if isinstance(training.model, DistributedDataParallel):
            training.model.register_comm_hook(ranks.group, _all_reduced)
            training.step(tokens_BT, tokens_BT)
        counter = stack.enter_context(CollectiveCounter())
        training.step(tokens_BT, tokens_BT)
        # DDP tells its buckets once, at the start of its second step.
        return [message for message, dtype in counter.seen if dtype.is_floating_point]


def _all_reduced(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # the stubs of torch do not know it, and DDP asks for it
) -> torch.futures.Future[Tensor]:
    """What DDP does by itself where a backend answers with tensors; `fake` does not."""
    dist.all_reduce(bucket.buffer(), group=group)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@cache
def parameter_shapes(config: ModelConfig) -> ParameterShapes:
    """Of our model, with the order of gradients as one backward pass gives it: that of one block, for every block."""
    from model.parallel import blocks

    with FakeTensorMode(), torch.enable_grad():  # also where a benchmark of inference asks
        training = _train(_model(replace(config, num_layers=1)))
        (block,) = blocks(training.model)
        by_gradient: list[nn.Parameter] = []
        for parameter in training.model.parameters():
            parameter.register_post_accumulate_grad_hook(by_gradient.append)
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64)
        training.backward(training.loss(training.forward(tokens_BT), tokens_BT))
    inside = {id(parameter) for parameter in block.parameters()}
    rest = [parameter for parameter in training.model.parameters() if id(parameter) not in inside]
    at = [number for number, parameter in enumerate(by_gradient) if id(parameter) in inside]
    before, of_block, after = (
        _shapes(by_gradient[part]) for part in (slice(at[0]), slice(at[0], at[-1] + 1), slice(at[-1] + 1, None))
    )
    order = (*before, *(of_block * config.num_layers), *after)
    return ParameterShapes(_shapes(rest), (_shapes(block.parameters()),) * config.num_layers, order)


def _shapes(parameters: Iterable[nn.Parameter]) -> tuple[Shape, ...]:
    return tuple(tuple(parameter.shape) for parameter in parameters)


def _model(config: ModelConfig) -> nn.Module:
    return TransformerLM(config.at_context(2), ATTENTION["naive"].build())


def _train(model: nn.Module) -> Training:
    return Training(model, PRECISIONS["fp32"], HOST)
