"""What a pass cannot do without: arithmetic, traffic and resident bytes as lower bounds.

A figure below a bound is wrong. A bound leaves out whatever some implementation might avoid. No torch, no tensors.
"""

from dataclasses import dataclass

from model.sizes import SIZES, ModelConfig

# Shapes come from here for those who read files and must not import a model.
__all__ = ["FLOAT32_BYTES", "FORWARD_MULTIPLES", "SIZES", "AttentionWork", "ModelConfig", "ModelWork", "Work"]

FORWARD_MULTIPLES = {
    "inference": 1,
    "forward": 1,
    "backward": 2,
    "backward_and_optimizer": 2,
    "forward_backward": 3,
    "full_step": 3,
    "attention_forward": 1,
    "attention_backward": 2,
}
"""FLOPs of a phase over those of its forward pass: going back, each product costs one for each of its two inputs."""

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelWork:
    """A language model's pass over `batch_size` sequences of `context_length` tokens."""

    size: str
    config: ModelConfig
    batch_size: int
    context_length: int

    def describe(self) -> str:
        """In words for a person, without the phase."""
        return f"{self.size or 'model'} ctx {self.context_length} batch {self.batch_size}"

    def least_flops(self, phase: str, leaves_masked_half: bool) -> int | None:
        """Multiplications and additions in matrix products; None for a phase without any that is known here."""
        if phase not in FORWARD_MULTIPLES:
            return None
        flops = self.config.forward_flops(self.batch_size, self.context_length)
        if leaves_masked_half:
            flops -= self.config.forward_attention_flops(self.batch_size, self.context_length) // 2
        return FORWARD_MULTIPLES[phase] * flops

    def least_traffic_bytes(self, phase: str, element_bytes: int, cache_bytes: int) -> int | None:
        """Bytes that an unfused pass moves between memory and a cache of this size; None: nothing is sure."""
        return None

    def least_resident_bytes(self, phase: str) -> int | None:
        """Bytes on the device at once: weights in fp32, and going back their gradients.

        Not AdamW's moments: a first step has none before it.
        """
        per_parameter = 1 if phase in ("inference", "forward") else 2
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
        if phase not in FORWARD_MULTIPLES:
            return None
        flops = 4 * self.batch_size * self.sequence_length**2 * self.head_dim
        return FORWARD_MULTIPLES[phase] * (flops // 2 if leaves_masked_half else flops)

    def least_traffic_bytes(self, phase: str, element_bytes: int, cache_bytes: int) -> int | None:
        """Scores written and read, probabilities written and read; going back as much for their gradients.

        Of each pass over the square at most one cache full stays in the cache.
        """
        if phase not in ("attention_forward", "attention_backward"):
            return None
        square_bytes = self.batch_size * self.sequence_length**2 * element_bytes
        return 4 * max(square_bytes - cache_bytes, 0)

    def least_resident_bytes(self, phase: str) -> int | None:
        return None


Work = ModelWork | AttentionWork
"""The shape of what is computed, and its lower bounds."""
