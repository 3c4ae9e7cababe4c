"""The fields that two rows must share to be comparable, one dataclass for each family of cases. No torch.

Fields have the record's order. A new field goes to the end and defaults to null, as in the rows of older records, which
therefore still join.
"""

from collections.abc import Container, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any


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
    """When a step clears the old gradients; None in phases that do not time this."""
    device: str
    model_args: str | None = None
    """`depth=3, width=192`, as given to the factory of --model."""
    model_digest: str | None = None
    """Of these arguments and of the values of a configuration, never of source; None without either."""
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
    """Of gradients in one all-reduce; None is PyTorch's default, and for what has no buckets."""
    reshard: bool | None = None
    """Whether FSDP2 frees gathered parameters after the forward pass; None for what gathers none."""
    reduce_dtype: str | None = None
    """Of gradients on their way between ranks."""


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


def optimizer_in_words(optimizer: str) -> str:
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
    """Kept, because thousands of records have thousands of rows."""
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
