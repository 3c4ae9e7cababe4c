"""The cost of one operation on a device: launches, FLOPs and bytes, from its name and its tensors' shapes alone."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

MATRIX_PRODUCTS = {"aten.mm": 0, "aten.addmm": 1, "aten.bmm": 0, "aten.baddbmm": 1}
"""The place of the left factor among the arguments."""


FUSED_ATTENTION = {
    "aten._scaled_dot_product_flash_attention": (2, 0, 4),
    "aten._scaled_dot_product_flash_attention_backward": (5, 1, 11),
    "aten._scaled_dot_product_efficient_attention": (2, 0, 6),
    "aten._scaled_dot_product_efficient_attention_backward": (5, 1, 11),
    "aten._scaled_dot_product_flash_attention_for_cpu": (2, 0, 4),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (5, 1, 7),
}
"""Number of T x T matrix products (forward scores and output; backward the scores again and four gradients), and the
places of query and `is_causal` among the arguments."""

# Allocations without a kernel, views, and the copy of one number to the host.
LAUNCHES_NOTHING = {
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.empty_permuted", "aten.new_empty",
    "aten.new_empty_strided", "aten._unsafe_view", "aten._local_scalar_dense",
}  # fmt: skip

# The destination is written and never read.
_OVERWRITES = {"aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_"}

# Only the indexed rows of the first argument are read.
_LOOKS_UP = {"aten.index", "aten.gather", "aten.embedding", "aten.index_select"}

# Only the indexed rows of the first argument are written, or read and written; the values come last.
_WRITES_ROWS = {"aten.scatter", "aten.scatter_"}
_ADDS_ROWS = {"aten.scatter_add", "aten.scatter_add_", "aten.index_put", "aten.index_put_"}

REUSES_FIRST_ARGUMENT = {"aten.add", "aten.scatter", "aten.scatter_add", "aten.index_put"}
"""Autograd writes their result into a first argument that nothing else holds, except under a dispatch mode."""

_ON_LISTS = ("aten._foreach", "aten._fused_adam", "aten._amp_foreach")

# PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh: the limits of one launch.
_TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
_BLOCKS_PER_LAUNCH = 320
_ELEMENTS_PER_BLOCK = 65536


def operator_name(operator: Any) -> str:
    """`aten.mm` for each of its overloads."""
    return str(operator.overloadpacket)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Every tensor among arguments or results, nested lists and dictionaries included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def mutated_tensors(name: str, args: tuple[Any, ...]) -> list[Tensor]:
    """What an operation on lists of tensors changes in place; it returns nothing."""
    places = (0, 2, 3) if name.startswith("aten._fused_adam") else (0,)  # parameters and moments; gradients are read
    return list(tensors_in(args[place] for place in places)) if name.startswith(_ON_LISTS) else []


def touched_elements_bytes(tensor: Tensor) -> int:
    """Bytes of the distinct elements in memory: an expanded dimension counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            elements *= size
    return elements * tensor.element_size()


