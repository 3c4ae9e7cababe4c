"""How often CUDA launches a kernel whose tensors are too large for 32-bit indices: TensorIterator halves them first.

PyTorch, aten/src/ATen/TensorIterator.cpp (`can_use_32bit_indexing`, `get_dim_to_split`, `split`), used by `gpu_kernel`
(native/cuda/Loops.cuh), `gpu_reduce_kernel` (Reduce.cuh), gather and scatter. Products, fused attention, `softmax`,
`cat`, `stack` and look-ups have kernels of their own, which are assumed to be launched once.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

LARGEST_INDEX = 2**31 - 1
"""Of an element, and of a byte from the start of a tensor."""

_REDUCTIONS = {"aten.sum", "aten.mean", "aten.max", "aten.min", "aten.amax", "aten.amin", "aten.linalg_vector_norm"}
_FILLS = {"aten.fill_", "aten.full", "aten.zero_", "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.ones_like"}
COPIES = {"aten._to_copy", "aten.copy_", "aten.clone"}
_ALONG_INDEX = {"aten.gather", "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_"}

Strides = list[int]
"""Bytes from one element to the next, by dimension."""


def index_splits(operator: Any, name: str, args: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Launches of one operation on CUDA: 1 where 32 bits suffice."""
    tensors = [*inputs, *outputs]
    if all(_last_byte(tensor.shape, _byte_strides(tensor)) <= LARGEST_INDEX for tensor in tensors):
        return 1
    if name in _ALONG_INDEX:
        return _along_index(args)
    if name in _REDUCTIONS:
        tensors = inputs[:1]
    elif name in _FILLS:
        tensors = outputs  # `new_zeros` takes no more than a dtype from its input
    elif name in COPIES and len({tensor.dtype for tensor in tensors}) == 1:
        if all(tensor.is_contiguous() for tensor in tensors):
            return 1  # cudaMemcpyAsync
    elif name not in COPIES and torch.Tag.pointwise not in operator.tags:
        return 1
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return _parts(*coalesced(list(shape), [strides_in(tensor, shape) for tensor in tensors]))


def _along_index(args: tuple[Any, ...]) -> int:
    """Steps over the index; along its dimension the kernel adds the index itself."""
    table, dim, index = args[:3]
    strides = _byte_strides(table)
    strides[dim] = 0
    return _parts(list(index.shape), [strides, _byte_strides(index)])


def _byte_strides(tensor: Tensor) -> Strides:
    return [stride * tensor.element_size() for stride in tensor.stride()]


def strides_in(tensor: Tensor, shape: Sequence[int]) -> Strides:
    """Of `tensor` broadcast to `shape`."""
    own = [stride if size > 1 else 0 for size, stride in zip(tensor.shape, _byte_strides(tensor), strict=True)]
    return [0] * (len(shape) - tensor.dim()) + own


def _last_byte(sizes: Sequence[int], strides: Strides) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def coalesced(sizes: list[int], strides: list[Strides]) -> tuple[list[int], list[Strides]]:
    """Neighbouring dimensions that every operand walks as one are one."""
    for dim in reversed(range(len(sizes) - 1)):
        if all(own[dim] == sizes[dim + 1] * own[dim + 1] for own in strides):
            sizes[dim : dim + 2] = [sizes[dim] * sizes[dim + 1]]
            for own in strides:
                del own[dim]
    return sizes, strides


def _parts(sizes: list[int], strides: list[Strides]) -> int:
    """Halves the dimension of the largest extent until every part fits."""
    if prod(sizes) <= LARGEST_INDEX and all(_last_byte(sizes, own) <= LARGEST_INDEX for own in strides):
        return 1
    dim = max(range(len(sizes)), key=lambda dim: max((sizes[dim] - 1) * own[dim] for own in strides))
    half = sizes[dim] // 2
    halves = ([*sizes[:dim], size, *sizes[dim + 1 :]] for size in (half, sizes[dim] - half))
    return sum(_parts(part, strides) for part in halves)
