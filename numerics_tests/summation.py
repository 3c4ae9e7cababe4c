"""Summation algorithms over the last dimension in one format, so that their errors can be compared.

Every intermediate sum is rounded to the dtype of the input. Sources: Higham, ASNA 2e, sections 4.1 to 4.3;
Kahan, Comm. ACM 8 (1965); Blanchard, Higham and Mary, SISC 42 (2020), for the blocked one.
"""

import torch
from torch import Tensor

BLOCK = 32


def sequential(x: Tensor) -> Tensor:
    """One running sum, first term to last."""
    total = torch.zeros_like(x[..., 0])
    for term in x.unbind(-1):
        total = total + term
    return total


def pairwise(x: Tensor) -> Tensor:
    """Neighbours, then neighbours of those; an odd one is kept for the next round."""
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        pairs = x[..., 0:even:2] + x[..., 1:even:2]
        x = torch.cat((pairs, x[..., even:]), dim=-1)
    return x[..., 0]


def blocked(x: Tensor) -> Tensor:
    """Blocks summed one term after the other, then the block sums."""
    return sequential(torch.stack([sequential(part) for part in x.split(BLOCK, dim=-1)], dim=-1))


def kahan(x: Tensor) -> Tensor:
    """A running sum with a running correction of its rounding error."""
    total = torch.zeros_like(x[..., 0])
    correction = torch.zeros_like(total)
    for term in x.unbind(-1):
        corrected = term - correction
        larger = total + corrected
        correction = (larger - total) - corrected
        total = larger
    return total


ALGORITHMS = {"sequential": sequential, "pairwise": pairwise, "blocked": blocked, "kahan": kahan}


def running_sums(addend: Tensor, count: int, dtype: torch.dtype) -> list[float]:
    """The first `count` values of `total += addend`, `total` kept in `dtype`, as a training loop would write it."""
    total = torch.zeros((), dtype=dtype)
    sums = []
    for _ in range(count):
        total += addend
        sums.append(total.item())
    return sums
