"""CUDA's rules applied to CPU tensors: which operations autocast keeps in float32, and which attention is fused.

Fake CUDA tensors abort a process whose torch has no CUDA. So GPU code is counted on CPU tensors under CPU autocast, and
this mode corrects what CUDA does differently.
"""

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from perf_tests.instruments.torch_private import operator
from perf_tests.limits.cuda_libraries import CudaLibraries, libraries_on

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "low": "AT_FORALL_LOWER_PRECISION_FP",
    "float32": "AT_FORALL_FP32",
    "set dtype": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "append dtype": "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
    "widest": "AT_FORALL_PROMOTE",
}

_SIXTEEN_BIT = (torch.bfloat16, torch.float16)

_PYTHON_NAMES = {"__pow__", "__rpow__", "cross_entropy"}
"""Calls of listed operators under other names, or made of listed ones that run out of sight of the mode."""


def op_lists(header: str) -> dict[str, list[str]]:
    """Operators with their overload, such as `softmax.int`, by policy; raises ValueError where a policy is missing."""
    # A line that ends in a backslash continues in the next.
    joined = header.replace("\\\n", " ")
    lists = {}
    for policy, macro in LISTS.items():
        found = re.search(rf"#define {macro}\(_\)(.*)", joined)
        if found is None:
            raise ValueError(f"{HEADER} defines no {macro}; this torch lists its operators in another way.")
        if policy == "append dtype":
            lists[policy] = re.findall(r'"([\w.]+)"', found[1])
        else:
            lists[policy] = [".".join(filter(None, pair)) for pair in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", found[1])]
    return lists


def cuda_lists() -> dict[str, list[str]]:
    """What CUDA's autocast casts each operator to, as ATen/autocast_mode.h of the installed torch says."""
    return op_lists(HEADER.read_text())


@cache
def runs_in_float32() -> frozenset[str]:
    """Names of calls whose arguments CUDA's autocast casts to float32."""
    lists = cuda_lists()
    return frozenset({_without_overload(name) for name in (*lists["float32"], *lists["append dtype"])} | _PYTHON_NAMES)


@cache
def returns_float32() -> frozenset[str]:
    """Names of calls that CUDA's autocast gives a dtype if they have none."""
    return frozenset(_without_overload(name) for name in cuda_lists()["set dtype"])


def _without_overload(name: str) -> str:
    return name.partition(".")[0]


def libraries_here(device: torch.device) -> CudaLibraries | None:
    """Of this GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    major, _ = torch.cuda.get_device_capability(device)
    return libraries_on(major, torch.__version__, os.environ, torch.backends.cudnn.version())


class CudaRules(TorchFunctionMode):
    """Enter it around everything that runs Python code of the model."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return fused_attention(*args, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            name = getattr(func, "__name__", "")
            if name in runs_in_float32():
                args = tuple(_in_float32(value) for value in args)
            elif name in returns_float32() and kwargs.get("dtype") is None and args[0].dtype in _SIXTEEN_BIT:
                # The kernel itself reads 16 bits and writes 32, without a copy.
                kwargs = {**kwargs, "dtype": torch.float32}
        return func(*args, **kwargs)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """The kernel that a GPU uses: flash for 16 bits, memory-efficient for float32.

    cuDNN's kernel, which torch prefers for 16 bits on some cards, makes and saves tensors of the same sizes. Assumes
    compute capability 8.0 or more and head widths that are multiples of 8, as in all of the suite's sizes. Raises
    NotImplementedError for a mask, which needs other kernels.
    """
    if attn_mask is not None:
        raise NotImplementedError("fused attention with a mask is not counted for CUDA; count it for the CPU.")
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.dtype in _SIXTEEN_BIT:
        return operator("_scaled_dot_product_flash_attention")(query, key, value, dropout_p, is_causal)[0]
    efficient = operator("_scaled_dot_product_efficient_attention")
    records_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return efficient(query, key, value, None, records_graph, dropout_p, is_causal)[0]


def follow_rules(module: nn.Module) -> None:
    """Enter the rules with each call of `module`, because autograd hides modes from what a checkpoint recomputes."""
    rules = CudaRules()

    def enter(module: nn.Module, inputs: Any) -> None:
        rules.__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        rules.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _SIXTEEN_BIT else value
