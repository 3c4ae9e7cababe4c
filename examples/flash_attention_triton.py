"""FlashAttention-2 (Dao, 2023, arXiv:2307.08691, algorithms 1 and 2), causal, as Triton kernels.

    perf-tests run --device cuda --attention examples/flash_attention_triton.py:flash_attention,sdpa
    make triton-example    # on a CPU by Triton's interpreter, which knows no bfloat16 products: in fp32

One kernel for the output and the logarithm of each row's sum, one for the gradient of the queries, one for those of
keys and values; no autotuning. Products add in float32, of float32 inputs without TF32.

Shapes: T tokens, K head width; N is every dimension before them together.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

BLOCK = 64
"""Queries, and keys, of one tile."""


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Query, key and value of shape (..., T, K) and one dtype to an output of the same shape and dtype."""
    output: Tensor = FlashAttention.apply(q, k, v)
    return output


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        output, log_sums = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        attend[grid(q)](q, k, v, output, log_sums, *sizes(q))
        ctx.save_for_backward(q, k, v, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, output, log_sums = ctx.saved_tensors
        do = do.contiguous()
        row_sums = (do.float() * output.float()).sum(-1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        given = (q, k, v, do, log_sums, row_sums)
        gradient_of_queries[grid(q)](*given, dq, *sizes(q))
        gradients_of_keys_and_values[grid(q)](*given, dk, dv, *sizes(q))
        return dq, dk, dv


def grid(q: Tensor) -> tuple[int, int]:
    """One program for each tile of each of the N sequences."""
    return triton.cdiv(q.shape[-2], BLOCK), math.prod(q.shape[:-2])


def sizes(q: Tensor) -> tuple[Any, ...]:
    """T, K, scale of the scores, length of a tile, and K padded to a power of 2 of at least 16, as products need."""
    tokens, width = q.shape[-2:]
    return tokens, width, 1 / math.sqrt(width), BLOCK, max(16, triton.next_power_of_2(width))


@triton.jit
def rows_of(pointer, first, tokens, width, block: tl.constexpr, padded: tl.constexpr):
    """A tile (block, padded) from row `first` of a sequence, 0 outside of it."""
    row, column = first + tl.arange(0, block), tl.arange(0, padded)
    inside = (row[:, None] < tokens) & (column[None, :] < width)
    return tl.load(pointer + row[:, None] * width + column[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(pointer, values, first, tokens, width, block: tl.constexpr, padded: tl.constexpr):
    row, column = first + tl.arange(0, block), tl.arange(0, padded)
    inside = (row[:, None] < tokens) & (column[None, :] < width)
    tl.store(pointer + row[:, None] * width + column[None, :], values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def scores_of(q, k, first_query, first_key, tokens, scale, block: tl.constexpr):
    """A tile in float32, minus infinity where a key comes after its query or after the last token."""
    query, key = first_query + tl.arange(0, block)[:, None], first_key + tl.arange(0, block)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    return tl.where((key <= query) & (key < tokens), scores, float("-inf"))


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, output_ptr, log_sums_ptr, tokens, width, scale, block: tl.constexpr,
           padded: tl.constexpr):  # fmt: skip
    first, sequence = tl.program_id(0) * block, tl.program_id(1)
    offset = sequence.to(tl.int64) * tokens * width
    q = rows_of(q_ptr + offset, first, tokens, width, block, padded)
    total = tl.zeros((block, padded), dtype=tl.float32)
    sums = tl.zeros((block,), dtype=tl.float32)
    highest = tl.full((block,), float("-inf"), dtype=tl.float32)
    for start in range(0, tl.minimum(first + block, tokens), block):
        k = rows_of(k_ptr + offset, start, tokens, width, block, padded)
        v = rows_of(v_ptr + offset, start, tokens, width, block, padded)
        scores = scores_of(q, k, first, start, tokens, scale, block)
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        exponentials, rescaling = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        sums = sums * rescaling + tl.sum(exponentials, axis=1)
        total = total * rescaling[:, None] + tl.dot(exponentials.to(v.dtype), v, input_precision="ieee")
        highest = higher
    store_rows(output_ptr + offset, total / sums[:, None], first, tokens, width, block, padded)
    row = first + tl.arange(0, block)
    tl.store(log_sums_ptr + sequence * tokens + row, highest + tl.log(sums), mask=row < tokens)


@triton.jit
def gradient_of_queries(q_ptr, k_ptr, v_ptr, do_ptr, log_sums_ptr, row_sums_ptr, dq_ptr, tokens, width, scale,
                        block: tl.constexpr, padded: tl.constexpr):  # fmt: skip
    first, sequence = tl.program_id(0) * block, tl.program_id(1)
    offset, row = sequence.to(tl.int64) * tokens * width, first + tl.arange(0, block)
    q = rows_of(q_ptr + offset, first, tokens, width, block, padded)
    do = rows_of(do_ptr + offset, first, tokens, width, block, padded)
    log_sums = tl.load(log_sums_ptr + sequence * tokens + row, mask=row < tokens, other=0.0)
    row_sums = tl.load(row_sums_ptr + sequence * tokens + row, mask=row < tokens, other=0.0)
    dq = tl.zeros((block, padded), dtype=tl.float32)
    for start in range(0, tl.minimum(first + block, tokens), block):
        k = rows_of(k_ptr + offset, start, tokens, width, block, padded)
        v = rows_of(v_ptr + offset, start, tokens, width, block, padded)
        p = tl.exp(scores_of(q, k, first, start, tokens, scale, block) - log_sums[:, None])
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - row_sums[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee") * scale
    store_rows(dq_ptr + offset, dq, first, tokens, width, block, padded)


@triton.jit
def gradients_of_keys_and_values(q_ptr, k_ptr, v_ptr, do_ptr, log_sums_ptr, row_sums_ptr, dk_ptr, dv_ptr, tokens,
                                 width, scale, block: tl.constexpr, padded: tl.constexpr):  # fmt: skip
    first, sequence = tl.program_id(0) * block, tl.program_id(1)
    offset = sequence.to(tl.int64) * tokens * width
    k = rows_of(k_ptr + offset, first, tokens, width, block, padded)
    v = rows_of(v_ptr + offset, first, tokens, width, block, padded)
    dk, dv = tl.zeros((block, padded), dtype=tl.float32), tl.zeros((block, padded), dtype=tl.float32)
    for start in range(first, tokens, block):
        row = start + tl.arange(0, block)
        q = rows_of(q_ptr + offset, start, tokens, width, block, padded)
        do = rows_of(do_ptr + offset, start, tokens, width, block, padded)
        # Rows after the last have no sum: with infinity theirs are probabilities of 0.
        log_sums = tl.load(log_sums_ptr + sequence * tokens + row, mask=row < tokens, other=float("inf"))
        row_sums = tl.load(row_sums_ptr + sequence * tokens + row, mask=row < tokens, other=0.0)
        p = tl.exp(scores_of(q, k, start, first, tokens, scale, block) - log_sums[:, None])
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - row_sums[:, None])
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee") * scale
    store_rows(dk_ptr + offset, dk, first, tokens, width, block, padded)
    store_rows(dv_ptr + offset, dv, first, tokens, width, block, padded)
