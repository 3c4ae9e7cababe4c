"""What autocast turns each op's result into: the ops, and a table by device, op, dtypes and torch version.

Sources, named in each row of the table: OP_LIST is "CPU Ops that can autocast to lower precision / float32" and its
CUDA twin on pytorch.org/docs/stable/amp.html; HEADER is ATen/autocast_mode.h of the installed wheel; RUN is
what torch 2.9, 2.13 and 2.15 did on x86-64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Call = Callable[[Tensor, Tensor], Tensor]
"""(a, b) to the result of one op: `a` is a floating matrix of the dtype under test, `b` one of float32 and its shape,
for ops whose second operand is not cast. Integer operands and constants are made on the spot."""


def _targets(a: Tensor) -> Tensor:
    return torch.zeros(a.shape[0], dtype=torch.int64, device=a.device)


def _attention(a: Tensor, b: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(a[None, None], a[None, None], a[None, None])


def _probabilities(a: Tensor) -> Tensor:
    return a.abs().clamp(0.25, 0.75)


def _method(name: str, a: Tensor, b: Tensor) -> Tensor:
    found: Tensor = getattr(a, name)()
    return found


def _methods(*names: str) -> dict[str, Call]:
    """Ops that are methods of a tensor without arguments."""
    return {name: partial(_method, name) for name in names}


GROUPS: dict[str, dict[str, Call]] = {
    "products": {
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
        "conv1d": lambda a, b: F.conv1d(a[None], a[:, :1, None].transpose(0, 1)),
        "prelu": lambda a, b: F.prelu(a, a[0, :1]),
        "scaled_dot_product_attention": _attention,
    },
    "tensordot": {"tensordot": lambda a, b: torch.tensordot(a, a, dims=([1], [1]))},
    "small products": {
        "mv": lambda a, b: torch.mv(a, a[0]),
        "addmv": lambda a, b: torch.addmv(a[:, 0], a, a[0]),
        "addr": lambda a, b: torch.addr(a, a[:, 0], a[0]),
        "einsum(outer)": lambda a, b: torch.einsum("i,j->ij", a[0], a[0]),
    },
    "norms and sums": {
        **_methods("sum", "exp", "expm1", "square", "reciprocal", "tan"),
        "layer_norm": lambda a, b: F.layer_norm(a, a.shape[-1:]),
        "layer_norm(weight)": lambda a, b: F.layer_norm(a, a.shape[-1:], a[0], a[0]),
        "group_norm": lambda a, b: F.group_norm(a, 1),
        "softplus": lambda a, b: F.softplus(a),
        "cosine_similarity": lambda a, b: F.cosine_similarity(a, a, dim=-1),
        "logsumexp": lambda a, b: torch.logsumexp(a, -1),
        "softmax": lambda a, b: F.softmax(a, -1),
        "Tensor.softmax": lambda a, b: a.softmax(-1),
        "log_softmax": lambda a, b: F.log_softmax(a, -1),
        "sum(dim)": lambda a, b: a.sum(-1),
        "cumsum": lambda a, b: a.cumsum(-1),
        "cumprod": lambda a, b: a.cumprod(-1),
        "norm": lambda a, b: torch.norm(a),
        "norm(dim)": lambda a, b: torch.norm(a, dim=-1),
        "linalg.vector_norm": lambda a, b: torch.linalg.vector_norm(a),
        "normalize": lambda a, b: F.normalize(a),
        "log": lambda a, b: a.abs().log(),
        "log1p": lambda a, b: a.abs().log1p(),
        "pow(scalar)": lambda a, b: a.abs() ** 0.5,
        "pow(square)": lambda a, b: a**2,
        "pow(base)": lambda a, b: 2.0**a,
        "rsqrt": lambda a, b: a.abs().rsqrt(),
        "1 / x": lambda a, b: 1 / a,
        "tan": lambda a, b: a.tan(),
    },
    "rms norms": {
        "rms_norm": lambda a, b: F.rms_norm(a, a.shape[-1:], eps=1e-5),
        "rms_norm(weight)": lambda a, b: F.rms_norm(a, a.shape[-1:], a[0], eps=1e-5),
    },
    "losses": {
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
    },
    "banned on cuda": {
        "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(_probabilities(a), _probabilities(a).detach()),
    },
    "only on cpu": {"quantile": lambda a, b: torch.quantile(a, 0.5)},
    "untouched": {
        **_methods("mean", "var", "std", "max", "sin", "cos", "sigmoid", "tanh", "relu"),
        "amax": lambda a, b: a.amax(-1),
        "sqrt": lambda a, b: a.abs().sqrt(),
        "silu": lambda a, b: F.silu(a),
        "gelu": lambda a, b: F.gelu(a),
        "gelu(tanh)": lambda a, b: F.gelu(a, approximate="tanh"),
        "glu": lambda a, b: F.glu(a, 0),
        "dropout": lambda a, b: F.dropout(a, 0.5),
        "masked_fill": lambda a, b: a.masked_fill(a > 0, 0.0),
        "where": lambda a, b: torch.where(a > 0, a, 0.0),
        "embedding": lambda a, b: F.embedding(_targets(a), a),
        "indexing": lambda a, b: a[_targets(a)],
        "batch_norm": lambda a, b: F.batch_norm(a, None, None, training=True),
        "outer": lambda a, b: torch.outer(a[0], a[0]),
        "add": lambda a, b: a + a,
        "mul": lambda a, b: a * a,
        "lerp": lambda a, b: torch.lerp(a, a, 0.5),
        "cat": lambda a, b: torch.cat([a, a]),
        "stack": lambda a, b: torch.stack([a, a]),
        "dot": lambda a, b: torch.dot(a[0], a[0]),
    },
    "with float32": {
        "add(+fp32)": lambda a, b: a + b,
        "mul(+fp32)": lambda a, b: a * b,
        "cat(+fp32)": lambda a, b: torch.cat([a, b]),
        "stack(+fp32)": lambda a, b: torch.stack([a, b]),
        "addcmul(+fp32)": lambda a, b: torch.addcmul(a, a, b),
        "addcdiv(+fp32)": lambda a, b: torch.addcdiv(a, a, b),
        "atan2(+fp32)": lambda a, b: torch.atan2(a, b),
    },
    "explicit dtype": {
        "softmax(dtype)": lambda a, b: F.softmax(a, -1, dtype=torch.float32),
        "sum(dtype)": lambda a, b: a.sum(dtype=torch.float32),
    },
    "promoted on cuda": {
        "dot(+fp32)": lambda a, b: torch.dot(a[0], b[0]),
        "index_put(+fp32)": lambda a, b: torch.index_put(b, (_targets(a),), a),
        "scatter_add(+fp32)": lambda a, b: torch.scatter_add(b, 0, torch.zeros_like(b, dtype=torch.int64), a),
    },
    "complex": {"polar": lambda a, b: torch.polar(a.float(), b)},
}
"""Ops that one rule covers, on each device."""

OPS = {name: call for group in GROUPS.values() for name, call in group.items()}
GROUP_OF = {name: group for group, calls in GROUPS.items() for name in calls}

NEEDS_FLOAT32 = ("cdist", "quantile")
"""Ops without a 16-bit kernel on a CPU: they run there only because autocast casts their input."""


class Rule(Enum):
    """What autocast does to the inputs, and so to the result."""

    LOW = "cast to the autocast dtype"
    FLOAT32 = "cast to float32"
    UNCHANGED = "computed in the dtype that comes in"
    WIDEST = "computed in the widest dtype that comes in, float32 here"
    EXPLICIT = "computed in the dtype that the call names, float32 here"
    RAISES_UNLESS_FLOAT32 = "raises unless float32 comes in"
    RAISES = "raises"
    COMPLEX = "complex64"


RAISES = "raises"
Version = tuple[int, int]


@dataclass(frozen=True)
class AutocastRow:
    """A rule for a group of ops on one device, from one torch version on."""

    device: str
    group: str
    rule: Rule
    source: str
    since: Version = (2, 9)


TABLE = (
    AutocastRow("cpu", "products", Rule.LOW, "OP_LIST, CPU"),
    AutocastRow("cpu", "tensordot", Rule.LOW, "RUN; it ends in mm, OP_LIST, CPU"),
    # Not on the CPU's list; pytorch/pytorch lists mv, addmv, addr and einsum for CUDA alone.
    AutocastRow("cpu", "small products", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "norms and sums", Rule.UNCHANGED, "RUN; intel/intel-extension-for-pytorch#731"),
    AutocastRow("cpu", "rms norms", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "losses", Rule.FLOAT32, "OP_LIST, CPU"),
    AutocastRow("cpu", "banned on cuda", Rule.FLOAT32, "OP_LIST, CPU"),
    AutocastRow("cpu", "only on cpu", Rule.FLOAT32, "OP_LIST, CPU"),
    AutocastRow("cpu", "untouched", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "with float32", Rule.WIDEST, "RUN; type promotion of the op itself"),
    AutocastRow("cpu", "explicit dtype", Rule.EXPLICIT, "RUN"),
    AutocastRow("cpu", "promoted on cuda", Rule.RAISES_UNLESS_FLOAT32, "RUN"),
    AutocastRow("cpu", "complex", Rule.COMPLEX, "RUN"),
    AutocastRow("cuda", "products", Rule.LOW, "OP_LIST, CUDA; HEADER, LOWER_PRECISION_FP"),
    # Promoted to the widest input and not lowered, because its mm runs with autocast already left.
    AutocastRow("cuda", "tensordot", Rule.UNCHANGED, "HEADER, PROMOTE"),
    AutocastRow("cuda", "small products", Rule.LOW, "OP_LIST, CUDA; HEADER, LOWER_PRECISION_FP"),
    AutocastRow("cuda", "norms and sums", Rule.FLOAT32, "OP_LIST, CUDA; HEADER, FP32 and FP32_SET_OPT_DTYPE"),
    AutocastRow("cuda", "rms norms", Rule.UNCHANGED, "HEADER, not in any list"),
    AutocastRow("cuda", "rms norms", Rule.FLOAT32, "HEADER, FP32; pytorch/pytorch#174824", since=(2, 12)),
    AutocastRow("cuda", "losses", Rule.FLOAT32, "OP_LIST, CUDA; HEADER, FP32"),
    AutocastRow("cuda", "banned on cuda", Rule.RAISES, "OP_LIST, CUDA: binary_cross_entropy"),
    AutocastRow("cuda", "untouched", Rule.UNCHANGED, "HEADER, not in any list"),
    AutocastRow("cuda", "with float32", Rule.WIDEST, "OP_LIST, CUDA; HEADER, PROMOTE"),
    AutocastRow("cuda", "explicit dtype", Rule.EXPLICIT, "HEADER, FP32_SET_OPT_DTYPE"),
    AutocastRow("cuda", "promoted on cuda", Rule.WIDEST, "OP_LIST, CUDA; HEADER, PROMOTE"),
    AutocastRow("cuda", "complex", Rule.COMPLEX, "RUN on the CPU"),
)


def torch_version() -> Version:
    """(2, 13) of 2.13.0+cpu."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def row_for(device: str, op: str, version: Version) -> AutocastRow | None:
    """The row in force for `op`: the latest not newer than `version`; None where no source says anything."""
    rows = [row for row in TABLE if row.device == device and row.group == GROUP_OF[op] and row.since <= version]
    return max(rows, key=lambda row: row.since, default=None)


