"""Compiling a function or module with torch.compile, one shape at a time."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that replay CUDA graphs; the second also times candidates for each kernel."""


def compiled(function: F, mode: str = "default") -> F:
    """`function` under torch.compile with static shapes, so that no dimension turns dynamic during a sweep."""
    return cast(F, torch.compile(function, dynamic=False, mode=mode))


def forget_compiled() -> None:
    """Drop every compiled graph of this process, so that a case runs alike alone and after others."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and the import takes seconds
        torch.compiler.reset()


def why_cannot_compile(device: torch.device) -> str | None:
    """None if torch.compile can generate code for `device`, else one sentence that names what is missing."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile needs triton on a GPU, and it is not installed; run `pip install triton`."
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler, and {compiler!r} is not on the PATH; install g++ or set CXX."
    return None
