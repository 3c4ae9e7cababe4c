"""The phases, one row each: what its set-up runs, what is timed, and what follows. No torch."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from typing import Any

LANGUAGE_MODEL, ATTENTION_ALONE, COLLECTIVE_ALONE = "language model", "attention alone", "collective alone"

FORWARD_PASSES = {"inference": 1, "forward": 1, "backward": 2}
"""FLOPs of a part over those of a forward pass: backward, each product costs one product for each of its inputs."""

ZERO_GRAD = ("before-forward", "after-forward", "before-step")
"""The moments at which a full step may clear gradients, as `model.training` says; earlier revisions of it know the
first alone."""

SHORT_PARTS = ("zero_grad", "loss")
"""Parts with little of a step's time."""


@dataclass(frozen=True)
class Phase:
    """Its parts: `zero_grad`, `inference` (forward without a graph), `forward`, `loss`, `backward`, `optimizer`."""

    name: str
    family: str
    setup: tuple[str, ...]
    """Parts that run before the clock starts, in every round."""
    timed: tuple[str, ...]
    published_as: str = ""
    """Its name in published tables, if not `label`."""
    is_timed: bool = True
    """Whether benchmarks time it; the others are examined by the memory pass alone."""

    @property
    def label(self) -> str:
        """The name in `--phase` and in tables, the same for both families."""
        return self.name.removeprefix("attention_")

    @property
    def parts(self) -> tuple[str, ...]:
        """Everything that a round computes; the round's peak is the highest of theirs."""
        return tuple(part for part in (*self.setup, *self.timed) if part != "zero_grad")

    @cached_property
    def main_parts(self) -> tuple[str, ...]:
        """Timed parts with most of the time."""
        return tuple(part for part in self.timed if part not in SHORT_PARTS)

    @cached_property
    def forward_multiple(self) -> int | None:
        """FLOPs of the timed parts over those of a forward pass; None without matrix products."""
        return sum(FORWARD_PASSES.get(part, 0) for part in self.timed) or None

    @property
    def records_graph(self) -> bool:
        return "inference" not in self.parts

    @property
    def has_backward(self) -> bool:
        return "backward" in self.parts

    @property
    def is_backward(self) -> bool:
        """Whether only a backward pass is timed, which another thread launches."""
        return self.timed == ("backward",)

    @property
    def holds_logits(self) -> bool:
        """Whether the logits live until the end of the round; those of a set-up are freed when it returns."""
        return "forward" in self.timed and "backward" in self.timed

    @property
    def trains(self) -> bool:
        """Whether a round updates the weights."""
        return "optimizer" in self.parts

    @property
    def setup_computes(self) -> bool:
        """Whether the set-up does more than clear gradients."""
        return any(part != "zero_grad" for part in self.setup)


_FORWARD = ("forward", "loss")
_STEP = ("zero_grad", "forward", "loss", "backward", "optimizer")

FIRST_STEP, FULL_STEP = "first_step", "full_step"
"""The step that makes the optimizer's state, and every later one, which finds it."""

EXAMINED = {
    phase.name: phase
    for phase in (
        Phase("inference", LANGUAGE_MODEL, (), ("inference",)),
        Phase("forward", LANGUAGE_MODEL, (), ("forward",)),
        Phase("backward", LANGUAGE_MODEL, ("zero_grad", *_FORWARD), ("backward",)),
        Phase("forward_backward", LANGUAGE_MODEL, ("zero_grad",), (*_FORWARD, "backward"), published_as="fwd_bwd"),
        Phase("optimizer", LANGUAGE_MODEL, ("zero_grad", *_FORWARD, "backward"), ("optimizer",)),
        Phase(FIRST_STEP, LANGUAGE_MODEL, (), _STEP, is_timed=False),
        Phase(FULL_STEP, LANGUAGE_MODEL, (), _STEP),
        Phase("attention_forward", ATTENTION_ALONE, (), ("forward",)),
        Phase("attention_backward", ATTENTION_ALONE, ("zero_grad", "forward"), ("backward",)),
        Phase("collective", COLLECTIVE_ALONE, (), ("collective",)),
    )
}
"""What is measured, by name, in the order of a training step."""

PHASES = {name: phase for name, phase in EXAMINED.items() if phase.is_timed}
"""What is timed."""

LABELS = tuple(dict.fromkeys(phase.label for phase in PHASES.values() if phase.family != COLLECTIVE_ALONE))
"""What `--phase` selects; a collective has no phases."""

PHASES_OF_OTHERS = {
    "backward_and_optimizer": Phase(
        "backward_and_optimizer", LANGUAGE_MODEL, ("zero_grad", *_FORWARD), ("backward", "optimizer"),
        published_as="backward+optimizer",
    ),
    "attention_forward_backward": Phase(
        "attention_forward_backward", ATTENTION_ALONE, ("zero_grad",), ("forward", "backward"),
    ),
}  # fmt: skip
"""Phases of published tables that this suite does not measure."""


def phases_of(family: str) -> tuple[Phase, ...]:
    """Phases that are timed."""
    return tuple(phase for phase in PHASES.values() if phase.family == family)


def phase_named(name: str) -> Phase | None:
    """The phase of this name, published ones included; None if there is none."""
    return PHASES.get(name) or PHASES_OF_OTHERS.get(name)


def label_of(name: str) -> str:
    """The label of a phase; an unknown name unchanged."""
    return EXAMINED[name].label if name in EXAMINED else name


def place_of(name: str) -> tuple[bool, int]:
    """Sort key of measuring and showing: phases that leave the weights alone first, unknown ones last."""
    if name not in EXAMINED:
        return True, len(EXAMINED)
    return EXAMINED[name].trains, list(EXAMINED).index(name)


