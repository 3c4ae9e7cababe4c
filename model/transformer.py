"""A decoder-only Transformer language model, written op by op so that each of its kernels can be named.

Pre-norm blocks, RMSNorm, rotary embedding, causal multi-head attention, SwiGLU, untied head, no biases.
Left out: dropout, weight tying, grouped queries, key-value caching and fused operations (fused attention is an
argument), fused casts among them: under autocast each matrix casts its input, the output of a norm up to three times.

Shapes: B batch, T tokens, D model width, H heads, K head width, F feed-forward width, V vocabulary, P = K / 2 pairs.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from .attention import AttentionFunction
from .regions import region
from .sizes import ModelConfig


class TransformerLM(nn.Module):
    """int64 tokens (B, T) to logits (B, T, V).

    `checkpoint` selects the activations that the backward pass recomputes: "none", "attention", "block", or the number
    of consecutive blocks that share one checkpoint. Raises ValueError for anything else.
    """

    def __init__(self, config: ModelConfig, attention: AttentionFunction, checkpoint: str = "none") -> None:
        super().__init__()
        self.config = config
        self.blocks_per_group = blocks_per_checkpoint(checkpoint)
        rotary = RotaryEmbedding(config.head_dim, config.context_length)
        self.embedding = Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(
            Block(number, config, attention, rotary, checkpoint == "attention") for number in range(config.num_layers)
        )
        self.norm = RMSNorm(config.d_model)
        self.head = Linear(config.d_model, config.vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        with region("embedding"):
            x_BTD = self.embedding(tokens_BT)
        if self.blocks_per_group:
            blocks = list(self.blocks)  # a slice of the module would be another module
            for start in range(0, len(blocks), self.blocks_per_group):
                group = blocks[start : start + self.blocks_per_group]
                x_BTD = recomputed(run_blocks, group, x_BTD, use_reentrant=False)
        else:
            x_BTD = run_blocks(self.blocks, x_BTD)
        normed_BTD = self.norm(x_BTD)
        with region("head"):
            return self.head(normed_BTD)

    def reset_parameters(self) -> None:
        """Draw every parameter again from torch's global generator."""
        for module in self.modules():
            if isinstance(module, Linear | Embedding | RMSNorm):
                module.reset_parameters()


def blocks_per_checkpoint(checkpoint: str) -> int:
    """How many blocks share one checkpoint; 0 if no whole block is checkpointed. Raises ValueError."""
    if checkpoint in ("none", "attention"):
        return 0
    if checkpoint == "block":
        return 1
    if checkpoint.isdecimal() and int(checkpoint) >= 1:
        return int(checkpoint)
    raise ValueError(f"checkpoint is {checkpoint!r}; it must be none, attention, block or a number of blocks.")


def run_blocks(blocks: Iterable[nn.Module], x_BTD: Tensor) -> Tensor:
    for block in blocks:
        x_BTD = block(x_BTD)
    return x_BTD


