"""CUDA's rules applied to CPU tensors, to run its code without a GPU; and the libraries of a GPU."""

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries, libraries_on
from perf_tests_suite.perf_tests.hardware.torch_private import operator

# CUDA's rules applied to CPU tensors: which operations autocast keeps in float32, and which attention is fused.
#
# Fake CUDA tensors abort a process whose torch has no CUDA. So GPU code is counted on CPU tensors under CPU autocast,
# and this mode corrects what CUDA does differently.


HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "float32": "AT_FORALL_FP32",
    "set dtype": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "append dtype": "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
}

_SIXTEEN_BIT = (torch.bfloat16, torch.float16)

MASK_ALIGNMENT = 8
"""The memory-efficient kernel reads rows of a mask that begin at multiples of so many elements."""

_PYTHON_NAMES = {"__pow__", "__rpow__", "cross_entropy"}
"""Calls of listed operators under other names, or made of listed ones that run out of sight of the mode."""


def op_lists(header: str) -> dict[str, set[str]]:
    """Names of operators by policy; raises ValueError where a policy is missing."""
    # A line that ends in a backslash continues in the next.
    joined = header.replace("\\\n", " ")
    lists = {}
    for policy, macro in LISTS.items():
        found = re.search(rf"#define {macro}\(_\)(.*)", joined)
        if found is None:
            raise ValueError(f"{HEADER} defines no {macro}; this torch lists its operators in another way.")
        entry = r'"(\w+)[\w.]*"' if policy == "append dtype" else r"_\((\w+)(?:,\s*\w+)?\)"
        lists[policy] = set(re.findall(entry, found[1]))
    return lists


@cache
def float32_calls() -> tuple[set[str], set[str]]:
    """Names of calls whose arguments CUDA's autocast casts to float32, and of those that it gives a dtype if they have
    none, as the installed torch says."""
    lists = op_lists(HEADER.read_text())
    return lists["float32"] | lists["append dtype"] | _PYTHON_NAMES, lists["set dtype"]


def libraries_here(device: torch.device) -> CudaLibraries | None:
    """Return the libraries of this GPU; None on a CPU."""
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
            name, (runs_in_float32, returns_float32) = getattr(func, "__name__", ""), float32_calls()
            if name in runs_in_float32:
                is_half = [isinstance(value, Tensor) and value.dtype in _SIXTEEN_BIT for value in args]
                args = tuple(value.float() if half else value for value, half in zip(args, is_half, strict=True))
            elif name in returns_float32 and kwargs.get("dtype") is None and args[0].dtype in _SIXTEEN_BIT:
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
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that a GPU uses: flash for 16 bits, memory-efficient for float32 and for a mask, else PyTorch's math.

    The latter takes what no kernel does: tensors without heads, and groups of queries in the memory-efficient one
    (PyTorch, native/transformers/cuda/sdp_utils.cpp). cuDNN's kernel, which torch prefers for 16 bits on some cards,
    makes and saves tensors of the same sizes. Assumes compute capability 8.0 or more and head widths that are multiples
    of 8, as in all of the suite's sizes.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(dtype)
    is_flash = query.dtype in _SIXTEEN_BIT and attn_mask is None
    if query.dim() != 4 or (enable_gqa and not is_flash):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    if is_flash:
        return operator("_scaled_dot_product_flash_attention")(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:  # as native/transformers/attention.cpp prepares it
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, torch.full((), -torch.inf, dtype=query.dtype))
        keys = attn_mask.shape[-1]
        if keys % MASK_ALIGNMENT:
            attn_mask = F.pad(attn_mask, (0, MASK_ALIGNMENT - keys % MASK_ALIGNMENT))[..., :keys]
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    efficient = operator("_scaled_dot_product_efficient_attention")
    records_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return efficient(query, key, value, attn_mask, records_graph, dropout_p, is_causal, scale=scale)[0]


def follow_rules(module: nn.Module) -> None:
    """Enter the rules with each call of `module`, because autograd hides modes from what a checkpoint recomputes."""
    rules = CudaRules()

    def enter(module: nn.Module, inputs: Any) -> None:
        rules.__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        rules.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
