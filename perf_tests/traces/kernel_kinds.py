"""The kind of work of a kernel, from the name of its operation or its own; FLOPs and bytes from its inputs' shapes."""

import re
from math import prod
from typing import Any

KINDS = (
    "matrix product", "fused attention", "elementwise", "reduction", "cast", "copy", "memset", "indexing",
)  # fmt: skip
"""Every kind, in the order of tables. A memset is any kernel that only fills; a cast is a copy into another dtype."""

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise", "aten::_scaled_mm")

_COPIES = {"copy_", "clone", "cat", "contiguous", "_to_copy", "to", "_foreach_copy_"}
_OPERATORS = {
    "reduction": {
        "sum", "mean", "max", "min", "amax", "amin", "argmax", "linalg_vector_norm", "norm", "var", "std", "prod",
        "any", "all", "logsumexp", "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
        "cumsum", "native_layer_norm", "_foreach_norm", "nll_loss_forward", "_fused_rms_norm",
    },
    "memset": {
        "fill_", "zero_", "zeros", "zeros_like", "new_zeros", "ones_like", "ones", "full", "full_like",
        "_foreach_zero_", "scalar_tensor",
    },
    "indexing": {
        "index", "gather", "scatter_", "scatter_add_", "scatter", "scatter_add", "_index_put_impl_", "index_put_",
        "embedding", "embedding_dense_backward", "index_select", "index_add_",
    },
}  # fmt: skip

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip

Dims = list[Any]

# Of a kernel's own name, the first that matches. Products are kernels of cuBLAS, CUTLASS, cuBLASLt and Triton's
# templates; the reduction of a split product is part of it.
_KERNELS = {
    "fused attention": r"flash|fmha|mem_eff|attention_kernel|triton_tem.*attention|sdpa",
    "matrix product": r"gemm|gemv|xmma|cutlass|nvjet|splitk|triton_tem.*mm|_mm_|wgmma",
    "cast": r"(bfloat16|float16|half|float8)_?copy|tofloat32|LoadWithCast|StoreWithCast",
    "memset": r"FillFunctor|memset",
    "reduction": r"reduce|softmax|norm|triton_(red|per)_|argm(ax|in)",
    "indexing": r"index|gather|scatter|embedding",
    "copy": r"copy|CatArray|transpose",
}


def kind_of(kernel: str, operator: str = "", dtypes: tuple[str, ...] = ()) -> str:
    """One of `KINDS`; `dtypes` are those of the operation's tensors, and `kernel` is its own name on a CPU."""
    return (operator and _kind_of_operator(operator, dtypes)) or next(
        (kind for kind, pattern in _KERNELS.items() if re.search(pattern, kernel, re.IGNORECASE)), "elementwise"
    )


def _kind_of_operator(operator: str, dtypes: tuple[str, ...]) -> str | None:
    """None for elementwise and generated operations, whose names tell nothing."""
    name = operator.rpartition("::")[2]
    if operator in PRODUCTS:
        return "matrix product"
    if "scaled_dot_product" in name or "flex_attention" in name or "_flash_attention" in name:
        return "fused attention"
    if name in _COPIES:
        return "cast" if len(set(dtypes[:2])) == 2 and name != "cat" else "copy"
    return next((kind for kind, names in _OPERATORS.items() if name in names), None)


def tensors_of(dims: Dims, dtypes: list[str]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each tensor among the inputs; numbers, lists of numbers and lists of tensors are left out."""
    return [
        (tuple(shape), dtype)
        for shape, dtype in zip(dims, dtypes, strict=False)
        if isinstance(dtype, str) and dtype in _ELEMENT_BYTES and _is_a_shape(shape)
    ]


def _is_a_shape(value: object) -> bool:
    """Sizes of a tensor that an address can reach."""
    sizes = value if isinstance(value, list) else [None]
    return all(isinstance(size, int) and size >= 0 for size in sizes) and prod(sizes) < 2**63


def flops_of(operator: str, dims: Dims, dtypes: list[str]) -> int:
    """2mnk of a matrix product; one for each element of what an elementwise operation writes or a reduction reads."""
    shapes = [shape for shape, _ in tensors_of(dims, dtypes)]
    if operator in PRODUCTS:
        factors = shapes[-2:]
        return 2 * prod(factors[0]) * factors[1][-1] if len(factors) == 2 and all(map(len, factors)) else 0
    kind = kind_of(operator, operator, ())
    return max(map(prod, shapes), default=0) if kind in ("elementwise", "reduction") else 0


def bytes_of(operator: str, dims: Dims, dtypes: list[str]) -> int | None:
    """Every input read once and the output written once; None for look-ups of rows and lists of tensors."""
    tensors = tensors_of(dims, dtypes)
    kind = kind_of(operator, operator, tuple(dtype for _, dtype in tensors))
    if not tensors or kind in ("indexing", "fused attention") or operator == "aten::cat":
        return None
    sizes = [prod(shape) * _ELEMENT_BYTES[dtype] for shape, dtype in tensors]
    element = _ELEMENT_BYTES[tensors[-1][1]]
    if kind == "matrix product":
        if min([len(shape) for shape, _ in tensors[-2:]], default=0) < 2 or len(tensors) < 2:
            return None
        (*batch, rows, _), (*_, columns) = tensors[-2][0], tensors[-1][0]
        return sizes[-2] + sizes[-1] + prod(batch) * rows * columns * element
    if kind == "memset":
        return sizes[0]
    if kind in ("copy", "cast"):
        return sum(sizes[:2]) if len(sizes) > 1 else 2 * sizes[0]
    if kind == "reduction":
        return sizes[0] + sizes[0] // max(tensors[0][0][-1] if tensors[0][0] else 1, 1)
    return sum(sizes) + max(sizes)