def expected_dtype(
    device: str, op: str, input_dtype: torch.dtype, autocast_dtype: torch.dtype | None, version: Version
) -> torch.dtype | str | None:
    """The dtype of what `op` returns, RAISES, or None where the table is silent; autocast dtype None: no autocast."""
    row = row_for(device, op, version)
    # Not checked: whether CUDA has 16-bit kernels for these.
    is_unknown = device == "cuda" and autocast_dtype is None and op in NEEDS_FLOAT32
    if row is None or is_unknown:
        return None
    rule = row.rule
    if autocast_dtype is None:
        # Then an op computes in the dtype of its inputs, or raises where it has no kernel for it.
        if op in NEEDS_FLOAT32 or GROUP_OF[op] == "promoted on cuda":
            rule = Rule.RAISES_UNLESS_FLOAT32
        elif rule in (Rule.LOW, Rule.FLOAT32, Rule.RAISES):
            rule = Rule.UNCHANGED
    if input_dtype == torch.float64 and rule not in (Rule.COMPLEX, Rule.EXPLICIT):
        # Autocast leaves float64 alone (HEADER, is_eligible). Ops that need one dtype then raise, as without autocast.
        is_silent = rule in (Rule.RAISES, Rule.RAISES_UNLESS_FLOAT32) or GROUP_OF[op] == "promoted on cuda"
        return None if is_silent else torch.float64
    return {
        Rule.LOW: autocast_dtype,
        Rule.FLOAT32: torch.float32,
        Rule.UNCHANGED: input_dtype,
        Rule.WIDEST: torch.float32,
        Rule.EXPLICIT: torch.float32,
        Rule.RAISES_UNLESS_FLOAT32: input_dtype if input_dtype == torch.float32 else RAISES,
        Rule.RAISES: RAISES,
        Rule.COMPLEX: torch.complex64,
    }[rule]


def cast_by_hand(device: str, op: str, value: Tensor, autocast_dtype: torch.dtype, version: Version) -> Tensor:
    """`value` as autocast should hand it to `op`; raises KeyError for an op that the table does not cover."""
    row = row_for(device, op, version)
    if row is None:
        raise KeyError(f"no row of the autocast table covers {op} on {device}.")
    if value.dtype == torch.float64:
        return value
    return value.to({Rule.LOW: autocast_dtype, Rule.FLOAT32: torch.float32}.get(row.rule, value.dtype))
