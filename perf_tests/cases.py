"""What one benchmark measures: a frozen case with id and identity, and the grids that the options select."""

from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, ClassVar, Self

import torch

from model.attention import ATTENTION
from model.sizes import ModelConfig
from model.training import optimizer_that_runs
from perf_tests.identity import (
    AttentionIdentity,
    CollectiveIdentity,
    LanguageModelIdentity,
    identity_from,
    is_attention,
    is_collective,
)
from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.options.settings import Settings
from perf_tests.options.shapes import shape_named, size_label
from perf_tests.options.table import CUDA_GRAPH_EXECUTIONS
from perf_tests.own import attention as attentions
from perf_tests.own.hugging_face import is_configuration
from perf_tests.own.model import OwnModel, configured_shape
from perf_tests.own.named import from_its_repository
from perf_tests.own.optimizer import OwnOptimizer, own_optimizer
from perf_tests.phases import (
    ATTENTION_ALONE,
    COLLECTIVE_ALONE,
    EXAMINED,
    FIRST_STEP,
    FULL_STEP,
    LANGUAGE_MODEL,
    PHASES,
    Phase,
    phases_of,
)
from perf_tests.ranks.sharing import Sharing, nodes_of, why_too_few

DEFAULT_ZERO_GRAD = "before-forward"

ATTENTION_BATCH_SIZE = 8

CUDA_GRAPH_WARMUP_ROUNDS = 3
"""The first compiles, the second records the graphs, the third replays them."""


