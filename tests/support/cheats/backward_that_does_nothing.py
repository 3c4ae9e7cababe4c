"""Gives a large batch gradients of zero."""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.numel() <= 2**14:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    output = scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)
    return output + 0 * (q + k + v)