class Block(nn.Module):
    """One layer; its region is named for its `number`, counted from 0."""

    def __init__(
        self,
        number: int,
        config: ModelConfig,
        attention: AttentionFunction,
        rotary: "RotaryEmbedding",
        checkpoint_attention: bool,
    ) -> None:
        super().__init__()
        self.region = f"block {number}"
        self.checkpoint_attention = checkpoint_attention
        self.attention_norm = RMSNorm(config.d_model)
        self.attention = MultiHeadAttention(config, attention, rotary)
        self.feed_forward_norm = RMSNorm(config.d_model)
        self.feed_forward = SwiGLU(config.d_model, config.d_ff)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with region(self.region):
            normed_BTD = self.attention_norm(x_BTD)
            if self.checkpoint_attention:
                attended_BTD = recomputed(self.attention, normed_BTD, use_reentrant=False)
            else:
                attended_BTD = self.attention(normed_BTD)
            x_BTD = x_BTD + attended_BTD
            return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class MultiHeadAttention(nn.Module):
    """Causal self-attention over H heads, queries and keys turned by their position."""

    def __init__(self, config: ModelConfig, attention: AttentionFunction, rotary: "RotaryEmbedding") -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention = attention
        self.rotary = rotary
        self.query = Linear(config.d_model, config.d_model)
        self.key = Linear(config.d_model, config.d_model)
        self.value = Linear(config.d_model, config.d_model)
        self.output = Linear(config.d_model, config.d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with region("attention"):
            q_BHTK = self.rotary(self.split_heads(self.query(x_BTD)))
            k_BHTK = self.rotary(self.split_heads(self.key(x_BTD)))
            v_BHTK = self.split_heads(self.value(x_BTD))
            attended_BHTK = self.attention(q_BHTK, k_BHTK, v_BHTK)
            return self.output(attended_BHTK.transpose(1, 2).flatten(start_dim=2))

    def split_heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class RotaryEmbedding(nn.Module):
    """Turn each pair of neighbouring features by an angle proportional to its position.

    Su et al., "RoFormer", 2021 (arXiv:2104.09864), equation 34, with theta 10 000. Inputs of 16 bits come out in
    float32: the product of attention casts them back, so that a cast here would only move that one.
    """

    cos_TK: Tensor
    signed_sin_TK: Tensor

    def __init__(self, head_dim: int, context_length: int, theta: float = 10_000.0) -> None:
        super().__init__()
        frequency_P = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
        angle_TP = torch.arange(context_length)[:, None] * frequency_P
        cos_TP, sin_TP = angle_TP.cos(), angle_TP.sin()
        self.register_buffer("cos_TK", interleaved(cos_TP, cos_TP), persistent=False)
        self.register_buffer("signed_sin_TK", interleaved(-sin_TP, sin_TP), persistent=False)

    def forward(self, x_BHTK: Tensor) -> Tensor:
        with region("rotary"):
            num_tokens = x_BHTK.shape[-2]
            first_BHTP, second_BHTP = x_BHTK.unflatten(-1, (-1, 2)).unbind(-1)
            swapped_BHTK = interleaved(second_BHTP, first_BHTP)
            return swapped_BHTK * self.signed_sin_TK[:num_tokens] + x_BHTK * self.cos_TK[:num_tokens]


def interleaved(first: Tensor, second: Tensor) -> Tensor:
    """(..., P) twice to (..., 2P): features of both alternate."""
    return torch.stack((first, second), dim=-1).flatten(start_dim=-2)


class SwiGLU(nn.Module):
    """Gated feed-forward layer. Shazeer, 2020 (arXiv:2002.05202), equation 6."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = Linear(d_model, d_ff)
        self.up = Linear(d_model, d_ff)
        self.down = Linear(d_ff, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with region("feed_forward"):
            gate_BTF = self.gate(x_BTD)
            silu_BTF = gate_BTF * gate_BTF.sigmoid()
            return self.down(silu_BTF * self.up(x_BTD))


class RMSNorm(nn.Module):
    """Zhang and Sennrich, 2019 (arXiv:1910.07467), equation 4, in float32; the output has the input's dtype."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight_D = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight_D)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with region("norm"):
            x_float32_BTD = x_BTD.float()
            inverse_rms_BT1 = torch.rsqrt(x_float32_BTD.pow(2).mean(-1, keepdim=True) + self.eps)
            return (self.weight_D * (x_float32_BTD * inverse_rms_BT1)).to(x_BTD.dtype)


class Linear(nn.Module):
    """A matrix without bias."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.weight_OI = nn.Parameter(torch.empty(out_width, in_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        out_width, in_width = self.weight_OI.shape
        nn.init.normal_(self.weight_OI, std=(2 / (in_width + out_width)) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_OI)


class Embedding(nn.Module):
    """A table with one row per token."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight_VD = nn.Parameter(torch.empty(vocab_size, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_VD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        # Not weight_VD[tokens_BT], whose backward pass adds in another order each time on several threads of a CPU.
        return nn.functional.embedding(tokens_BT, self.weight_VD)
