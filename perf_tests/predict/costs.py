"""The cost of one operation on a device: launches, FLOPs and bytes, from its name and its tensors' shapes alone.

No torch: what `recorded` replays is as good a tensor as torch's own, and goes by the same rules."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from perf_tests_suite.perf_tests.hardware.limits import KernelCost

if TYPE_CHECKING:
    from torch import Tensor

MATRIX_PRODUCTS = {"aten.mm": 0, "aten.addmm": 1, "aten.bmm": 0, "aten.baddbmm": 1}
"""The place of the left factor among the arguments."""
BATCHED_PRODUCTS = ("aten.bmm", "aten.baddbmm")


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

LINEAR_CROSS_ENTROPY = "torch_nn._linear_cross_entropy_batch_chunked"
"""`torch.nn.functional.linear_cross_entropy` in chunks (torch 2.13), one operation whose kernels do not show."""

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


def tensors_in(values: Iterable[Any]) -> Iterator["Tensor"]:
    """Every tensor among arguments or results, nested lists and dictionaries included."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
        elif hasattr(value, "element_size"):
            yield value


def mutated_tensors(name: str, args: tuple[Any, ...]) -> list["Tensor"]:
    """What an operation on lists of tensors changes in place; it returns nothing."""
    places = (0, 2, 3) if name.startswith("aten._fused_adam") else (0,)  # parameters and moments; gradients are read
    return list(tensors_in(args[place] for place in places)) if name.startswith(_ON_LISTS) else []


@cache
def is_pointwise(operator: Any) -> bool:
    """Whether it computes each element by itself, as torch tags it."""
    return any(tag.name == "pointwise" for tag in operator.tags)


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of operands that fit one another."""
    sizes = zip_longest(*map(reversed, shapes), fillvalue=1)
    return tuple(next((size for size in along if size != 1), 1) for along in sizes)[::-1]


def is_one_dense_block(tensor: "Tensor") -> bool:
    """Whether its elements lie side by side, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def launches_and_cost(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list["Tensor"], outputs: list["Tensor"],
    float32_rate: str, on_cuda: bool,
) -> tuple[int, KernelCost]:  # fmt: skip
    """How often an operation launches a kernel, and its cost: FLOPs and bytes of all launches, strided elements of one.

    A product takes 2mnk FLOPs, elementwise work none. A fused causal kernel skips the blocks above the diagonal (Dao et
    al., "FlashAttention", arXiv:2205.14135, section 3.1; so do PyTorch's flash and memory-efficient kernels on CUDA and
    its flash kernel on a CPU). It counts as the pairs that no causal kernel can skip, T (T + 1) / 2 of T queries and as
    many keys or more, since query i sees keys 0 to i: a lower bound, so that no true time is called impossibly fast.
    CUDA's memory-efficient attention computes each float32 product as three of TF32 on tensor cores (CUTLASS,
    `OpMultiplyAddFastF32`), so TF32's rate bounds it.
    """
    name = operator_name(func)
    launches = launches_of(name, args, on_cuda)
    if launches == 1 and on_cuda:
        launches = index_splits(func, name, args, inputs, outputs)
    strided = strided_elements(func, name, inputs, outputs) // launches if on_cuda and launches else 0
    flops, rate, summed, side = 0, "", 0, 0
    if name in MATRIX_PRODUCTS or name in FUSED_ATTENTION or name == LINEAR_CROSS_ENTROPY:
        place = FUSED_ATTENTION[name][1] if name in FUSED_ATTENTION else MATRIX_PRODUCTS.get(name, 0)
        factor, other = args[place], args[place + 1]
        if name in MATRIX_PRODUCTS:
            flops, summed = 2 * factor.numel() * other.shape[-1], int(factor.shape[-1])
            side = min(int(factor.shape[-2]), int(other.shape[-1]))
        elif name == LINEAR_CROSS_ENTROPY:
            flops = linear_cross_entropy_flops(factor.shape, other.shape, *args[2:])
        else:
            products, _, is_causal_place = FUSED_ATTENTION[name]
            float32_rate = "tf32" if on_cuda else float32_rate
            (batch, heads, queries, width), keys = factor.shape, other.shape[-2]
            is_causal = kwargs.get("is_causal", args[is_causal_place] if len(args) > is_causal_place else False)
            least = min(queries, keys) if is_causal else 0
            pairs = least * (least + 1) // 2 + (queries - least) * keys
            flops = products * 2 * batch * heads * pairs * int(width)
        rates = {"bfloat16": "bf16", "float16": "fp16", "float32": float32_rate, "float64": "fp64"}
        rate = rates[str(factor.dtype).removeprefix("torch.")]
    return launches, KernelCost(
        name, flops, least_traffic_bytes(name, inputs, outputs), rate, strided, summed, side=side
    )


