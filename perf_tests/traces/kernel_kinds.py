"""The kind of work of a kernel, from the name of its operation or its own."""

import re

KINDS = (
    "matrix product", "fused attention", "elementwise", "reduction", "cast", "copy", "memset", "indexing",
)  # fmt: skip
"""Every kind, in the order of tables. A memset is any kernel that only fills; a cast is a copy into another dtype."""

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise", "aten::_scaled_mm")

_REDUCTIONS = {
    "sum", "mean", "max", "min", "amax", "amin", "argmax", "linalg_vector_norm", "norm", "var", "std", "prod", "any",
    "all", "logsumexp", "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "cumsum",
    "native_layer_norm", "_foreach_norm", "nll_loss_forward", "_fused_rms_norm",
}  # fmt: skip
_COPIES = {"copy_", "clone", "cat", "contiguous", "_to_copy", "to", "_foreach_copy_"}
_FILLS = {
    "fill_", "zero_", "zeros", "zeros_like", "new_zeros", "ones_like", "ones", "full", "full_like", "_foreach_zero_",
    "scalar_tensor",
}  # fmt: skip
_INDEXING = {
    "index", "gather", "scatter_", "scatter_add_", "scatter", "scatter_add", "_index_put_impl_", "index_put_",
    "embedding", "embedding_dense_backward", "index_select", "index_add_",
}  # fmt: skip

# Kernels of cuBLAS, CUTLASS, cuBLASLt and Triton's templates. The reduction of a split product is part of it.
_PRODUCT_KERNEL = re.compile(r"gemm|gemv|xmma|cutlass|nvjet|splitk|triton_tem.*mm|_mm_|wgmma", re.IGNORECASE)
_ATTENTION_KERNEL = re.compile(r"flash|fmha|mem_eff|attention_kernel|triton_tem.*attention|sdpa", re.IGNORECASE)
_REDUCTION_KERNEL = re.compile(r"reduce|softmax|norm|triton_(red|per)_|argm(ax|in)", re.IGNORECASE)
_CAST_KERNEL = re.compile(r"(bfloat16|float16|half|float8)_?copy|tofloat32|LoadWithCast|StoreWithCast", re.IGNORECASE)
_COPY_KERNEL = re.compile(r"copy|CatArray|transpose", re.IGNORECASE)
_FILL_KERNEL = re.compile(r"FillFunctor|memset", re.IGNORECASE)
_INDEXING_KERNEL = re.compile(r"index|gather|scatter|embedding", re.IGNORECASE)


def kind_of(kernel: str, operator: str = "", dtypes: tuple[str, ...] = ()) -> str:
    """One of `KINDS`; `dtypes` are those of the operation's tensors, and `kernel` is its own name on a CPU."""
    return (operator and _kind_of_operator(operator, dtypes)) or _kind_of_kernel(kernel)


def _kind_of_operator(operator: str, dtypes: tuple[str, ...]) -> str | None:
    """None for elementwise and generated operations, whose names tell nothing."""
    name = operator.rpartition("::")[2]
    if operator in PRODUCTS:
        return "matrix product"
    if "scaled_dot_product" in name or "flex_attention" in name or "_flash_attention" in name:
        return "fused attention"
    if name in _COPIES:
        return "cast" if len(set(dtypes[:2])) == 2 and name != "cat" else "copy"
    for names, kind in ((_REDUCTIONS, "reduction"), (_FILLS, "memset"), (_INDEXING, "indexing")):
        if name in names:
            return kind
    return None


def _kind_of_kernel(kernel: str) -> str:
    for pattern, kind in (
        (_ATTENTION_KERNEL, "fused attention"),
        (_PRODUCT_KERNEL, "matrix product"),
        (_CAST_KERNEL, "cast"),
        (_FILL_KERNEL, "memset"),
        (_REDUCTION_KERNEL, "reduction"),
        (_INDEXING_KERNEL, "indexing"),
        (_COPY_KERNEL, "copy"),
    ):
        if pattern.search(kernel):
            return kind
    return "elementwise"
