"""Lower bounds of a pass: arithmetic, traffic and resident bytes.

A figure below a bound is wrong. A bound omits what some implementation might avoid. No torch, no tensors.
"""

from dataclasses import dataclass

from model.sizes import SIZES, ModelConfig
from perf_tests.phases import phase_named

# Rooms without torch take the model's shapes from here.
__all__ = ["FLOAT32_BYTES", "SIZES", "AttentionWork", "ModelConfig", "ModelWork", "Work", "saved_bytes"]

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelWork:
    """A language model's pass over `batch_size` sequences of `context_length` tokens."""

    size: str
    config: ModelConfig
    batch_size: int
    context_length: int

    def describe(self) -> str:
        return f"{self.size or 'model'} ctx {self.context_length} batch {self.batch_size}"

    def least_flops(self, phase: str, leaves_masked_half: bool) -> int | None:
        """Multiplications and additions in matrix products; None for a phase without known ones."""
        flops = self.config.forward_flops(self.batch_size, self.context_length)
        if leaves_masked_half:
            flops -= self.config.forward_attention_flops(self.batch_size, self.context_length) // 2
        return _of_phase(phase, flops)

    def least_resident_bytes(self, phase: str) -> int | None:
        """Bytes on the device at once: weights in fp32, in a backward pass their gradients.

        Without AdamW's moments, which do not exist before the first step.
        """
        row = phase_named(phase)
        if row is None:
            return None
        per_parameter = 2 if row.has_backward else 1
        return per_parameter * FLOAT32_BYTES * self.config.parameters


@dataclass(frozen=True)
class AttentionWork:
    """Attention without heads over (batch, sequence, head width)."""

    batch_size: int
    sequence_length: int
    head_dim: int

    def describe(self) -> str:
        return f"attention d {self.head_dim} seq {self.sequence_length} batch {self.batch_size}"

    def least_flops(self, phase: str, leaves_masked_half: bool) -> int | None:
        flops = 4 * self.batch_size * self.sequence_length**2 * self.head_dim
        return _of_phase(phase, flops // 2 if leaves_masked_half else flops)

    def least_resident_bytes(self, phase: str) -> int | None:
        return None


Work = ModelWork | AttentionWork


def saved_bytes(config: ModelConfig, batch_size: int, length: int) -> int:
    """fp32 tensors that autograd keeps of any eager pass.

    By block: a T x T matrix per head; in the width of the model the inputs of both norms, of the products before and
    after attention and of the feed-forward, and query, key and value; in that of the feed-forward the gate, its
    activation, the up projection and their product.
    """
    square = batch_size * config.num_heads * length**2
    rows = batch_size * length * (8 * config.d_model + 4 * config.d_ff)
    return config.num_layers * (square + rows) * FLOAT32_BYTES


def _of_phase(phase: str, forward_flops: int) -> int | None:
    row = phase_named(phase)
    return None if row is None or row.forward_multiple is None else row.forward_multiple * forward_flops
