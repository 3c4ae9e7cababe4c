"""What autocast turns the result of each operation of a Transformer into: a table by device and torch version.

Sources, named in each row: OP_LIST is "CPU Ops that can autocast to lower precision / float32" and its CUDA twin on
pytorch.org/docs/stable/amp.html; HEADER is ATen/autocast_mode.h of the installed wheel; RUN is what torch 2.9, 2.13 and
2.15 did on x86-64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

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


GROUPS: dict[str, dict[str, Call]] = {
    "products": {
        "linear": lambda a, b: F.linear(a, a),
        "matmul": lambda a, b: a @ a.T,
        "mm": lambda a, b: torch.mm(a, a.T),
        "bmm": lambda a, b: torch.bmm(a[None], a.T[None]),
        "addmm": lambda a, b: torch.addmm(a[:, :1], a, a.T),
        "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :1], a[None], a.T[None]),
        "einsum(contraction)": lambda a, b: torch.einsum("ij,kj->ik", a, a),
        "scaled_dot_product_attention": _attention,
    },
    "small products": {
        "mv": lambda a, b: torch.mv(a, a[0]),
        "einsum(outer)": lambda a, b: torch.einsum("i,j->ij", a[0], a[0]),
    },
    "norms and sums": {
        "sum": lambda a, b: a.sum(),
        "sum(dim)": lambda a, b: a.sum(-1),
        "cumsum": lambda a, b: a.cumsum(-1),
        "exp": lambda a, b: a.exp(),
        "log": lambda a, b: a.abs().log(),
        "pow": lambda a, b: a**2,
        "reciprocal": lambda a, b: a.reciprocal(),
        "rsqrt": lambda a, b: a.abs().rsqrt(),
        "logsumexp": lambda a, b: torch.logsumexp(a, -1),
        "softmax": lambda a, b: a.softmax(-1),
        "log_softmax": lambda a, b: F.log_softmax(a, -1),
        "layer_norm": lambda a, b: F.layer_norm(a, a.shape[-1:]),
        "layer_norm(weight)": lambda a, b: F.layer_norm(a, a.shape[-1:], a[0], a[0]),
    },
    "rms norms": {
        "rms_norm": lambda a, b: F.rms_norm(a, a.shape[-1:], eps=1e-5),
        "rms_norm(weight)": lambda a, b: F.rms_norm(a, a.shape[-1:], a[0], eps=1e-5),
    },
    "losses": {
        "cross_entropy": lambda a, b: F.cross_entropy(a, _targets(a)),
        "nll_loss": lambda a, b: F.nll_loss(a, _targets(a)),
        "mse_loss": lambda a, b: F.mse_loss(a, a.detach()),
    },
    "untouched": {
        "mean": lambda a, b: a.mean(),
        "max": lambda a, b: a.max(),
        "sin": lambda a, b: a.sin(),
        "sigmoid": lambda a, b: a.sigmoid(),
        "relu": lambda a, b: a.relu(),
        "tanh": lambda a, b: a.tanh(),
        "silu": lambda a, b: F.silu(a),
        "gelu": lambda a, b: F.gelu(a),
        "where": lambda a, b: torch.where(a > 0, a, 0.0),
        "embedding": lambda a, b: F.embedding(_targets(a), a),
        "gather": lambda a, b: a.gather(-1, _targets(a)[:, None]),
        "outer": lambda a, b: torch.outer(a[0], a[0]),
        "add": lambda a, b: a + a,
        "mul": lambda a, b: a * a,
        "div": lambda a, b: a / a,
        "cat": lambda a, b: torch.cat([a, a]),
        "stack": lambda a, b: torch.stack([a, a]),
    },
    "with float32": {
        "add(+fp32)": lambda a, b: a + b,
        "mul(+fp32)": lambda a, b: a * b,
        "cat(+fp32)": lambda a, b: torch.cat([a, b]),
    },
}
"""Ops that one rule covers, on each device."""

OPS = {name: call for group in GROUPS.values() for name, call in group.items()}
GROUP_OF = {name: group for group, calls in GROUPS.items() for name in calls}


class Rule(Enum):
    """What autocast does to the inputs, and so to the result."""

    LOW = "cast to the autocast dtype"
    FLOAT32 = "cast to float32"
    UNCHANGED = "computed in the dtype that comes in"
    WIDEST = "computed in the widest dtype that comes in, float32 here"


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
    # Not on the CPU's list; pytorch/pytorch lists mv and einsum for CUDA alone.
    AutocastRow("cpu", "small products", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "norms and sums", Rule.UNCHANGED, "RUN; intel/intel-extension-for-pytorch#731"),
    AutocastRow("cpu", "rms norms", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "losses", Rule.FLOAT32, "OP_LIST, CPU"),
    AutocastRow("cpu", "untouched", Rule.UNCHANGED, "RUN"),
    AutocastRow("cpu", "with float32", Rule.WIDEST, "RUN; type promotion of the op itself"),
    AutocastRow("cuda", "products", Rule.LOW, "OP_LIST, CUDA; HEADER, LOWER_PRECISION_FP"),
    AutocastRow("cuda", "small products", Rule.LOW, "OP_LIST, CUDA; HEADER, LOWER_PRECISION_FP"),
    AutocastRow("cuda", "norms and sums", Rule.FLOAT32, "OP_LIST, CUDA; HEADER, FP32 and FP32_SET_OPT_DTYPE"),
    AutocastRow("cuda", "rms norms", Rule.UNCHANGED, "HEADER, not in any list"),
    AutocastRow("cuda", "rms norms", Rule.FLOAT32, "HEADER, FP32; pytorch/pytorch#174824", since=(2, 12)),
    AutocastRow("cuda", "losses", Rule.FLOAT32, "OP_LIST, CUDA; HEADER, FP32"),
    AutocastRow("cuda", "untouched", Rule.UNCHANGED, "HEADER, not in any list"),
    AutocastRow("cuda", "with float32", Rule.WIDEST, "RUN; type promotion of the op itself"),
)


def torch_version() -> Version:
    """(2, 13) of 2.13.0+cpu."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def row_for(device: str, op: str, version: Version) -> AutocastRow:
    """The row in force for `op`: the latest not newer than `version`."""
    rows = [row for row in TABLE if row.device == device and row.group == GROUP_OF[op] and row.since <= version]
    return max(rows, key=lambda row: row.since)


def expected_dtype(
    device: str, op: str, input_dtype: torch.dtype, autocast_dtype: torch.dtype | None, version: Version
) -> torch.dtype:
    """The dtype of what `op` returns; autocast dtype None: no autocast. float64 is left alone: HEADER, is_eligible."""
    rule = row_for(device, op, version).rule
    if input_dtype == torch.float64:
        return torch.float64
    if autocast_dtype is None and rule != Rule.WIDEST:
        return input_dtype
    return {Rule.LOW: autocast_dtype or input_dtype, Rule.UNCHANGED: input_dtype}.get(rule, torch.float32)


def cast_by_hand(device: str, op: str, value: Tensor, autocast_dtype: torch.dtype, version: Version) -> Tensor:
    """`value` as autocast should hand it to `op`."""
    rule = row_for(device, op, version).rule
    return value.to({Rule.LOW: autocast_dtype, Rule.FLOAT32: torch.float32}.get(rule, value.dtype))