def linear_cross_entropy_flops(input_NK: Sequence[int], weight_VK: Sequence[int], *others: Any, **_: Any) -> int:
    """Count the product that makes the logits, and one for each gradient, which its forward pass makes already.

    The last three arguments say which of input, weight and bias have one; that of a bias is no product
    (torch/nn/modules/linear_cross_entropy.py).
    """
    products = 1 + sum(map(bool, others[-3:-1]))
    return 2 * prod(input_NK) * weight_VK[0] * products


def least_traffic_bytes(name: str, inputs: list["Tensor"], outputs: list["Tensor"]) -> int:
    """Every input read once, of a table only the rows looked up; every output written once."""

    def touched(*tensors: "Tensor") -> int:
        """Bytes of the distinct elements in memory: an expanded dimension counts once."""
        count = 0
        for one in tensors:
            sizes = (size for size, stride in zip(one.shape, one.stride(), strict=True) if stride or not size)
            count += one.element_size() * prod(sizes)
        return count

    written = touched(*outputs)
    if name in _LOOKS_UP:
        return 2 * written + touched(*inputs[1:])
    if name in _WRITES_ROWS | _ADDS_ROWS:
        return touched(*inputs[1:-1]) + (2 if name in _WRITES_ROWS else 3) * touched(inputs[-1])
    return written + touched(*(inputs[1:] if name in _OVERWRITES else inputs))


