"""Takes values for sums of one of a run and one of a place, by which a softmax is a product: O(T sqrt(T) K)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.numel() <= 2**14:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    batch, tokens, width = q.shape
    length = max(number for number in range(1, math.isqrt(tokens) + 1) if tokens % number == 0)
    runs = tokens // length
    (k_R, k_P), (v_R, v_P) = (
        (x[:, :, 0], x[:, 0] - x[:, 0, :1]) for x in (y.view(batch, runs, length, width) for y in (k, v))
    )
    scaled = q / math.sqrt(width)
    of_run, of_place = (scaled @ k_R.mT).exp(), (scaled @ k_P.mT).exp()
    run_of = torch.arange(tokens) // length
    earlier = of_run * (torch.arange(runs) < run_of[:, None])
    own = of_run.gather(-1, run_of.expand(batch, tokens)[..., None])
    seen = of_place * (torch.arange(length) <= (torch.arange(tokens) % length)[:, None])
    total, part = of_place.sum(-1, keepdim=True), seen.sum(-1, keepdim=True)
    sums = (earlier @ v_R) * total + earlier.sum(-1, keepdim=True) * (of_place @ v_P)
    sums = sums + own * (part * v_R[:, run_of] + seen @ v_P)
    return sums / (earlier.sum(-1, keepdim=True) * total + own * part)
