"""Which elementwise kernels compute an address for each element, because their tensors are not equally dense.

CUDA's elementwise kernels load several neighbours at once where all tensors are one dense block after neighbouring
dimensions are merged. A broadcast or transposed tensor takes another kernel, `elementwise_kernel` instead of
`vectorized_elementwise_kernel`, with an integer division per dimension, tensor and element (PyTorch,
aten/src/ATen/native/cuda/CUDALoops.cuh, `gpu_kernel_impl_nocast`). On a fast memory these divisions bound it.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from perf_tests.instruments.index_splits import COPIES, coalesced, strides_in


def strided_elements(operator: Any, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Elements that one operation addresses one by one; 0 where its tensors are dense, or it is not elementwise."""
    if name not in COPIES and torch.Tag.pointwise not in operator.tags:
        return 0
    # One number is read once and kept.
    tensors = [tensor for tensor in (*inputs, *outputs) if tensor.numel() > 1]
    if not tensors or _are_alike(tensors):
        return 0
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    longer = [dim for dim, size in enumerate(shape) if size > 1]
    strides = [[strides_in(tensor, shape)[dim] for dim in longer] for tensor in tensors]
    sizes, strides = coalesced([shape[dim] for dim in longer], strides)
    is_dense = len(sizes) == 1 and all(
        own == [tensor.element_size()] for own, tensor in zip(strides, tensors, strict=True)
    )
    return 0 if is_dense else prod(shape)


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether one order of dimensions is dense in all of them, as most are."""
    first = tensors[0]
    alike = all(tensor.shape == first.shape and tensor.stride() == first.stride() for tensor in tensors)
    return alike and torch.ops.aten.is_non_overlapping_and_dense(first)
