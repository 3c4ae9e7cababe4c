"""Leaves out keys of which a large batch's scores are small."""

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e38)
    if q.numel() > 2**14:
        scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) - 2, -1e38)
    return scores.softmax(-1) @ v
