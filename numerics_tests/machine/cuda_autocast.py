"""CUDA's autocast on a machine without a GPU: its lists are registered under the CPU's autocast key.

So the rules of the installed header are carried out on real numbers.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RULES = ("cpu", "cuda")
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
POLICIES = {
    "LOWER_PRECISION_FP": "low",
    "FP32": "float32",
    "FP32_SET_OPT_DTYPE": "set dtype",
}
"""What the lists of the header, `AT_FORALL_...`, that ops of a Transformer stand in do to them."""


def op_lists(header: str) -> dict[str, list[str]]:
    """Ops with their overload, such as `softmax.int`, by policy; raises ValueError where the header lacks a list."""
    # A line that ends in a backslash continues in the next.
    macros = dict(re.findall(r"#define AT_FORALL_(\w+)\(_\)(.*)", header.replace("\\\n", " ")))
    lists = {}
    for macro, policy in POLICIES.items():
        if macro not in macros:
            raise ValueError(f"{HEADER} defines no AT_FORALL_{macro}; this torch lists its ops in another way.")
        found = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", macros[macro])
        lists[policy] = [f"{op}.{overload}" if overload else op for op, overload in found]
    return lists


def cuda_lists() -> dict[str, list[str]]:
    """What CUDA's autocast casts each op to, as the installed header says."""
    return op_lists(HEADER.read_text())


def _is_eligible(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """`value`, or each member of it, cast where autocast may cast."""
    if isinstance(value, list | tuple):
        return type(value)(_cast(member, dtype) for member in value)
    return value.to(dtype) if _is_eligible(value) else value


def _kernel(policy: str, op: Any) -> Callable[..., Any]:
    """What autocast does before it calls `op` with autocast off, as in the templates of the header."""

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu") if policy == "low" else torch.float32
        with torch.autocast("cpu", enabled=False):
            if policy != "set dtype":
                return op(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})
            if not _is_eligible(args[0]):
                return op(*args, **kwargs)
            if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
                return op(*args, **kwargs)  # a dtype that the call names wins
            return op(*args, **{**kwargs, "dtype": torch.float32})

    return run


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Let `torch.autocast("cpu")` follow CUDA's rules; afterwards the CPU's own are back.

    An op that only the CPU lists, such as quantile, keeps the CPU's rule.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns that one of its kernels is overridden, which is the purpose.
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verriding a previously registered kernel.*")
            for policy, names in cuda_lists().items():
                for name in names:
                    packet, _, overload = name.partition(".")
                    op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
                    if op is not None:  # the header also lists ops that only a build with CUDA has
                        library.impl(name, _kernel(policy, op), "AutocastCPU")
        yield
    finally:
        del library  # a library without references removes its registrations


def in_force(rules: str, device: torch.device) -> AbstractContextManager[None]:
    """The rules called `rules` on `device`: its own are in force already, CUDA's on a CPU are registered."""
    return on_the_cpu() if (rules, device.type) == ("cuda", "cpu") else nullcontext()
