"""Wrong attention kernels: the example with one fault planted each, and whether the suite's check refuses a kernel."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError, Use, attention_named, check_attention
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError

EXAMPLE = Path(__file__).parents[2] / "examples" / "flash_attention.py"
SIZES_OF_A_CASE = (5, 4)
"""Sequences and heads, more of both than in the checks at other lengths."""

_SCALE = " / math.sqrt(q.shape[-1])"
_CALL = "FlashAttention.apply(q, k, v)"
_PADDED = "torch.nn.functional.pad({}, (0, 0, 0, -q.shape[-2] % BLOCK){})"


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in the example, becomes `new`; some show in one precision or layout alone."""

    old: str
    new: str
    precision: str = "fp32"
    has_heads: bool = False

    @property
    def source(self) -> str:
        """The example with the fault."""
        text = EXAMPLE.read_text()
        assert text.count(self.old) == 1, self.old
        return text.replace(self.old, self.new)


FAULTS = {
    "no scale": Fault(f".float().mT{_SCALE}\n", ".float().mT\n"),
    "no mask": Fault("return tile.masked_fill(key > query[:, None], -math.inf)", "return tile"),
    "mask off by one": Fault("key > query[:, None]", "key > query[:, None] + 1"),
    "own token hidden": Fault("key > query[:, None]", "key >= query[:, None]"),
    "finite mask": Fault("key > query[:, None], -math.inf", "key > query[:, None], -10.0"),
    "last block of keys dropped": Fault("in tiles(rows.stop):", "in tiles(max(BLOCK, rows.start)):"),
    "remainder of a block dropped": Fault("range(first, tokens,", "range(first, max(1, tokens - BLOCK + 1),"),
    "sums not rescaled": Fault("sums = sums * rescaling +", "sums = sums +"),
    "accumulates in half": Fault("highest = higher\n", "highest, total = higher, total.half().float()\n"),
    "sums key by key in bfloat16": Fault(
        "exponentials.sum(-1, keepdim=True)\n",
        "0; sums = sum(exponentials.bfloat16().split(1, -1), start=sums.bfloat16()).float()\n", "bf16",
    ),
    "products of operands in ten bits": Fault(
        "output: Tensor =", "q = q + (q.half().float() - q).detach(); output: Tensor =",
    ),
    "float64 out": Fault("output = torch.empty_like(q)\n", "output = torch.empty_like(q, dtype=torch.float64)\n"),
    "heads in another order": Fault(_CALL, "FlashAttention.apply(q, k, v.flip(-3))"),
    "strides ignored": Fault(
        _CALL, "FlashAttention.apply(q, k, v.as_strided(v.shape, torch.empty(v.shape).stride()))", has_heads=True
    ),
    "stale log-sum-exp": Fault("(highest + sums.log())[..., 0]", "highest[..., 0]"),
    "one buffer of sums for every call": Fault(
        "log_sums = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)",
        "log_sums = flash_attention.__dict__.setdefault(str(q.shape), q[..., 0].clone()).data",
    ),
    "gradient of q unscaled": Fault("+= ds @ k[", "+= math.sqrt(q.shape[-1]) * ds @ k["),
    "gradient of k of its last queries alone": Fault("dk[..., columns, :] += ds.mT", "dk[..., columns, :] = ds.mT"),
    "wrong gradient of the values": Fault("dv[..., columns, :] += p.mT", "dv[..., columns, :] += ds.mT"),
    "gradient without the row sums": Fault("(dp - row_sums[..., rows, None])", "dp"),
    "no gradient of k": Fault("dk.to(k.dtype), dv", "None, dv"),
    "no graph": Fault(_CALL, f"{_CALL}.detach()"),
    "NaN in padded rows": Fault(
        _CALL,
        f"FlashAttention.apply({_PADDED.format('q', ', value=math.nan')}, {_PADDED.format('k', '')}, "
        f"{_PADDED.format('v', '')})[..., : q.shape[-2], :]",
    ),
    "inputs changed in place": Fault(
        "ctx.save_for_backward(q, ", "(kept, q) = (q.clone(), q.div_(2)); ctx.save_for_backward(kept, "
    ),
    "wrong without a graph": Fault(_CALL, f"{_CALL} if torch.is_grad_enabled() else v"),
    "heads merged": Fault(_CALL, f"{_CALL}.flatten(0, 1)"),
    "sequences from the third on not computed": Fault(
        _CALL, "torch.cat((FlashAttention.apply(q[:2], k[:2], v[:2]), v[2:]))"
    ),
    "heads from the fourth on zero": Fault(
        _CALL, "torch.nn.functional.pad(FlashAttention.apply(*(x[:, :3] for x in (q, k, v))), "
        "(0, 0, 0, 0, 0, max(0, q.shape[1] - 3)))", has_heads=True,
    ),
    "gradient of sequences from the third on": Fault("return dq.to", "dq[2:] = 0\n        return dq.to"),
}  # fmt: skip
"""Faults by what is wrong."""


def refusal_of_fault(name: str, device: torch.device) -> str | None:
    """Why the example with this fault is refused; None where it is not."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "planted.py")
        path.write_text(fault.source)
        use = Use(16, fault.has_heads, PRECISIONS[fault.precision], device)
        name_of_file = f"{path}:flash_attention"
        return refusal(attention_named(name_of_file).build(), name_of_file, use)


def refusal(attend: AttentionFunction, name: str, use: Use, seed: int = 0) -> str | None:
    """Why the suite's check of an attention under test refuses this one; None where it does not."""
    try:
        check_attention(attend, name, use, sizes=[SIZES_OF_A_CASE], seed=seed)
    except (IncorrectError, UserCodeError) as error:
        return str(error)
    return None
