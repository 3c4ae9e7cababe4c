"""What one rank of many sends in a training step, counted in this process alone: PyTorch's backend `fake` answers every
collective at once without sending anything."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.parallel import PARALLEL, Ranks
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.hardware import clock, limits, torch_private
from tests.support.example_cases import CPU

ANSWERS_FAKE_TENSORS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether they are answered: before, every variant computes a real step; DDP's do always: it reads the order of
gradients out of a tensor."""


@contextmanager
def imagined_ranks(world: int, bucket_mb: float | None = None, reshard: bool = True) -> Iterator[Ranks]:
    """Rank 0 of `world`."""
    dist.init_process_group("fake", rank=0, world_size=world)
    try:
        assert dist.group.WORLD is not None
        ranks = Ranks(dist.group.WORLD, CPU, bucket_mb, reshard)
        assert ranks.mesh is not None  # made of tensors with content, so before any without
        yield ranks
    finally:
        dist.destroy_process_group()


def counted_messages(
    variant: str, config: ModelConfig, world: int, bucket_mb: float | None = None, reshard: bool = True
) -> list[limits.Message]:
    """Every message of a step once DDP has found its buckets; the batch does not matter."""
    with imagined_ranks(world, bucket_mb, reshard) as ranks, ExitStack() as stack:
        if ANSWERS_FAKE_TENSORS and variant not in limits.BUCKETED:
            stack.enter_context(torch_private.FakeTensorMode())
        model = TransformerLM(config.at_context(2), ATTENTION["naive"].build())
        training = PARALLEL[variant](model, ranks, lambda module: Training(module, PRECISIONS["fp32"], CPU))
        tokens_BT = torch.zeros(1, 2, dtype=torch.int64)
        if isinstance(training.model, DistributedDataParallel):
            training.model.register_comm_hook(ranks.group, _all_reduced)
            training.step(tokens_BT, tokens_BT)
        counter = stack.enter_context(clock.CollectiveCounter())
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
