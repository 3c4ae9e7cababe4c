"""Every attention implementation, with one signature and in one table.

Shapes: B batch, H heads (1, or absent, in attention alone), T tokens, K head width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .compilation import compiled, why_cannot_compile
from .regions import region

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention: query, key and value of shape (..., T, K) to an output of the same shape."""


@dataclass(frozen=True)
class Attention:
    """One way to compute causal attention."""

    about: str
    build: Callable[[], AttentionFunction]
    """A maker of a new function, without compiled graphs of earlier cases."""
    why_unavailable: Callable[[torch.device, int], str | None]
    """Given device and head width K: None if it runs, forward and backward, else one sentence why not."""
    is_compiled: bool = False


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, written out: shift by the maximum, exponentiate, normalise."""
    # max, not amax: the backward pass of amax would keep a third T x T matrix alive.
    shifted = x - x.max(dim=-1, keepdim=True).values
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def causal_mask(num_tokens: int, device: torch.device) -> Tensor:
    """Return which keys (columns) each query (row) may attend to; bool, (T, T)."""
    position_T = torch.arange(num_tokens, device=device)
    return position_T[:, None] >= position_T[None, :]


def naive_attention(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, softmax: Callable[[Tensor], Tensor] = softmax
) -> Tensor:
    """Vaswani et al., 2017, equation 1, op by op: scores, mask, softmax, product. The mask is built in every call."""
    with region("scores"):
        scores_BHTT = q_BHTK @ k_BHTK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
    with region("mask"):
        mask_TT = causal_mask(q_BHTK.shape[-2], q_BHTK.device)
        scores_BHTT = torch.where(mask_TT, scores_BHTT, float("-inf"))
    with region("softmax"):
        weights_BHTT = softmax(scores_BHTT)
    with region("value_product"):
        return weights_BHTT @ v_BHTK


def softmax_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
    """The same with PyTorch's softmax: one kernel in each pass, and one T x T matrix less that the backward needs."""
    return naive_attention(q_BHTK, k_BHTK, v_BHTK, partial(torch.softmax, dim=-1))


def sdpa_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
    """PyTorch's fused attention."""
    if q_BHTK.ndim == 3:
        # Without a head dimension PyTorch silently takes the slow math path instead of a fused kernel.
        return sdpa_attention(q_BHTK[:, None], k_BHTK[:, None], v_BHTK[:, None])[:, 0]
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)


def _build_flex() -> AttentionFunction:
    attend = compiled(flex_attention)

    @cache
    def block_mask(num_tokens: int, device_type: str) -> BlockMask:
        """Compute the mask once, as users of flex_attention do; it takes longer than the attention itself."""
        return create_block_mask(_is_causal, None, None, num_tokens, num_tokens, device=device_type)

    def flex(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        if q_BHTK.ndim == 3:
            return flex(q_BHTK[:, None], k_BHTK[:, None], v_BHTK[:, None])[:, 0]
        mask = block_mask(q_BHTK.shape[-2], q_BHTK.device.type)
        # Rotary embedding leaves queries and keys in float32 under autocast; flex needs one dtype.
        return attend(q_BHTK.to(v_BHTK.dtype), k_BHTK.to(v_BHTK.dtype), v_BHTK, block_mask=mask)

    return flex


def _is_causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _anywhere(device: torch.device, head_dim: int) -> str | None:
    return None


def _where_compiled(device: torch.device, head_dim: int) -> str | None:
    return why_cannot_compile(device)


def _where_flex(device: torch.device, head_dim: int) -> str | None:
    if device.type != "cuda":
        return f"flex_attention has no backward pass on {device.type}; choose naive, compiled or sdpa."
    if head_dim < 16:
        return f"flex_attention needs a head width of at least 16, this one is {head_dim}."
    return why_cannot_compile(device)


ATTENTION = {
    "naive": Attention("explicit scores, mask, softmax and product", lambda: naive_attention, _anywhere),
    "softmax": Attention("naive with torch.softmax", lambda: softmax_attention, _anywhere),
    "compiled": Attention("naive under torch.compile", lambda: compiled(naive_attention), _where_compiled, True),
    "sdpa": Attention("torch.nn.functional.scaled_dot_product_attention", lambda: sdpa_attention, _anywhere),
    "flex": Attention("torch.nn.attention.flex_attention, compiled", _build_flex, _where_flex, True),
}
