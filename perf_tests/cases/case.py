"""What every case answers; a family overrides what it answers otherwise."""

from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, Self

from perf_tests_suite.perf_tests.cases.model_names import attention_names
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.cases.sharing import Sharing
from perf_tests_suite.perf_tests.hardware.limits import Work
from perf_tests_suite.perf_tests.phases import EXAMINED, Phase
from perf_tests_suite.perf_tests.user_code.given import UserModel, UserOptimizer, is_user_function

COUNTED_ATTENTION = tuple(name for name, is_compiled in attention_names().items() if not is_compiled)
"""What a compiler fuses is unknown until it has run."""

CUDA_GRAPH_WARMUP_ROUNDS = 3
"""The first compiles, the second records the graphs, the third replays them."""


class Case(ABC):
    """A frozen dataclass in each family."""

    phase: str
    precision: str
    attention: str | None
    device: str
    axes: ClassVar[dict[str, str]]
    """The parameters of its benchmark, each with the field of `Settings` that holds their values."""
    sharing: Sharing | None = None
    """How ranks share its model; None on one device, and for a case without a model."""
    cache: str | None = None
    """`cold` where the last-level cache is flushed before each measured round."""

    @classmethod
    def grid(cls, settings: Settings) -> list[tuple[Any, ...]]:
        """Values of the axes, smallest case first."""
        return list(product(*(getattr(settings, field) for field in cls.axes.values())))

    @classmethod
    @abstractmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        """The case of one parametrized test."""

    @staticmethod
    @abstractmethod
    def id_of(*values: Any, **named_values: Any) -> str:
        """What joins the case of these values of the axes to its rows in older records."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Every field that two rows must share to be comparable, flat."""

    @property
    @abstractmethod
    def built_from(self) -> tuple[Any, ...]:
        """Cases with equal values share one model, or are measured side by side."""

    @property
    @abstractmethod
    def least_bytes(self) -> int:
        """Lower bound of a round's memory, in bytes."""

    @property
    def phase_row(self) -> Phase:
        return EXAMINED[self.phase]

    def in_phase(self, phase: str) -> Self:
        return replace(self, phase=phase)  # type: ignore[type-var]  # each family is a dataclass

    def rounds(self, settings: Settings) -> int:
        """Measured rounds of the case."""
        return settings.rounds

    @property
    def ranks(self) -> int | None:
        """How many run it together; None on one device."""
        return None if self.sharing is None else self.sharing.world

    @property
    def tokens(self) -> int | None:
        """Tokens of a round, on all ranks together; None where there are none."""
        return None

    @property
    def user_model(self) -> UserModel | None:
        """The user's model; None for ours, and without a model."""
        return None

    @property
    def user_attention(self) -> str | None:
        """The user's function as typed; None for the suite's, and without attention."""
        return self.attention if self.attention is not None and is_user_function(self.attention) else None

    @property
    def user_optimizer(self) -> UserOptimizer | None:
        """The user's; None for AdamW, and in phases without a step."""
        return None

    @property
    def user_code(self) -> list[str]:
        """What of it is code of the user's, as typed."""
        model = None if self.user_model is None else self.user_model.name
        optimizer = None if self.user_optimizer is None else self.user_optimizer.name
        return [name for name in (model, self.user_attention, optimizer) if name is not None]

    @property
    def query_shape(self) -> tuple[int, ...]:
        """Shape of attention's query: batch, heads (not in attention alone), tokens, head width."""
        raise TypeError(f"{type(self).__name__} has no attention.")

    @property
    def is_compiled(self) -> bool:
        """Whether any of it is."""
        return attention_names().get(self.attention or "", False)

    @property
    def replays_cuda_graphs(self) -> bool:
        """Whether its warm-up records CUDA graphs, which its measured rounds replay."""
        return False

    @property
    def fewest_warmup_rounds(self) -> int:
        return CUDA_GRAPH_WARMUP_ROUNDS if self.replays_cuda_graphs else 0

    @property
    def updates(self) -> bool:
        """Whether a round changes weights."""
        return False

    @property
    def blocks(self) -> int:
        """Blocks that a compiler meets and that launch kernels."""
        return 1

    @property
    def parameters(self) -> int | None:
        """Parameters of our model in closed form, of the user's counted; None where memory ran out building it."""
        return 0

    @property
    def forward_flops(self) -> int:
        """2mnk of every product of one forward pass, over the full T x T square.

        Raises TypeError for a model of the user's own.
        """
        if self.user_model is not None:
            raise TypeError(f"what {self.user_model.name} computes is counted, not known in closed form.")
        return (self.work.least_flops("forward", leaves_masked_half=False) or 0) if self.work else 0

    @property
    def model_flops(self) -> int | None:
        """Model FLOPs of one round; None for a phase without matrix products. Raises as `forward_flops`."""
        multiple = self.phase_row.forward_multiple
        return None if multiple is None else multiple * self.forward_flops

    @property
    def work(self) -> Work | None:
        """The work of a pass on all ranks together; None where it is not known in closed form."""
        return None

    @property
    def resident_bytes(self) -> int:
        """What a round holds, roughly: a closed form, where counting would take too long."""
        return 0

    @property
    def residual_tensor_bytes(self) -> int | None:
        """One tensor of the residual stream, or of attention alone one of its inputs; float32 under autocast too.

        None for a model given with --model, whose residual stream is not known.
        """
        return None

    @property
    def why_not_counted(self) -> str | None:
        """None where the case has exact counters, else one sentence why not."""
        if self.ranks is not None:
            return "these counters are of one device."
        if self.attention is None or self.user_attention is not None or self.attention in COUNTED_ATTENTION:
            return None
        return f"what {self.attention} attention fuses is unknown until it is compiled for its device."

    def why_unsupported_on_ranks(self, gpus: int) -> str | None:
        """What the ranks that were started, or the way in which they share the case, cannot do; None where nothing.

        `gpus` are those of all ranks, each counted once.
        """
        return None
