"""FLOPs and bytes of one operation, from the shapes and dtypes that a trace keeps of its inputs."""

from math import prod
from typing import Any

from perf_tests.traces.kernel_kinds import PRODUCTS, kind_of

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip

Dims = list[Any]


def tensors_of(dims: Dims, dtypes: list[str]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each tensor among the inputs; numbers, lists of numbers and lists of tensors are left out."""
    return [
        (tuple(shape), dtype)
        for shape, dtype in zip(dims, dtypes, strict=False)
        if dtype in _ELEMENT_BYTES and all(isinstance(size, int) for size in shape)
    ]


def flops_of(operator: str, dims: Dims, dtypes: list[str]) -> int:
    """2mnk of a matrix product; one for each element of what an elementwise operation writes or a reduction reads."""
    shapes = [shape for shape, _ in tensors_of(dims, dtypes)]
    if operator in PRODUCTS:
        factors = shapes[-2:]
        return 2 * prod(factors[0]) * factors[1][-1] if len(factors) == 2 and all(map(len, factors)) else 0
    kind = kind_of(operator, operator, ())
    return max(map(prod, shapes), default=0) if kind in ("elementwise", "reduction") else 0


def bytes_of(operator: str, dims: Dims, dtypes: list[str]) -> int | None:
    """Every input read once and the output written once; None for what looks up rows or takes lists of tensors."""
    tensors = tensors_of(dims, dtypes)
    kind = kind_of(operator, operator, tuple(dtype for _, dtype in tensors))
    if not tensors or kind in ("indexing", "fused attention") or operator == "aten::cat":
        return None
    sizes = [prod(shape) * _ELEMENT_BYTES[dtype] for shape, dtype in tensors]
    element = _ELEMENT_BYTES[tensors[-1][1]]
    if kind == "matrix product":
        (*batch, rows, _), (*_, columns) = tensors[-2][0], tensors[-1][0]
        return sizes[-2] + sizes[-1] + prod(batch) * rows * columns * element
    if kind == "memset":
        return sizes[0]
    if kind in ("copy", "cast"):
        return sum(sizes[:2]) if len(sizes) > 1 else 2 * sizes[0]
    if kind == "reduction":
        return sizes[0] + sizes[0] // max(tensors[0][0][-1] if tensors[0][0] else 1, 1)
    return sum(sizes) + max(sizes)
