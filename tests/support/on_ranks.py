"""What each rank of a test runs, in a process of its own."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from model.attention import naive_attention
from model.parallel import PARALLEL, Ranks, share
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import RMSNorm, TransformerLM
from numerics_tests.harness import tiny
from perf_tests.hardware.clock import CollectiveCounter
from perf_tests.hardware.limits import Message

CPU = torch.device("cpu")


def training_on(group: dist.ProcessGroup, variant: str, optimizer: str = "loop") -> tuple[Training, Ranks]:
    ranks = Ranks(group, CPU)
    return PARALLEL[variant](
        tiny.model(), ranks, lambda model: Training(model, PRECISIONS["fp32"], CPU, optimizer)
    ), ranks


def release_leaves(group: dist.ProcessGroup, variant: str) -> tuple[int, int]:
    """Tensors of optimizer state before and after `release`."""
    training, _ = training_on(group, variant)
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
    calls: tuple[Callable[[], object], ...] = (
        lambda: share(tiny.tokens(batch=5), ranks),
        lambda: PARALLEL["zero1"](tiny.model(), ranks, with_sgd),
    )
    for call in calls:
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said


def sharded_blocks(group: dist.ProcessGroup) -> list[int]:
    """Modules that FSDP2 gathers apart, in our model and in one without a list of layers."""
    ranks = Ranks(group, CPU)
    config = ModelConfig(d_model=20, d_ff=28, num_layers=3, num_heads=2, vocab_size=29, context_length=12)
    models = (tiny.model(config=config), RMSNorm(config.d_model))
    for model in models:
        PARALLEL["fsdp2"](model, ranks, lambda made: Training(made, PRECISIONS["fp32"], CPU))
    return [sum(isinstance(module, FSDPModule) for module in model.modules()) for model in models]


def messages_sent(group: dist.ProcessGroup, variant: str, bucket_mb: float | None, reshard: bool) -> list[Message]:
    """Messages of the third step of the smallest size."""
    ranks = Ranks(group, CPU, bucket_mb, reshard)
    model = TransformerLM(SIZES["tiny"].at_context(2), naive_attention)
    training = PARALLEL[variant](model, ranks, lambda made: Training(made, PRECISIONS["fp32"], CPU))
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    for _ in range(3):
        with CollectiveCounter() as counter:
            training.step(tokens, tokens)
    return [message for message, _ in counter.seen]


def bytes_kept(group: dist.ProcessGroup, variant: str) -> tuple[int, int, int]:
    """Bytes of the storages of parameters, gradients and moments after a step of the smallest size."""
    model = TransformerLM(SIZES["tiny"].at_context(2), naive_attention)
    ranks = Ranks(group, CPU)
    training = PARALLEL[variant](model, ranks, lambda made: Training(made, PRECISIONS["fp32"], CPU))
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    training.step(tokens, tokens)
    parameters = list(training.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    moments = [m for state in training.optimizer.state.values() for m in (state["exp_avg"], state["exp_avg_sq"])]
    return storage_bytes(parameters), storage_bytes(gradients), storage_bytes(moments)


def bytes_gathered(group: dist.ProcessGroup, reshard: bool) -> int:
    """Bytes of the weights that are whole on this rank after a forward pass of the smallest size under FSDP2."""
    model = TransformerLM(SIZES["tiny"].at_context(2), naive_attention)
    training = PARALLEL["fsdp2"](
        model, Ranks(group, CPU, reshard=reshard), lambda made: Training(made, PRECISIONS["fp32"], CPU)
    )
    training.forward(torch.zeros(1, 2, dtype=torch.int64))
    return storage_bytes([own for own in training.model.parameters() if not isinstance(own, DTensor)])


def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Each storage once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}.values())
