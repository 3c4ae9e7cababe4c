"""What each rank of a test does and sees, in a process of its own, and how a test asks for it."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from perf_tests_suite.model.parallel import PARALLEL, Ranks, share, without_synchronization
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.resident import forget_kept_gradients
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.numerics_tests.harness import tiny
from perf_tests_suite.numerics_tests.harness.checks import Watching
from perf_tests_suite.numerics_tests.harness.rank_pool import POOL, Task

CPU = torch.device("cpu")
# No width is a power of two, and none but the smallest is a multiple of 3, so that slices are uneven.
CONFIG = ModelConfig(d_model=20, d_ff=28, num_layers=2, num_heads=2, vocab_size=29, context_length=12)
BATCH = 6
"""Sequences; 72 tokens, of which 2 ranks get 36 each and 3 ranks 24."""
STEPS = 3
SHARDED = ("fsdp2", "fsdp2-bf16")
"""Variants in which a rank keeps slices of weights, gradients and moments."""

Named = dict[str, Tensor]
"""Whole tensors by the name of their parameter, even where a rank keeps a slice."""

KINDS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::broadcast_": "broadcast",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
}
"""What an operator sends; its first argument is a tensor of the message's dtype, or a list of such tensors."""
SEND_NOTHING = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


class Messages(Watching):
    """A mode in which `seen` grows by the kind and dtype of each message; raises ValueError for an operator of unknown
    kind.
    """

    def __init__(self) -> None:
        super().__init__(self._note_message)
        self.seen: list[tuple[str, torch.dtype]] = []

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.seen]

    def _note_message(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not name.startswith(("c10d::", "_c10d_functional::")) or name in SEND_NOTHING:
            return
        if name not in KINDS:
            raise ValueError(f"what {name} sends is not known; add it to KINDS in {__name__}.")
        tensors = [arguments[0]] if isinstance(arguments[0], Tensor) else arguments[0]
        self.seen += [(KINDS[name], tensor.dtype) for tensor in tensors]


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
    """The parameters after three steps."""
    kept: dict[str, torch.dtype]
    """Dtypes of parameters, gradients and moments."""
    moments: int
    """Elements of optimizer state on this rank."""
    sent: list[tuple[str, torch.dtype]]
    """Kind and dtype of each message of the third step."""


def on_ranks(
    variant: str, world: int, bucket_mb: float | None = None, reshard: bool = True, precision: str = "fp32"
) -> list[Seen]:
    """What each of `world` ranks sees."""
    return of_ranks("see", world, variant, bucket_mb, reshard, precision)


def of_ranks(function: str, world: int, *arguments: object) -> list[Any]:
    """What a function of this file returns on each of `world` ranks."""
    return POOL.run(Task(__name__, function, world, arguments))


def batch() -> Tensor:
    """Tokens (6, 12), the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(CONFIG.vocab_size, (BATCH, CONFIG.context_length), generator=generator)


def see(group: dist.ProcessGroup, variant: str, bucket_mb: float | None, reshard: bool, precision: str) -> Seen:
    ranks = Ranks(group, CPU, bucket_mb, reshard)

    def train(made: nn.Module) -> Training:
        return Training(made, PRECISIONS[precision], CPU)

    # Copies of whole models start as the first rank's, however this rank's own was drawn.
    made = tiny.model(seed=0 if variant in SHARDED else ranks.number, config=CONFIG)
    training, tokens = PARALLEL[variant](made, ranks, train), share(batch(), ranks)
    own = filled(train(tiny.model(config=CONFIG)), tokens)
    apart: Named = {}
    if variant not in SHARDED:
        with without_synchronization(training):
            apart = filled(training, tokens)
    gradients = filled(training, tokens)
    training.update()
    clipped = whole(training, "grad")
    for _ in range(STEPS - 1):
        with Messages() as messages:
            training.step(tokens, tiny.targets_of(tokens))
    parameters = list(training.model.parameters())
    moments = [m for state in training.optimizer.state.values() for m in (state["exp_avg"], state["exp_avg_sq"])]
    gradients_kept = [parameter.grad for parameter in parameters if parameter.grad is not None]
    kept = {}
    for name, tensors in (("parameters", parameters), ("gradients", gradients_kept), ("moments", moments)):
        (kept[name],) = {tensor.dtype for tensor in tensors}
    slices = [moment.to_local() if isinstance(moment, DTensor) else moment for moment in moments]
    elements = sum(part.numel() for part in slices)
    return Seen(own, gradients, clipped, apart, whole(training, "data"), kept, elements, messages.seen)


def adamw_runs_as(group: dist.ProcessGroup, variant: str, optimizer: str) -> tuple[bool, bool]:
    """Whether what steps this rank's parameters is foreach, and whether it is fused."""
    ranks = Ranks(group, CPU)
    training = PARALLEL[variant](tiny.model(), ranks, lambda m: Training(m, PRECISIONS["fp32"], CPU, optimizer))
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
    made = tiny.model(config=CONFIG)
    training = PARALLEL[variant](made, ranks, lambda model: Training(model, PRECISIONS["fp32"], CPU))
    tokens = share(batch(), ranks)
    # What it takes where nothing is said is what `Ranks` takes.
    said = () if reshard else (False,)
    filled(training, tokens)
    training.clear_gradients()
    left, exchanged, exchanges = [], [], []
    for _ in range(3):
        # Not cleared before: from the second time on it must leave what the last exchange left.
        with without_synchronization(training, *said):
            training.backward(training.loss(training.forward(tokens), tiny.targets_of(tokens)))
        left.append(whole(training, "grad"))
        with Messages() as messages:
            tiny.filled_gradients(training, tokens)
        exchanges.append(messages.kinds)
        exchanged.append(whole(training, "grad"))
    with without_synchronization(training, *said), Messages() as messages:
        training.step(tokens, tiny.targets_of(tokens))
    return Alone(messages.kinds, left, exchanged, exchanges)


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
    tiny.filled_gradients(training, tokens)
    return whole(training, "grad")


def whole(training: Training, what: str) -> Named:
    """`grad` or `data` of every parameter, as a copy of the whole."""
    tensors = {name.removeprefix("module."): getattr(p, what) for name, p in training.model.named_parameters()}
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).clone() for name, t in tensors.items()}
