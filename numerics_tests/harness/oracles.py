"""Each part of the model in float64, straight from its definition: the reference for every comparison.

Nothing here is imported from model/: an error there must not appear on both sides. The same formulas in float32,
where `dtype` says so, are the yardstick of the rule "at most twice the error of the same precision".
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

FLOAT64 = torch.float64


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = FLOAT64) -> Tensor:
    """Zhang and Sennrich, 2019 (arXiv:1910.07467), equation 4."""
    x = x.to(dtype)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.to(dtype)


def normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(z, kappa): the row with mean 0 and variance 1, and rms(x) / sqrt(var + eps), the condition of that."""
    x = x.double()
    deviation = (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation, x.square().mean(-1, keepdim=True).sqrt() / deviation


def softmax(x: Tensor, dtype: torch.dtype = FLOAT64) -> Tensor:
    x = x.to(dtype)
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def token_losses(logits: Tensor, targets: Tensor, dtype: torch.dtype = FLOAT64) -> Tensor:
    """Negative log-likelihood of each token in nats."""
    z = logits.to(dtype)
    m = z.amax(-1, keepdim=True)
    log_sum = (z - m).exp().sum(-1).log() + m[..., 0]
    return log_sum - z.gather(-1, targets[..., None])[..., 0]


def attention(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = FLOAT64) -> Tensor:
    """Causal; each row is a convex combination of the rows of v up to its own."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    tokens, width = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(width)
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    return softmax(scores.masked_fill(future, -math.inf), dtype) @ v


def rotary(x: Tensor, positions: Tensor, dtype: torch.dtype = FLOAT64, theta: float = 10_000.0) -> Tensor:
    """Pairs of neighbours as complex numbers times e^(i position frequency): RoFormer, arXiv:2104.09864, eq. 34."""
    width = x.shape[-1]
    pairs = torch.view_as_complex(x.to(dtype).unflatten(-1, (-1, 2)).contiguous())
    exponents = torch.arange(0, width, 2, dtype=dtype, device=x.device) / width
    angles = positions.to(dtype)[:, None] * theta**-exponents
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, dtype: torch.dtype = FLOAT64) -> Tensor:
    """Shazeer, 2020 (arXiv:2002.05202), equation 6; weights (out, in)."""
    x, gate, up, down = x.to(dtype), gate.to(dtype), up.to(dtype), down.to(dtype)
    gated = x @ gate.T
    return (gated / (1 + (-gated).exp()) * (x @ up.T)) @ down.T


def adamw(
    p: Tensor, gradients: list[Tensor], lr: float, betas: tuple[float, float], eps: float, wd: float, done: int = 0
) -> Tensor:
    """Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, one step for each gradient, from moments of 0.

    `done` steps are counted before, as if their gradients had been 0 and their decay none.
    """
    p, m, v = p.double(), torch.zeros_like(p.double()), torch.zeros_like(p.double())
    for step, gradient in enumerate(gradients, start=done + 1):
        g = gradient.double()
        p = p * (1 - lr * wd)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g.square()
        p = p - lr * (m / (1 - betas[0] ** step)) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
    return p


def transformer_logits(state: Mapping[str, Tensor], tokens: Tensor, num_layers: int, num_heads: int) -> Tensor:
    """The whole language model as a function of its parameters, named as in its state_dict, in their dtype."""
    x = state["embedding.weight_VD"][tokens]
    for layer in range(num_layers):
        prefix = f"blocks.{layer}."
        weight = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        x = _block(x, weight, num_heads)
    return rms_norm(x, state["norm.weight_D"], 1e-5, x.dtype) @ state["head.weight_OI"].T


def _block(x: Tensor, weight: Mapping[str, Tensor], num_heads: int) -> Tensor:
    positions = torch.arange(x.shape[-2], device=x.device)
    normed = rms_norm(x, weight["attention_norm.weight_D"], 1e-5, x.dtype)
    q, k, v = (
        (normed @ weight[f"attention.{name}.weight_OI"].T).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    mixed = attention(rotary(q, positions, x.dtype), rotary(k, positions, x.dtype), v, x.dtype)
    x = x + mixed.transpose(1, 2).flatten(2) @ weight["attention.output.weight_OI"].T
    normed = rms_norm(x, weight["feed_forward_norm.weight_D"], 1e-5, x.dtype)
    gate, up, down = (weight[f"feed_forward.{name}.weight_OI"] for name in ("gate", "up", "down"))
    return x + swiglu(normed, gate, up, down, x.dtype)