# The fields that two rows must share to be comparable, one dataclass for each family of cases. No torch.
#
# Fields have the record's order. A new field goes to the end and defaults to null, as in the rows of older records,
# which therefore still join.


@dataclass(frozen=True)
class LanguageModelIdentity:
    """One phase of training one language model."""

    phase: str
    model: str
    size: str
    d_model: int | None
    """This and the next three are null where a model of one's own takes or names none."""
    d_ff: int | None
    num_layers: int | None
    num_heads: int | None
    vocab_size: int
    context_length: int
    batch_size: int
    precision: str
    attention: str
    execution: str
    checkpoint: str
    optimizer: str | None
    """AdamW's implementation, or `examples/muon.py:build`, a factory of one's own; None in phases without a step."""
    zero_grad_policy: str | None
    """The moment at which a step clears the old gradients; None in phases that do not time this."""
    device: str
    model_args: str | None = None
    """`depth=3, width=192`, as given to the factory of --model."""
    model_digest: str | None = None
    """The digest of these arguments and of the values of a configuration, never of source; None without either."""
    parallel: str | None = None
    """How ranks share the model; this and all that follow are None on one device."""
    world: int | None = None
    """Ranks of the case."""
    nodes: int | None = None
    mesh: str | None = None
    """`data=2`: the dimensions of the ranks with their sizes."""
    backend: str | None = None
    """`gloo` or `nccl`."""
    scaling: str | None = None
    """`strong`: the ranks divide `batch_size`; `weak`: each has as much."""
    global_batch_size: int | None = None
    per_rank_batch_size: int | None = None
    bucket_bytes: int | None = None
    """Bytes of gradients in one all-reduce; None is PyTorch's default, and for what has no buckets."""
    reshard: bool | None = None
    """Whether FSDP2 frees gathered parameters after the forward pass; None for what gathers none."""
    reduce_dtype: str | None = None
    """The dtype of gradients on their way between ranks."""


@dataclass(frozen=True)
class AttentionIdentity:
    """One phase of causal attention alone."""

    phase: str
    head_dim: int
    sequence_length: int
    batch_size: int
    precision: str
    attention: str
    device: str
    cache: str | None = None
    """`cold` where the last-level cache is flushed before each measured round; None where it is left as it is."""


@dataclass(frozen=True)
class CollectiveIdentity:
    """One exchange between ranks, without a model."""

    phase: str
    collective: str
    message_bytes: int
    """Held before an all-reduce or reduce-scatter, or after an all-gather."""
    world: int
    nodes: int
    backend: str
    """`gloo` or `nccl`."""
    dtype: str
    device: str


FAMILIES = (LanguageModelIdentity, AttentionIdentity, CollectiveIdentity)

Identity = type[LanguageModelIdentity] | type[AttentionIdentity] | type[CollectiveIdentity]

OF_RANKS = ("world", "nodes", "bucket_bytes")
"""Counts of which fewer may need more memory: fewer ranks share it."""

DIMENSIONS = {field.name for family in FAMILIES for field in fields(family)
              if field.type in (int, int | None)} - set(OF_RANKS)  # fmt: skip
"""Fields whose smaller values need no more memory."""

OF_A_PHASE = ("phase", "optimizer", "zero_grad_policy")
"""Fields that may differ between the phases of one configuration."""


def optimizer_label(optimizer: str) -> str:
    return f"optimizer {optimizer}" if ":" in optimizer else f"AdamW {optimizer}"


def is_attention(names: Container[str]) -> bool:
    """Whether a row's fields or a benchmark's axes are of attention alone."""
    return "head_dim" in names


def is_collective(names: Container[str]) -> bool:
    """Whether they are of a collective alone."""
    return "collective" in names


def family_of(values: Mapping[str, Any]) -> Identity:
    if is_collective(values):
        return CollectiveIdentity
    return AttentionIdentity if is_attention(values) else LanguageModelIdentity


def identity_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """The identity among a row's values; missing fields are null."""
    family: Any = family_of(values)  # mypy takes a dataclass for unhashable
    return {name: values.get(name) for name in _names_of(family)}


@cache
def _names_of(family: Identity) -> list[str]:
    """Names, kept because thousands of records have thousands of rows."""
    return [field.name for field in fields(family)]


def has_identity(values: Mapping[str, Any]) -> bool:
    """Whether all fields without a default are there."""
    return all(field.name in values for field in fields(family_of(values)) if field.default is MISSING)


def identity_from(family: Identity, *sources: object) -> dict[str, Any]:
    """Each field from the first of `sources` that has it, else null."""
    return {
        field.name: next((getattr(source, field.name) for source in sources if hasattr(source, field.name)), None)
        for field in fields(family)
    }


# What every verb returns to the shell, and what ends one early; argparse returns 2 for a usage error by itself.


FINE = 0
FINDINGS = 1
USAGE = 2
UNREADABLE = 3
"""Input that cannot be read or compared, or of which nothing can be judged."""
INTERRUPTED = 130
"""A shell's own after Ctrl-C."""
STOPPED = 255
"""Stops `git bisect run`, which takes smaller codes, Python's own for an error too, for a bad commit."""


class RefusalError(Exception):
    """One sentence for the user, which goes to standard error, so that `--json` leaves only JSON on the other."""

    exit_code = UNREADABLE

    @classmethod
    @contextmanager
    def instead_of(cls, error: type[Exception]) -> Iterator[None]:
        """Raise this with the sentence of such an error where the block raises one."""
        try:
            yield
        except error as raised:
            raise cls(raised) from raised


class UsageError(RefusalError):
    """A choice that cannot be met, or an output that cannot be written."""

    exit_code = USAGE


class InterruptedByUserError(RefusalError):
    """Ctrl-C, after what was begun is undone."""

    exit_code = INTERRUPTED
