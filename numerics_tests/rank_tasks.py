"""What each rank of a test does and sees, in a process of its own, and how a test asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import model
from model.parallel import PARALLEL, Ranks, share, without_synchronization
from model.precision import PRECISIONS
from model.resident import forget_kept_gradients
from model.sizes import ModelConfig
from model.training import Training
from numerics_tests import tiny
from numerics_tests.rank_pool import POOL, Task
from perf_tests.hardware.clock import CollectiveCounter
from perf_tests.hardware.limits import SHARDED

CPU = torch.device("cpu")
# No width is a power of two, and none but the smallest is a multiple of 3, so that slices are uneven.
CONFIG = ModelConfig(d_model=20, d_ff=28, num_layers=2, num_heads=2, vocab_size=29, context_length=12)
BATCH = 6
"""Sequences; 72 tokens, of which 2 ranks get 36 each and 3 ranks 24."""
STEPS = 3

Named = dict[str, Tensor]
"""Whole tensors by the name of their parameter, even where a rank keeps a slice."""


@dataclass(frozen=True)
class Seen:
    """What one rank saw of a model trained by several."""

    own: Named
    """Gradients of its share of the batch on a model of its own."""
    gradients: Named
    clipped: Named
    """The gradients after the update clipped them."""
    apart: Named
    """Gradients of a pass without synchronization, after which the others were computed; empty for FSDP2."""
    weights: Named
    """After three steps."""
    kept: dict[str, torch.dtype]
    """Of parameters, gradients and moments."""
    moments: int
    """Elements of optimizer state on this rank."""
    sent: list[tuple[str, torch.dtype]]
    """Kind and dtype of each message of the third step."""


def on_ranks(
    variant: str, world: int, bucket_mb: float | None = None, reshard: bool = True, precision: str = "fp32"
) -> list[Seen]:
    """What each of `world` ranks sees, over the `model` that this suite imported."""
    return of_ranks("see", world, variant, bucket_mb, reshard, precision)


def of_ranks(function: str, world: int, *arguments: object) -> list[Any]:
    """What a function of this file returns on each of `world` ranks, over the `model` that this suite imported."""
    folder = str(Path(str(model.__file__)).parents[1])
    return POOL.run(Task(folder, __name__, function, world, arguments))


def batch() -> Tensor:
    """Tokens (6, 12)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(CONFIG.vocab_size, (BATCH, CONFIG.context_length), generator=generator)


def see(group: dist.ProcessGroup, variant: str, bucket_mb: float | None, reshard: bool, precision: str) -> Seen:
    ranks = Ranks(group, CPU, bucket_mb, reshard)

    def train(made: nn.Module) -> Training:
        return Training(made, PRECISIONS[precision], CPU)

    # Copies of whole models start as the first rank's, however this rank's own was drawn.
    made = tiny.model(CPU, seed=0 if variant in SHARDED else ranks.number, config=CONFIG)
    training, tokens = PARALLEL[variant](made, ranks, train), share(batch(), ranks)
    own = filled(train(tiny.model(CPU, config=CONFIG)), tokens)
    apart: Named = {}
    if variant not in SHARDED:
        with without_synchronization(training):
            apart = filled(training, tokens)
    gradients = filled(training, tokens)
    training.update()
    clipped = whole(training, "grad")
    for _ in range(STEPS - 1):
        with CollectiveCounter() as counter:
            training.step(tokens, targets_of(tokens))
    moments = [m for state in training.optimizer.state.values() for m in (state["exp_avg"], state["exp_avg_sq"])]
    parameters = list(training.model.parameters())
    kept: dict[str, Sequence[Tensor]] = {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "moments": moments,
    }
    return Seen(
        own,
        gradients,
        clipped,
        apart,
        whole(training, "data"),
        {name: the_one_dtype(tensors) for name, tensors in kept.items()},
        sum(local(moment).numel() for moment in moments),
        [(message.kind, dtype) for message, dtype in counter.seen],
    )


def adamw_runs_as(group: dist.ProcessGroup, variant: str, optimizer: str) -> tuple[bool, bool]:
    """Whether what steps this rank's parameters is foreach, and whether it is fused."""
    ranks = Ranks(group, CPU)
    training = PARALLEL[variant](tiny.model(CPU), ranks, lambda m: Training(m, PRECISIONS["fp32"], CPU, optimizer))
    (settings,) = getattr(training.optimizer, "optim", training.optimizer).param_groups
    return bool(settings["foreach"]), bool(settings["fused"])


@dataclass(frozen=True)
class Alone:
    """What one rank saw of steps without exchange, each after a pass with exchange."""

    sent: list[str]
    """Kind of each message of such a step."""
    left: list[Named]
    """The gradients that it leaves: after none at all, then after each pass with exchange."""
    exchanged: list[Named]
    """The gradients of each pass with exchange, before and after such steps."""
    exchanges: list[list[str]]
    """Kind of each message of these passes, in their order."""


def step_alone(group: dist.ProcessGroup, variant: str, reshard: bool) -> Alone:
    ranks = Ranks(group, CPU, reshard=reshard)
    made = tiny.model(CPU, config=CONFIG)
    training = PARALLEL[variant](made, ranks, lambda model: Training(model, PRECISIONS["fp32"], CPU))
    tokens = share(batch(), ranks)
    # What it takes where nothing is said is what `Ranks` takes.
    said = () if reshard else (False,)
    filled(training, tokens)
    training.clear_gradients()
    left, exchanged, exchanges = [], [], []
    for _ in range(3):
        with without_synchronization(training, *said):
            training.backward(training.loss(training.forward(tokens), targets_of(tokens)))
        left.append(whole(training, "grad"))
        training.clear_gradients()
        with CollectiveCounter() as counter:
            training.backward(training.loss(training.forward(tokens), targets_of(tokens)))
        exchanges.append([message.kind for message, _ in counter.seen])
        exchanged.append(whole(training, "grad"))
    with without_synchronization(training, *said), CollectiveCounter() as counter:
        training.step(tokens, targets_of(tokens))
    return Alone([message.kind for message, _ in counter.seen], left, exchanged, exchanges)


def keeps_nothing_without_weights(group: dist.ProcessGroup) -> bool:
    """Whether gradients kept aside can be forgotten of a root whose weights are all in its blocks."""
    root, mesh = nn.Sequential(nn.Linear(2, 2)), Ranks(group, CPU).mesh
    for module in (*root, root):
        fully_shard(module, mesh=mesh)
    try:
        for module in (*root, root):
            forget_kept_gradients(module)
    except AttributeError:
        return False
    return True


def filled(training: Training, tokens: Tensor) -> Named:
    """The gradients of one backward pass."""
    training.clear_gradients()
    training.backward(training.loss(training.forward(tokens), targets_of(tokens)))
    return whole(training, "grad")


def targets_of(tokens: Tensor) -> Tensor:
    return tokens.roll(-1, -1)


def whole(training: Training, what: str) -> Named:
    """`grad` or `data` of every parameter, as a copy of the whole."""
    tensors = {name.removeprefix("module."): getattr(p, what) for name, p in training.model.named_parameters()}
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).clone() for name, t in tensors.items()}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def the_one_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    (dtype,) = {tensor.dtype for tensor in tensors}
    return dtype