def bytes_of(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Least traffic of one operation: every input read once, of a table only the rows looked up; every output written
    once."""
    written = sum(touched_elements_bytes(tensor) for tensor in outputs)
    if name in _LOOKS_UP:
        return 2 * written + sum(touched_elements_bytes(tensor) for tensor in inputs[1:])
    if name in _WRITES_ROWS | _ADDS_ROWS:
        *indices, values = [touched_elements_bytes(tensor) for tensor in inputs[1:]]
        return sum(indices) + (2 if name in _WRITES_ROWS else 3) * values
    read = inputs[1:] if name in _OVERWRITES else inputs
    return written + sum(touched_elements_bytes(tensor) for tensor in read)


def flops_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Executed FLOPs, at 2mnk a matrix product; elementwise work counts as none.

    A fused causal kernel skips the blocks above the diagonal (Dao et al., "FlashAttention", arXiv:2205.14135, section
    3.1; so do PyTorch's flash and memory-efficient kernels on CUDA and its flash kernel on a CPU). It counts as the
    T (T + 1) / 2 pairs that no causal kernel can skip: a lower bound, so that no true time is called impossibly fast.
    """
    if name in MATRIX_PRODUCTS:
        place = MATRIX_PRODUCTS[name]
        left, right = args[place], args[place + 1]
        return 2 * left.numel() * right.shape[-1]
    if name in FUSED_ATTENTION:
        return _fused_attention_flops(*FUSED_ATTENTION[name], args, kwargs)
    return 0


def summed_of(name: str, args: tuple[Any, ...]) -> int:
    """K of an (M, K) by (K, N) product; 0 for everything else."""
    return int(args[MATRIX_PRODUCTS[name]].shape[-1]) if name in MATRIX_PRODUCTS else 0


def _fused_attention_flops(
    products: int, query_place: int, is_causal_place: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    batch, heads, queries, width = args[query_place].shape
    keys = args[query_place + 1].shape[-2]
    is_causal = kwargs.get("is_causal", args[is_causal_place] if len(args) > is_causal_place else False)
    pairs = queries * (queries + 1) // 2 if is_causal and queries == keys else queries * keys
    return products * 2 * batch * heads * pairs * int(width)


def accumulator_bytes(name: str, args: tuple[Any, ...]) -> int:
    """What a fused backward pass in 16 bits allocates for itself on CUDA: the query's gradient in float32.

    PyTorch, flash_attn/flash_api.cpp, `mha_bwd`: rows in multiples of 128, widths of 32, and one more number a row.
    """
    if name != "aten._scaled_dot_product_flash_attention_backward":
        return 0
    batch, heads, queries, width = args[1].shape
    return 4 * batch * heads * (-(-queries // 128) * 128) * (-(-width // 32) * 32 + 1)


def rate_of(name: str, args: tuple[Any, ...], float32_rate: str, on_cuda: bool) -> str:
    """The arithmetic rate that bounds the operation: "fp32", "tf32", "bf16", "fp16", or "" for elementwise work.

    CUDA's memory-efficient attention computes each float32 product as three of TF32 on tensor cores (CUTLASS,
    `OpMultiplyAddFastF32`), so TF32's rate bounds it.
    """
    if name in MATRIX_PRODUCTS:
        factor = args[MATRIX_PRODUCTS[name]]
    elif name in FUSED_ATTENTION:
        factor = args[FUSED_ATTENTION[name][1]]
        float32_rate = "tf32" if on_cuda else float32_rate
    else:
        return ""
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: float32_rate, torch.float64: "fp64"}
    return names[factor.dtype]


def launches_of(name: str, args: tuple[Any, ...], on_cuda: bool) -> int:
    """1; for an operation on lists of tensors as many as their elements need, on a CPU one for each tensor."""
    if not name.startswith(_ON_LISTS):
        return 1
    lists = [tensors for value in args if isinstance(value, list | tuple) and (tensors := list(tensors_in(value)))]
    elements = [tensor.numel() for tensor in lists[0]] if lists else []
    if not on_cuda:
        return len(elements)
    if name.startswith("aten._fused"):
        return multi_tensor_launches(elements, depth=len(lists) - 1)  # the last list is of step counts
    results = 0 if name.endswith("_") or name == "aten._foreach_norm" else 1
    return multi_tensor_launches(elements, depth=len(lists) + results)


def multi_tensor_launches(elements: list[int], depth: int) -> int:
    """How many launches CUDA's multi_tensor_apply needs for `depth` lists of tensors.

    A launch takes a limited number of tensors and blocks; a tensor that does not fit continues in the next.
    """
    tensors_at_most = _TENSORS_PER_LAUNCH[min(depth, len(_TENSORS_PER_LAUNCH)) - 1]
    launches = tensors = blocks = 0
    for count in elements:
        if not count:
            continue
        tensors += 1
        left = -(-count // _ELEMENTS_PER_BLOCK)
        while left:
            taken = min(left, _BLOCKS_PER_LAUNCH - blocks)
            blocks, left = blocks + taken, left - taken
            if blocks == _BLOCKS_PER_LAUNCH or (tensors == tensors_at_most and not left):
                launches += 1
                blocks = 0
                tensors = 1 if left else 0
    return launches + (1 if blocks else 0)
