"""The model sizes by name, with closed forms of parameter count and FLOPs."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a language model, by which runs are compared, never by name. Raises ValueError if impossible."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int = 10_000
    context_length: int = 1024
    """The longest input, in tokens."""

    def __post_init__(self) -> None:
        least = {
            "d_model": self.d_model, "d_ff": self.d_ff, "num_layers": self.num_layers, "num_heads": self.num_heads,
            "vocab_size": self.vocab_size, "context_length": self.context_length,
        }  # fmt: skip
        for name, value in least.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} is not divisible by num_heads {self.num_heads}; "
                "choose a width that is a multiple of the number of heads."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"d_model {self.d_model} over {self.num_heads} heads gives the odd head width {self.head_dim}; "
                "rotary embedding turns pairs, so choose an even one."
            )

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def parameters(self) -> int:
        """Number of parameters: embedding and untied head, four attention and three feed-forward matrices, norms."""
        block = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model
        return 2 * self.vocab_size * self.d_model + self.num_layers * block + self.d_model

    def forward_flops(self, batch_size: int, context_length: int) -> int:
        """Model FLOPs of one forward pass: every matrix product at 2mnk, attention over the full T x T square.

        This is the numerator of the model FLOPs utilisation of Chowdhery et al., "PaLM", 2022, appendix B
        (arXiv:2204.02311), counted product by product, so that the embedding look-up costs nothing.
        A backward pass costs twice as much.
        """
        tokens = batch_size * context_length
        matrices = self.num_layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff)
        linear = 2 * tokens * (matrices + self.vocab_size * self.d_model)
        return linear + self.forward_attention_flops(batch_size, context_length)

    def forward_attention_flops(self, batch_size: int, context_length: int) -> int:
        """The part of them over the T x T square, of which a causal mask makes half unnecessary."""
        return 4 * batch_size * context_length**2 * self.d_model * self.num_layers

    def at_context(self, context_length: int) -> "ModelConfig":
        """The same shape for inputs of `context_length` tokens."""
        return replace(self, context_length=context_length)


SIZES = {
    #                            d_model   d_ff layers heads
    "tiny":          ModelConfig(    128,   512,     2,    4),
    "small-2layers": ModelConfig(    768,  3072,     2,   12),
    "small":         ModelConfig(    768,  3072,    12,   12),
    "medium":        ModelConfig(   1024,  4096,    24,   16),
    "large":         ModelConfig(   1280,  5120,    36,   20),
    "xl":            ModelConfig(   1600,  6400,    48,   25),
    "2.7B":          ModelConfig(   2560, 10240,    32,   32),
    "10B":           ModelConfig(   4608, 12288,    50,   36),
}  # fmt: skip
"""Every known size, smallest first; `tiny` is for smoke tests, `small-2layers` for the gate. A new one is one line."""