class _OfAPhase(ABC):
    """What follows from the phase of a case."""

    phase: str
    axes: ClassVar[dict[str, str]]
    """The parameters of its benchmark, each with the field of `Settings` that holds their values."""

    @classmethod
    def grid(cls, settings: Settings) -> list[tuple[Any, ...]]:
        """Values of the axes, smallest case first."""
        return list(product(*(getattr(settings, field) for field in cls.axes.values())))

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Every field that two rows must share to be comparable, flat."""

    @property
    @abstractmethod
    def forward_flops(self) -> int:
        """2mnk of every product of one forward pass, over the full T x T square."""

    @property
    def row(self) -> Phase:
        return EXAMINED[self.phase]

    @property
    def replays_cuda_graphs(self) -> bool:
        """Whether its warm-up records CUDA graphs, which its measured rounds replay."""
        return False

    @property
    def fewest_warmup_rounds(self) -> int:
        return CUDA_GRAPH_WARMUP_ROUNDS if self.replays_cuda_graphs else 0

    @property
    def model_flops(self) -> int | None:
        """Model FLOPs of one round, over the full T x T square; None for a phase without matrix products.

        Raises TypeError for a model of the user's own.
        """
        multiple = self.row.forward_multiple
        return None if multiple is None else multiple * self.forward_flops


@dataclass(frozen=True)
class LanguageModelCase(_OfAPhase):
    """One phase of training one language model."""

    phase: str
    size: str
    config: ModelConfig
    context_length: int
    batch_size: int
    precision: str
    attention: str
    execution: str
    checkpoint: str
    optimizer: str | None
    """How AdamW runs, or a factory of the user's as typed; None in phases without a step."""
    device: str
    model: str
    model_arguments: tuple[str, ...] = ()
    zero_grad: str = DEFAULT_ZERO_GRAD
    """When a step clears gradients, as typed."""
    holds_former_pass: bool = False
    """Whether the user's loop still holds the outputs of the pass before; the suite's own never does."""
    sharing: Sharing | None = None
    """How ranks share it; None on one device."""
    axes: ClassVar = {
        "model_size": "sizes", "context_length": "contexts", "precision": "precisions", "attention": "attentions",
        "execution": "executions", "checkpoint": "checkpoints", "batch_size": "batch_sizes", "parallel": "parallels",
    }  # fmt: skip

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        """The case of one parametrized test."""
        optimizer = optimizer_that_runs(settings.optimizer, torch.device(settings.device))
        return cls(
            phase=phase,
            size=size_label(axes["model_size"]),
            config=config_of(own_model(settings), axes["model_size"], axes["context_length"], settings.vocab_size),
            batch_size=axes.get("batch_size") or settings.batch_sizes[0],
            optimizer=optimizer if EXAMINED[phase].trains else None,
            device=settings.device_type,
            model=settings.model or "ours",
            model_arguments=settings.model_arguments,
            zero_grad=settings.zero_grad if "zero_grad" in EXAMINED[phase].timed else DEFAULT_ZERO_GRAD,
            sharing=None if axes.get("parallel") is None else Sharing.of(axes["parallel"]),
            **{name: axes[name] for name in cls.axes if name not in ("model_size", "batch_size", "parallel")},
        )

    @classmethod
    def grid(cls, settings: Settings) -> list[tuple[Any, ...]]:
        """Without attention compiled by itself inside a compiled model; the batch is None where there is only one."""
        compiled = {name for name, attention in ATTENTION.items() if attention.is_compiled}
        if len(settings.batch_sizes) == 1:
            settings = replace(settings, batch_sizes=(None,))  # type: ignore[arg-type]
        return [values for values in super().grid(settings) if values[4] == "eager" or values[3] not in compiled]

    @staticmethod
    def id_of(
        size: str,
        context: int,
        precision: str,
        attention: str,
        execution: str = "eager",
        checkpoint: str = "none",
        batch_size: int | None = None,
        parallel: str | None = None,
    ) -> str:
        """`small-ctx128-bf16-naive`; an axis at its default adds nothing, so that a new axis renames no old case.

        The id joins a case to its rows in older records: a changed id breaks every comparison of the case. The only
        batch of a run, None, adds nothing either.
        """
        parts = [size_label(size), f"ctx{context}", precision, attentions.label(attention)]
        if execution != "eager":
            parts.append("compiled-model" if execution == "compiled" else execution)
        if checkpoint != "none":
            parts.append(f"checkpoint-{checkpoint}")
        if batch_size not in (None, 4):
            parts.append(f"batch{batch_size}")
        if parallel is not None:
            parts.append(parallel)
        return "-".join(parts)

    def identity(self) -> dict[str, Any]:
        known = identity_from(LanguageModelIdentity, self, self.config, self.sharing)
        if self.own_optimizer is not None:
            known["optimizer"] = self.own_optimizer.in_identity
        if self.own is None:
            return known | {"attention": from_its_repository(self.attention)}
        return known | self.own.in_identity | self.own.shape(self.config)

    @property
    def own(self) -> OwnModel | None:
        """The user's model; None for ours."""
        return None if self.model == "ours" else OwnModel(self.model, self.model_arguments)

    @property
    def own_optimizer(self) -> OwnOptimizer | None:
        """The user's; None for AdamW, and in phases without a step."""
        return own_optimizer(self.optimizer)

    @property
    def zero_grad_policy(self) -> str | None:
        """As records spell it."""
        return f"set_to_none_{self.zero_grad.replace('-', '_')}" if "zero_grad" in self.row.timed else None

    @property
    def updates(self) -> bool:
        """Whether a round changes the weights: a step that has just cleared its gradients updates nothing."""
        return self.row.trains and not ("zero_grad" in self.row.timed and self.zero_grad == "before-step")

    @property
    def replays_cuda_graphs(self) -> bool:
        return self.execution in CUDA_GRAPH_EXECUTIONS

    @property
    def tokens(self) -> int:
        """Of a round, on all ranks together."""
        return (self.global_batch_size or self.batch_size) * self.context_length

    @property
    def global_batch_size(self) -> int | None:
        if self.sharing is None:
            return None
        return self.batch_size * (self.sharing.world if self.sharing.scaling == "weak" else 1)

    @property
    def per_rank_batch_size(self) -> int | None:
        return None if self.sharing is None else (self.global_batch_size or 0) // self.sharing.world

    @property
    def backend(self) -> str | None:
        """What carries bytes between its ranks."""
        return None if self.sharing is None else backend_of(self.device)

    @property
    def forward_flops(self) -> int:
        if self.own is not None:
            raise TypeError(f"what {self.model} computes is counted, not known in closed form.")
        return self.config.forward_flops(self.global_batch_size or self.batch_size, self.context_length)

    @property
    def built_from(self) -> tuple[Any, ...]:
        """Cases with equal values share one model."""
        return (self.own, self.config, self.attention, self.execution, self.checkpoint, self.device, self.sharing)


