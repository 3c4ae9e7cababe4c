"""The ops that autocast is asked about, each as one call on a floating matrix (rows, columns).

`a` has the dtype under test; `b` is a float32 tensor of the same shape, for ops whose second operand is not cast.
Integer operands and constants are made on the spot.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Call = Callable[[Tensor, Tensor], Tensor]


def _targets(a: Tensor) -> Tensor:
    return torch.zeros(a.shape[0], dtype=torch.int64, device=a.device)


def _probabilities(a: Tensor) -> Tensor:
    return a.abs().clamp(0.25, 0.75)


def _attention(a: Tensor, b: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(a[None, None], a[None, None], a[None, None])


def _conv1d(a: Tensor, b: Tensor) -> Tensor:
    return F.conv1d(a[None], a[:, :1, None].transpose(0, 1))


def _batch_norm(a: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(a, None, None, training=True)


def _index_put(a: Tensor, b: Tensor) -> Tensor:
    return torch.index_put(b, (_targets(a),), a)


def _scatter_add(a: Tensor, b: Tensor) -> Tensor:
    return torch.scatter_add(b, 0, torch.zeros_like(b, dtype=torch.int64), a)


PRODUCTS: dict[str, Call] = {
    "linear": lambda a, b: F.linear(a, a),
    "matmul": lambda a, b: torch.matmul(a, a.T),
    "@": lambda a, b: a @ a.T,
    "mm": lambda a, b: torch.mm(a, a.T),
    "bmm": lambda a, b: torch.bmm(a[None], a.T[None]),
    "addmm": lambda a, b: torch.addmm(a[:, :1], a, a.T),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :1], a[None], a.T[None]),
    "addbmm": lambda a, b: torch.addbmm(a[:, :1], a[None], a.T[None]),
    "linalg.vecdot": lambda a, b: torch.linalg.vecdot(a, a),
    "linalg.multi_dot": lambda a, b: torch.linalg.multi_dot([a, a.T, a]),
    "einsum(contraction)": lambda a, b: torch.einsum("ij,kj->ik", a, a),
    "conv1d": _conv1d,
    "prelu": lambda a, b: F.prelu(a, a[0, :1]),
    "scaled_dot_product_attention": _attention,
}

TENSORDOT: dict[str, Call] = {"tensordot": lambda a, b: torch.tensordot(a, a, dims=([1], [1]))}

SMALL_PRODUCTS: dict[str, Call] = {
    "mv": lambda a, b: torch.mv(a, a[0]),
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, a[0]),
    "addr": lambda a, b: torch.addr(a, a[:, 0], a[0]),
    "einsum(outer)": lambda a, b: torch.einsum("i,j->ij", a[0], a[0]),
}

NORMS_AND_SUMS: dict[str, Call] = {
    "layer_norm": lambda a, b: F.layer_norm(a, a.shape[-1:]),
    "layer_norm(weight)": lambda a, b: F.layer_norm(a, a.shape[-1:], a[0], a[0]),
    "group_norm": lambda a, b: F.group_norm(a, 1),
    "softplus": lambda a, b: F.softplus(a),
    "cosine_similarity": lambda a, b: F.cosine_similarity(a, a, dim=-1),
    "logsumexp": lambda a, b: torch.logsumexp(a, -1),
    "softmax": lambda a, b: F.softmax(a, -1),
    "Tensor.softmax": lambda a, b: a.softmax(-1),
    "log_softmax": lambda a, b: F.log_softmax(a, -1),
    "sum": lambda a, b: a.sum(),
    "sum(dim)": lambda a, b: a.sum(-1),
    "cumsum": lambda a, b: a.cumsum(-1),
    "cumprod": lambda a, b: a.cumprod(-1),
    "norm": lambda a, b: torch.norm(a),
    "norm(dim)": lambda a, b: torch.norm(a, dim=-1),
    "linalg.vector_norm": lambda a, b: torch.linalg.vector_norm(a),
    "normalize": lambda a, b: F.normalize(a),
    "exp": lambda a, b: a.exp(),
    "expm1": lambda a, b: a.expm1(),
    "log": lambda a, b: a.abs().log(),
    "log1p": lambda a, b: a.abs().log1p(),
    "pow(scalar)": lambda a, b: a.abs() ** 0.5,
    "pow(square)": lambda a, b: a**2,
    "pow(base)": lambda a, b: 2.0**a,
    "square": lambda a, b: a.square(),
    "rsqrt": lambda a, b: a.abs().rsqrt(),
    "reciprocal": lambda a, b: a.reciprocal(),
    "1 / x": lambda a, b: 1 / a,
    "tan": lambda a, b: a.tan(),
}

RMS_NORMS: dict[str, Call] = {
    "rms_norm": lambda a, b: F.rms_norm(a, a.shape[-1:], eps=1e-5),
    "rms_norm(weight)": lambda a, b: F.rms_norm(a, a.shape[-1:], a[0], eps=1e-5),
}

LOSSES: dict[str, Call] = {
    "cross_entropy": lambda a, b: F.cross_entropy(a, _targets(a)),
    "cross_entropy(label_smoothing)": lambda a, b: F.cross_entropy(a, _targets(a), label_smoothing=0.1),
    "nll_loss": lambda a, b: F.nll_loss(a, _targets(a)),
    "mse_loss": lambda a, b: F.mse_loss(a, a.detach()),
    "l1_loss": lambda a, b: F.l1_loss(a, a.detach()),
    "huber_loss": lambda a, b: F.huber_loss(a, a.detach()),
    "kl_div": lambda a, b: F.kl_div(a, a.detach(), reduction="batchmean"),
    "binary_cross_entropy_with_logits": lambda a, b: F.binary_cross_entropy_with_logits(a, a.detach()),
    "prod": lambda a, b: a.prod(),
    "cdist": lambda a, b: torch.cdist(a, a),
}

BANNED_ON_CUDA: dict[str, Call] = {
    "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(_probabilities(a), _probabilities(a).detach()),
}

ONLY_ON_CPU: dict[str, Call] = {"quantile": lambda a, b: torch.quantile(a, 0.5)}

UNTOUCHED: dict[str, Call] = {
    "mean": lambda a, b: a.mean(),
    "var": lambda a, b: a.var(),
    "std": lambda a, b: a.std(),
    "max": lambda a, b: a.max(),
    "amax": lambda a, b: a.amax(-1),
    "sqrt": lambda a, b: a.abs().sqrt(),
    "sin": lambda a, b: a.sin(),
    "cos": lambda a, b: a.cos(),
    "sigmoid": lambda a, b: a.sigmoid(),
    "tanh": lambda a, b: a.tanh(),
    "relu": lambda a, b: a.relu(),
    "silu": lambda a, b: F.silu(a),
    "gelu": lambda a, b: F.gelu(a),
    "gelu(tanh)": lambda a, b: F.gelu(a, approximate="tanh"),
    "glu": lambda a, b: F.glu(a, 0),
    "dropout": lambda a, b: F.dropout(a, 0.5),
    "masked_fill": lambda a, b: a.masked_fill(a > 0, 0.0),
    "where": lambda a, b: torch.where(a > 0, a, 0.0),
    "embedding": lambda a, b: F.embedding(_targets(a), a),
    "indexing": lambda a, b: a[_targets(a)],
    "batch_norm": _batch_norm,
    "outer": lambda a, b: torch.outer(a[0], a[0]),
    "add": lambda a, b: a + a,
    "mul": lambda a, b: a * a,
    "lerp": lambda a, b: torch.lerp(a, a, 0.5),
    "cat": lambda a, b: torch.cat([a, a]),
    "stack": lambda a, b: torch.stack([a, a]),
    "dot": lambda a, b: torch.dot(a[0], a[0]),
}

WITH_FLOAT32: dict[str, Call] = {
    "add(+fp32)": lambda a, b: a + b,
    "mul(+fp32)": lambda a, b: a * b,
    "cat(+fp32)": lambda a, b: torch.cat([a, b]),
    "stack(+fp32)": lambda a, b: torch.stack([a, b]),
    "addcmul(+fp32)": lambda a, b: torch.addcmul(a, a, b),
    "addcdiv(+fp32)": lambda a, b: torch.addcdiv(a, a, b),
    "atan2(+fp32)": lambda a, b: torch.atan2(a, b),
}

EXPLICIT_DTYPE: dict[str, Call] = {
    "softmax(dtype)": lambda a, b: F.softmax(a, -1, dtype=torch.float32),
    "sum(dtype)": lambda a, b: a.sum(dtype=torch.float32),
}

PROMOTED_ON_CUDA: dict[str, Call] = {
    "dot(+fp32)": lambda a, b: torch.dot(a[0], b[0]),
    "index_put(+fp32)": _index_put,
    "scatter_add(+fp32)": _scatter_add,
}

COMPLEX: dict[str, Call] = {"polar": lambda a, b: torch.polar(a.float(), b)}

NEEDS_FLOAT32 = ("cdist", "quantile")
"""Ops without a 16-bit kernel on a CPU: they run there only because autocast casts their input."""

GROUPS = {
    "products": PRODUCTS,
    "tensordot": TENSORDOT,
    "small products": SMALL_PRODUCTS,
    "norms and sums": NORMS_AND_SUMS,
    "rms norms": RMS_NORMS,
    "losses": LOSSES,
    "banned on cuda": BANNED_ON_CUDA,
    "only on cpu": ONLY_ON_CPU,
    "untouched": UNTOUCHED,
    "with float32": WITH_FLOAT32,
    "explicit dtype": EXPLICIT_DTYPE,
    "promoted on cuda": PROMOTED_ON_CUDA,
    "complex": COMPLEX,
}
"""Ops that one rule covers, on each device."""

OPS = {name: call for group in GROUPS.values() for name, call in group.items()}
GROUP_OF = {name: group for group, calls in GROUPS.items() for name in calls}


def why_missing(error: AttributeError) -> str | None:
    """A sentence where an op failed because this torch lacks it; None for any other AttributeError."""
    if error.obj in (torch, F, torch.linalg):
        return f"torch {torch.__version__} has no {error.obj.__name__}.{error.name}."
    return None
