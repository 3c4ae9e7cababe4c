"""What each rank of a test runs, in a process of its own."""

import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.parallel import PARALLEL, Ranks, share
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import region
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import RMSNorm, TransformerLM
from perf_tests_suite.numerics_tests.harness import tiny
from perf_tests_suite.perf_tests.bench.ranks import RankClock, messages_by_region, values_by_part
from perf_tests_suite.perf_tests.hardware.clock import CollectiveCounter
from perf_tests_suite.perf_tests.hardware.limits import Message

CPU = torch.device("cpu")
TOKENS = torch.zeros(1, 2, dtype=torch.int64)


def training_of(
    variant: str, ranks: Ranks, model: torch.nn.Module | None = None, optimizer: str = "default"
) -> Training:
    """The training of a model on these ranks, of the smallest size where none is given."""
    made = model or TransformerLM(SIZES["tiny"].at_context(2), naive_attention)
    return PARALLEL[variant](made, ranks, lambda own: Training(own, PRECISIONS["fp32"], CPU, optimizer))


def release_leaves(group: dist.ProcessGroup, variant: str) -> tuple[int, int]:
    """Tensors of optimizer state before and after `release`."""
    training = training_of(variant, Ranks(group, CPU), tiny.model(), "loop")
    training.create_optimizer_state()
    before = len(training.optimizer.state)
    training.release()
    return before, len(training.optimizer.state)


def refusals(group: dist.ProcessGroup) -> list[str]:
    """The sentences of what cannot be done."""

    def with_sgd(model: torch.nn.Module) -> Training:
        training = Training(model, PRECISIONS["fp32"], CPU)
        training.optimizer = torch.optim.SGD(model.parameters())
        return training

    said, ranks = [], Ranks(group, CPU)
    for call, arguments in (
        (share, (tiny.tokens(batch=5), ranks)),
        (PARALLEL["zero1"], (tiny.model(), ranks, with_sgd)),
    ):
        try:
            call(*arguments)
        except ValueError as error:
            said.append(str(error))
    return said


def sharded_blocks(group: dist.ProcessGroup) -> list[int]:
    """Modules that FSDP2 gathers apart, in our model and in one without a list of layers."""
    config = ModelConfig(d_model=20, d_ff=28, num_layers=3, num_heads=2, vocab_size=29, context_length=12)
    models = (tiny.model(config=config), RMSNorm(config.d_model))
    for model in models:
        training_of("fsdp2", Ranks(group, CPU), model)
    return [sum(isinstance(module, FSDPModule) for module in model.modules()) for model in models]


def messages_sent(group: dist.ProcessGroup, variant: str, bucket_mb: float | None, reshard: bool) -> list[Message]:
    """Messages of the third step of the smallest size."""
    training = training_of(variant, Ranks(group, CPU, bucket_mb, reshard))
    for _ in range(3):
        with CollectiveCounter() as counter:
            training.step(TOKENS, TOKENS)
    return [message for message, _ in counter.seen]


def bytes_kept(group: dist.ProcessGroup, variant: str) -> tuple[int, int, int]:
    """Bytes of the storages of parameters, gradients and moments after a step of the smallest size."""
    training = training_of(variant, Ranks(group, CPU))
    training.step(TOKENS, TOKENS)
    parameters = list(training.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    moments = [m for state in training.optimizer.state.values() for m in (state["exp_avg"], state["exp_avg_sq"])]
    return storage_bytes(parameters), storage_bytes(gradients), storage_bytes(moments)


def bytes_gathered(group: dist.ProcessGroup, reshard: bool) -> int:
    """Bytes of the weights that are whole on this rank after a forward pass of the smallest size under FSDP2."""
    training = training_of("fsdp2", Ranks(group, CPU, reshard=reshard))
    training.forward(TOKENS)
    return storage_bytes([own for own in training.model.parameters() if not isinstance(own, DTensor)])


def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Each storage once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}.values())


# What the clock of several ranks reads.


def clock_of(group: dist.ProcessGroup) -> RankClock:
    clock = RankClock(Mock(**{"record_event.return_value": None}))
    clock.group = group
    return clock


def readings(group: dist.ProcessGroup, late_seconds: float, slow_seconds: float) -> dict[str, list[float]]:
    """Readings of three rounds with an exchange each; rank 1 arrives late, and works slowly after the exchange."""
    clock, is_last = clock_of(group), dist.get_rank(group) == 1
    starts = []
    for _ in range(3):
        time.sleep(late_seconds * is_last)
        clock.begin_round()
        starts.append(clock())
        dist.all_reduce(torch.zeros(1), group=group)
        time.sleep(slow_seconds * is_last)
        clock.wall_seconds.append(clock() - starts[-1])
    return {"starts": starts, "seen": clock.wall_seconds, "own": clock.rank_seconds, "now": [clock.now()]}


def gathered(group: dist.ProcessGroup) -> list[list[float]]:
    return clock_of(group).from_all([float(dist.get_rank(group)), 7.0])


def sent_outside_and_inside(group: dist.ProcessGroup) -> dict[str, Any]:
    """Two messages in the backward pass, one of whole numbers, and one outside of any part."""

    def send() -> None:
        dist.all_reduce(torch.zeros(3), group=group)
        with region("backward"):
            dist.all_reduce(torch.zeros(5), group=group)
            dist.all_reduce(torch.zeros(5, dtype=torch.int64), group=group)

    return values_by_part(messages_by_region(send), dist.get_world_size(group))