def accumulator_bytes(name: str, args: tuple[Any, ...]) -> int:
    """What a fused backward pass in 16 bits allocates for itself on CUDA: the query's gradient in float32.

    PyTorch, flash_attn/flash_api.cpp, `mha_bwd`: rows in multiples of 128, widths of 32, and one more number a row.
    """
    if name != "aten._scaled_dot_product_flash_attention_backward":
        return 0
    batch, heads, queries, width = args[1].shape
    return 4 * batch * heads * (-(-queries // 128) * 128) * (-(-width // 32) * 32 + 1)


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


# How often CUDA launches a kernel whose tensors are too large for 32-bit indices: TensorIterator halves them first.
#
# PyTorch, aten/src/ATen/TensorIterator.cpp (`can_use_32bit_indexing`, `get_dim_to_split`, `split`), used by
# `gpu_kernel` (native/cuda/Loops.cuh), `gpu_reduce_kernel` (Reduce.cuh), gather and scatter. Products, fused
# attention, `softmax`, `cat`, `stack` and look-ups have kernels of their own, which are assumed to be launched once.


LARGEST_INDEX = 2**31 - 1
"""The largest index of an element, and of a byte from the start of a tensor."""

_REDUCTIONS = {"aten.sum", "aten.mean", "aten.max", "aten.min", "aten.amax", "aten.amin", "aten.linalg_vector_norm"}
_FILLS = {"aten.fill_", "aten.full", "aten.zero_", "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.ones_like"}
COPIES = {"aten._to_copy", "aten.copy_", "aten.clone"}
_ALONG_INDEX = {"aten.gather", "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_"}

Strides = list[int]
"""Bytes from one element to the next, by dimension."""


def index_splits(
    operator: Any, name: str, args: tuple[Any, ...], inputs: list["Tensor"], outputs: list["Tensor"]
) -> int:
    """Launches of one operation on CUDA: 1 where 32 bits suffice."""
    tensors = [*inputs, *outputs]
    if all(_last_byte(tensor.shape, _byte_strides(tensor)) <= LARGEST_INDEX for tensor in tensors):
        return 1
    if name in _ALONG_INDEX:  # it steps over the index, and along its dimension adds the index itself
        table, dim, index = args[:3]
        strides = _byte_strides(table)
        strides[dim] = 0
        return _parts(list(index.shape), [strides, _byte_strides(index)])
    if name in _REDUCTIONS:
        tensors = inputs[:1]
    elif name in _FILLS:
        tensors = outputs  # `new_zeros` takes no more than a dtype from its input
    elif name in COPIES and len({tensor.dtype for tensor in tensors}) == 1:
        if all(tensor.is_contiguous() for tensor in tensors):
            return 1  # cudaMemcpyAsync
    elif name not in COPIES and not is_pointwise(operator):
        return 1
    shape = broadcast(*(tensor.shape for tensor in tensors))
    return _parts(*coalesced(list(shape), [strides_in(tensor, shape) for tensor in tensors]))


def _byte_strides(tensor: "Tensor") -> Strides:
    return [stride * tensor.element_size() for stride in tensor.stride()]


def strides_in(tensor: "Tensor", shape: Sequence[int]) -> Strides:
    """Return the strides of `tensor` broadcast to `shape`."""
    own = [stride if size > 1 else 0 for size, stride in zip(tensor.shape, _byte_strides(tensor), strict=True)]
    return [0] * (len(shape) - tensor.dim()) + own


def _last_byte(sizes: Sequence[int], strides: Strides) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def coalesced(sizes: list[int], strides: list[Strides]) -> tuple[list[int], list[Strides]]:
    """Join neighbouring dimensions that every operand walks as one."""
    for dim in reversed(range(len(sizes) - 1)):
        if all(own[dim] == sizes[dim + 1] * own[dim + 1] for own in strides):
            sizes[dim : dim + 2] = [sizes[dim] * sizes[dim + 1]]
            for own in strides:
                del own[dim]
    return sizes, strides


def _parts(sizes: list[int], strides: list[Strides]) -> int:
    """Halve the dimension of the largest extent until every part fits."""
    if prod(sizes) <= LARGEST_INDEX and all(_last_byte(sizes, own) <= LARGEST_INDEX for own in strides):
        return 1
    dim = max(range(len(sizes)), key=lambda dim: max((sizes[dim] - 1) * own[dim] for own in strides))
    half = sizes[dim] // 2
    halves = ([*sizes[:dim], size, *sizes[dim + 1 :]] for size in (half, sizes[dim] - half))
    return sum(_parts(part, strides) for part in halves)


# Which elementwise kernels compute an address for each element, because their tensors are not equally dense.
#
# CUDA's elementwise kernels load several neighbours at once where all tensors are one dense block after neighbouring
# dimensions are merged. A broadcast or transposed tensor takes another kernel, `elementwise_kernel` instead of
# `vectorized_elementwise_kernel`, with an integer division per dimension, tensor and element (PyTorch,
# aten/src/ATen/native/cuda/CUDALoops.cuh, `gpu_kernel_impl_nocast`). On a fast memory these divisions bound it.


def strided_elements(operator: Any, name: str, inputs: Sequence["Tensor"], outputs: Sequence["Tensor"]) -> int:
    """Elements that one operation addresses one by one; 0 where its tensors are dense, or it is not elementwise."""
    if name not in COPIES and not is_pointwise(operator):
        return 0
    # One number is read once and kept.
    tensors = [tensor for tensor in (*inputs, *outputs) if tensor.numel() > 1]
    first = tensors[0] if tensors else None
    # Most often one order of dimensions is dense in all of them.
    alike = all(tensor.shape == first.shape and tensor.stride() == first.stride() for tensor in tensors)  # type: ignore[union-attr]
    if first is None or (alike and is_one_dense_block(first)):
        return 0
    shape = broadcast(*(tensor.shape for tensor in tensors))
    longer = [dim for dim, size in enumerate(shape) if size > 1]
    strides = [[strides_in(tensor, shape)[dim] for dim in longer] for tensor in tensors]
    sizes, strides = coalesced([shape[dim] for dim in longer], strides)
    is_dense = len(sizes) == 1 and all(
        own == [tensor.element_size()] for own, tensor in zip(strides, tensors, strict=True)
    )
    return 0 if is_dense else prod(shape)