@dataclass(frozen=True)
class AttentionCase(AttentionIdentity, _OfAPhase):
    """Causal attention alone, without heads: query, key and value of shape (8, sequence, head width)."""

    axes: ClassVar = {
        "head_dim": "head_dims", "sequence_length": "sequence_lengths", "precision": "attention_alone_precisions",
        "attention": "attention_alone_implementations",
    }  # fmt: skip

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        """The case of one parametrized test."""
        values = {name: axes[name] for name in cls.axes}
        cache = "cold" if settings.cold_cache else None
        return cls(phase=phase, batch_size=ATTENTION_BATCH_SIZE, device=settings.device_type, cache=cache, **values)

    @staticmethod
    def id_of(head_dim: int, sequence_length: int, precision: str, attention: str) -> str:
        """`d64-seq1024-fp32-naive`."""
        return f"d{head_dim}-seq{sequence_length}-{precision}-{attentions.label(attention)}"

    def identity(self) -> dict[str, Any]:
        return asdict(self) | {"attention": from_its_repository(self.attention)}

    @property
    def tokens(self) -> int:
        return self.batch_size * self.sequence_length

    @property
    def forward_flops(self) -> int:
        return 4 * self.batch_size * self.sequence_length**2 * self.head_dim

    @property
    def built_from(self) -> tuple[Any, ...]:
        """Cases with equal values are measured side by side."""
        return (self.head_dim, self.sequence_length, self.attention, self.device)


