"""What autocast turns each op's result into: a table by device, op, input dtype, autocast dtype and torch version.

Sources, named in each row: OP_LIST is "CPU Ops that can autocast to lower precision / float32" and its CUDA twin on
pytorch.org/docs/stable/amp.html; HEADER is ATen/autocast_mode.h of the installed wheel; RUN is what torch 2.9,
2.13 and 2.15 did on x86-64.
"""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from numerics_tests.autocast_ops import GROUP_OF, NEEDS_FLOAT32


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
    """dtype of the result of `op`, RAISES, or None where the table is silent; autocast dtype None is no autocast."""
    row = row_for(device, op, version)
    # Not checked: whether CUDA has 16-bit kernels for these.
    is_unknown = device == "cuda" and autocast_dtype is None and op in NEEDS_FLOAT32
    if row is None or is_unknown:
        return None
    rule = row.rule if autocast_dtype else _rule_without_autocast(row.rule, op)
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


def _rule_without_autocast(rule: Rule, op: str) -> Rule:
    """Without autocast an op computes in the dtype of its inputs, or raises where it has no kernel for it."""
    if op in NEEDS_FLOAT32 or GROUP_OF[op] == "promoted on cuda":
        return Rule.RAISES_UNLESS_FLOAT32
    return Rule.UNCHANGED if rule in (Rule.LOW, Rule.FLOAT32, Rule.RAISES) else rule


def cast_by_hand(device: str, op: str, value: Tensor, autocast_dtype: torch.dtype, version: Version) -> Tensor:
    """`value` as autocast should hand it to `op`; raises KeyError for an op that the table does not cover."""
    row = row_for(device, op, version)
    if row is None:
        raise KeyError(f"no row of the autocast table covers {op} on {device}.")
    if value.dtype == torch.float64:
        return value
    return value.to({Rule.LOW: autocast_dtype, Rule.FLOAT32: torch.float32}.get(row.rule, value.dtype))
