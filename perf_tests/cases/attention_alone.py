"""Causal attention by itself, without a model."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from perf_tests.cases.case import Case
from perf_tests.identity import AttentionIdentity
from perf_tests.limits.least_work import FLOAT32_BYTES, AttentionWork, Work
from perf_tests.options.settings import Settings
from perf_tests.own import attention as attentions
from perf_tests.own.named import from_its_repository

ATTENTION_BATCH_SIZE = 8


@dataclass(frozen=True)
class AttentionCase(AttentionIdentity, Case):
    """Causal attention alone, without heads: query, key and value of shape (batch, sequence, head width)."""

    axes: ClassVar = {
        "head_dim": "head_dims", "sequence_length": "sequence_lengths", "precision": "attention_alone_precisions",
        "attention": "attention_alone_implementations",
    }  # fmt: skip

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        values = {name: axes[name] for name in cls.axes}
        cache = "cold" if settings.cold_cache else None
        return cls(phase=phase, batch_size=ATTENTION_BATCH_SIZE, device=settings.device_type, cache=cache, **values)

    @staticmethod
    def id_of(head_dim: int, sequence_length: int, precision: str, attention: str) -> str:
        """`d64-seq1024-fp32-naive`."""
        return f"d{head_dim}-seq{sequence_length}-{precision}-{attentions.label(attention)}"

    def identity(self) -> dict[str, Any]:
        return asdict(self) | {"attention": from_its_repository(self.attention)}

    def rounds(self, settings: Settings) -> int:
        return settings.attention_alone_rounds

    @property
    def tokens(self) -> int:
        return self.batch_size * self.sequence_length

    @property
    def query_shape(self) -> tuple[int, ...]:
        return (self.batch_size, self.sequence_length, self.head_dim)

    @property
    def residual_tensor_bytes(self) -> int:
        return self.tokens * self.head_dim * FLOAT32_BYTES

    @property
    def least_bytes(self) -> int:
        """Query, key, value and output; in a backward pass also the gradients of all four."""
        return (8 if self.row.has_backward else 4) * self.residual_tensor_bytes

    @property
    def held_bytes(self) -> int:
        return 8 * self.residual_tensor_bytes + 2 * FLOAT32_BYTES * self.batch_size * self.sequence_length**2

    @property
    def work(self) -> Work:
        return AttentionWork(self.batch_size, self.sequence_length, self.head_dim)

    @property
    def built_from(self) -> tuple[Any, ...]:
        return (self.head_dim, self.sequence_length, self.attention, self.device)