@dataclass(frozen=True)
class CollectiveCase(CollectiveIdentity, _OfAPhase):
    """One exchange between ranks, in float32."""

    axes: ClassVar = {"collective": "collectives", "message_bytes": "message_sizes", "world": "worlds"}
    precision: ClassVar = "fp32"
    attention: ClassVar = ""
    """It has none; the plan of a run asks every case."""

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        """The case of one parametrized test."""
        device, values = settings.device_type, {name: axes[name] for name in cls.axes}
        nodes, backend = nodes_of(axes["world"]), backend_of(device)
        return cls(phase=phase, nodes=nodes, backend=backend, dtype="float32", device=device, **values)

    @staticmethod
    def id_of(collective: str, message_bytes: int, world: int) -> str:
        """`all_reduce-1MB-world2`."""
        return f"{collective}-{in_round_units(message_bytes)}-world{world}"

    def identity(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def elements_of_a_rank(self) -> int:
        """Of a message that all ranks share evenly: what does not divide is left out, as in nccl-tests."""
        return self.message_bytes // (FLOAT32_BYTES * self.world)

    @property
    def exchanged_bytes(self) -> int:
        return FLOAT32_BYTES * self.world * self.elements_of_a_rank

    @property
    def forward_flops(self) -> int:
        return 0

    @property
    def tokens(self) -> None:
        """It trains on none."""

    @property
    def built_from(self) -> tuple[Any, ...]:
        """Cases with equal values are measured side by side."""
        return (self.collective, self.world, self.device)

    def why_unsupported(self, gpus: int) -> str | None:
        """One sentence with the next step; None where the ranks that were started can run it."""
        if self.elements_of_a_rank == 0:
            return (
                f"{self.message_bytes} bytes are less than a float32 for each of {self.world} ranks; choose "
                f"--message-size {FLOAT32_BYTES * self.world}B or more."
            )
        return why_too_few(self.world, self.device, gpus)


def in_round_units(count: int) -> str:
    """`1MB`, `64KiB`: bytes as `--message-size` takes them, in the largest unit that divides them."""
    units = (("GB", 10**9), ("GiB", 2**30), ("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10))
    return next((f"{count // unit}{name}" for name, unit in units if count % unit == 0), f"{count}B")


def backend_of(device: str) -> str:
    """What carries bytes between ranks."""
    return "nccl" if device == "cuda" else "gloo"


Case = LanguageModelCase | AttentionCase | CollectiveCase

FAMILIES = (LanguageModelCase, AttentionCase, CollectiveCase)


def family_of(names: Container[str]) -> type[Case]:
    """The cases whose axes or identity have these names."""
    if is_collective(names):
        return CollectiveCase
    return AttentionCase if is_attention(names) else LanguageModelCase


def sharing_of(case: Case | None) -> Sharing | None:
    """How ranks share its model; None on one device, and for a case without a model."""
    return case.sharing if isinstance(case, LanguageModelCase) else None


def world_of(case: Case | None) -> int | None:
    """How many ranks run it together; None on one device."""
    if isinstance(case, CollectiveCase):
        return case.world
    sharing = sharing_of(case)
    return None if sharing is None else sharing.world


def own_model(settings: Settings) -> OwnModel | None:
    return None if settings.model is None else OwnModel(settings.model, settings.model_arguments)


def config_of(own: OwnModel | None, size: str, context_length: int, vocab_size: int | None = None) -> ModelConfig:
    """What a case of this size asks its model for. Raises OwnModelError for a configuration that is none."""
    if own is not None and is_configuration(own.name):
        return configured_shape(own, context_length)
    config = shape_named(size).at_context(context_length)
    return config if vocab_size is None else replace(config, vocab_size=vocab_size)


def chosen_phases(settings: Settings) -> set[str]:
    """Names of the phases that `--phase` selects, and every collective, where the family's grid is not empty."""
    families = {
        family
        for family, axis in (
            (LANGUAGE_MODEL, settings.parallels), (ATTENTION_ALONE, settings.head_dims),
        ) if axis
    }  # fmt: skip
    chosen = {phase.name for phase in PHASES.values() if phase.label in settings.phases and phase.family in families}
    return chosen | ({phase.name for phase in phases_of(COLLECTIVE_ALONE)} if settings.collectives else set())


def examined_phases(settings: Settings) -> set[str]:
    """The same and, with the full step, the first one, which the memory pass examines."""
    chosen = chosen_phases(settings)
    return chosen | {FIRST_STEP} if FULL_STEP in chosen else chosen


def is_inside(identity: dict[str, Any], settings: Settings) -> bool:
    """Whether the axes of this run contain the case of an older row."""
    if identity.get("phase") not in examined_phases(settings) or identity.get("device") != settings.device_type:
        return False
    in_rows = from_its_repository
    model = in_rows(settings.model or "ours")
    values = {**identity, "model_size": identity.get("size"), "parallel": Sharing.label_in(identity)}
    settings = replace(
        settings,
        sizes=tuple(map(size_label, settings.sizes)),
        attentions=tuple(map(in_rows, settings.attentions)),
        attention_alone_implementations=tuple(map(in_rows, settings.attention_alone_implementations)),
    )
    axes = family_of(identity).axes
    return identity.get("model", model) == model and all(values[name] in getattr(settings, axes[name]) for name in axes)


def selectable_cases(settings: Settings) -> int:
    """How many cases the axes span."""
    chosen = [PHASES[name] for name in chosen_phases(settings)]
    grids = {
        LANGUAGE_MODEL: LanguageModelCase.grid(settings),
        ATTENTION_ALONE: AttentionCase.grid(settings),
        COLLECTIVE_ALONE: CollectiveCase.grid(settings),
    }
    return sum(len(grids[phase.family]) for phase in chosen)
