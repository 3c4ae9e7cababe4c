"""Everything that the suite takes from private parts of torch, each with the reason why no public way will do.

All of it stands in the sources of torch 2.9.0 and 2.13.0 under these names, with what is used of it. A test holds
everything else to public names, so that this file is all there is to check against a new release.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Tensors without content: `torch.empty(device="meta")` is public, but forgets which device it stands for.
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

# What sees each operation as the dispatcher runs it, the backward pass included; torch.overrides.TorchFunctionMode,
# the public one, sees Python's calls alone.
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DataDependentOutputException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "autograd_file",
    "compiler_counters",
    "cuda_memory_history",
    "cuda_memory_snapshot",
    "load_compiler",
    "operator",
    "profiler_is_active",
    "wrappers_of_calls",
]

_COMPILER = "torch._dynamo"


def profiler_is_active() -> bool:
    """Whether a profiler of PyTorch records: one started inside another takes its events, and neither says so."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def compiler_counters() -> Mapping[str, Counter[str]] | None:
    """What torch.compile counts of itself; None while it is not loaded, which takes longer than many a case.

    PyTorch's own guide to compile times reads graphs and cache hits from here.
    """
    return getattr(sys.modules.get(f"{_COMPILER}.utils"), "counters", None)


def load_compiler() -> None:
    """Import what torch.compile and AdamW import when they are first used; no public call does only that."""
    importlib.import_module(_COMPILER)


def autograd_file() -> str:
    """The file whose frame stands around each backward pass: its one function that calls the C++ engine is private."""
    return torch.autograd.graph.__file__


def wrappers_of_calls() -> tuple[str, ...]:
    """Beginnings of the files whose frames torch puts around a call, as optimizers have them."""
    return tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile.py"))


@contextmanager
def cuda_memory_history(most_entries: int) -> Iterator[None]:
    """The caching allocator's events inside, with the Python that caused them; the latest `most_entries` are kept.

    The one documented way, in spite of its underscore ("Understanding CUDA Memory Usage", PyTorch).
    """
    torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=most_entries)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def cuda_memory_snapshot() -> dict[str, Any]:
    """Of this moment, inside of `cuda_memory_history`; the same page documents it."""
    return dict(torch.cuda.memory._snapshot())


def operator(name: str) -> Any:
    """An operator as dispatch modes and traces name it, `_to_copy`.

    Casts of autocast, operations on lists and each kernel of fused attention have no public function of their own.
    """
    return getattr(torch.ops.aten, name)
