"""FlashAttention-2 (Dao, 2023, arXiv:2307.08691, algorithms 1 and 2), causal, tile by tile in PyTorch.

    perf-tests run --attention examples/flash_attention.py:flash_attention,naive
    perf-tests run numerics_tests --attention examples/flash_attention.py:flash_attention

No T x T matrix is kept: forward saves one number for each row, the logarithm of its softmax's sum, from which backward
computes each tile of probabilities again. Tiles are computed in float32 whatever the dtype of the inputs. It needs less
memory than the naive attention and, being a loop in Python, more time.

Shapes: T tokens, K head width, Q and S queries and keys of one tile; any dimensions before them.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

BLOCK = 64
"""Queries, and keys, of one tile; the last tile of a length that is no multiple of it is smaller."""


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Query, key and value of shape (..., T, K) and one dtype to an output of the same shape and dtype."""
    output: Tensor = FlashAttention.apply(q, k, v)
    return output


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output = torch.empty_like(q)
        log_sums = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        for rows in tiles(q.shape[-2]):
            output[..., rows, :], log_sums[..., rows] = attended(q, k, v, rows)
        ctx.save_for_backward(q, k, v, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, output, log_sums = ctx.saved_tensors
        dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
        row_sums = (do.float() * output.float()).sum(-1)
        for columns in tiles(q.shape[-2]):
            for rows in tiles(q.shape[-2], first=columns.start):
                p = torch.exp(scores(q, k, rows, columns) - log_sums[..., rows, None])
                dp = do[..., rows, :].float() @ v[..., columns, :].float().mT
                ds = p * (dp - row_sums[..., rows, None]) / math.sqrt(q.shape[-1])
                dv[..., columns, :] += p.mT @ do[..., rows, :].float()
                dk[..., columns, :] += ds.mT @ q[..., rows, :].float()
                dq[..., rows, :] += ds @ k[..., columns, :].float()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def attended(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """The output of a tile of queries (..., Q, K) and the logarithm of each row's sum of exponentials (..., Q).

    Tile after tile of keys: a larger maximum rescales what was summed before it.
    """
    total = torch.zeros_like(q[..., rows, :], dtype=torch.float32)
    sums = torch.zeros_like(total[..., :1])
    highest = torch.full_like(sums, -math.inf)
    for columns in tiles(rows.stop):
        tile = scores(q, k, rows, columns)
        higher = torch.maximum(highest, tile.amax(-1, keepdim=True))
        exponentials, rescaling = torch.exp(tile - higher), torch.exp(highest - higher)
        sums = sums * rescaling + exponentials.sum(-1, keepdim=True)
        total = total * rescaling + exponentials @ v[..., columns, :].float()
        highest = higher
    return (total / sums).to(q.dtype), (highest + sums.log())[..., 0]


def scores(q: Tensor, k: Tensor, rows: slice, columns: slice) -> Tensor:
    """(..., Q, S) in float32, minus infinity where a key comes after its query."""
    tile = q[..., rows, :].float() @ k[..., columns, :].float().mT / math.sqrt(q.shape[-1])
    if columns.stop <= rows.start:
        return tile
    query, key = (torch.arange(part.start, part.stop, device=q.device) for part in (rows, columns))
    return tile.masked_fill(key > query[:, None], -math.inf)


def tiles(tokens: int, first: int = 0) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, tokens)) for start in range(first, tokens, BLOCK))
