"""Exact counters of the suite's own cases, kept between runs: counting the same case in the same code gives the same.

A file holds one case, below a folder that is named for everything else that a count depends on: each source file of the
suite, torch, Python, the processor's instructions, torch's environment. So a change of any of them counts again. What
is the user's own (a model, an attention, an optimizer) is counted in every run, because its code may lie anywhere. The
ledger, the proofs and `predict` always count. A run with another `XDG_CACHE_HOME` keeps its own.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import torch

from perf_tests.cases.case import Case
from perf_tests.counting.case_counters import Allocation, Counters, PartPeak, counters_or_reason
from perf_tests.limits.cuda_libraries import CudaLibraries
from perf_tests.limits.predicted_time import KernelGroup
from perf_tests.own.source_digest import digest_of_suite
from perf_tests.records.cache import cache_folder
from perf_tests.records.store import write_whole

MOST_FOLDERS = 8
"""Of as many states of the code; then the one that was written to longest ago is removed."""

_OF_TORCH = ("TORCH_", "PYTORCH_", "ATEN_")
"""How names of environment variables begin that torch reads; those of Inductor, which torch sets itself, change nothing
that is counted."""


def kept_counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """As `counters_or_reason`, read from the cache if it holds the case. One that has no counters is asked again."""
    if case.own_code:
        return counters_or_reason(case, libraries)
    path = _path(case, libraries)
    if path is None:
        return counters_or_reason(case, libraries)
    known = _read(path, _key(case, libraries))
    if known is not None:
        return known, None
    counters, reason = counters_or_reason(case, libraries)
    if counters is not None:
        with suppress(OSError):  # or the next run counts again
            _write(path, {"case": _key(case, libraries), "counters": asdict(counters)})
    return counters, reason


def environment() -> dict[str, Any]:
    """Everything that a count depends on beside its case. Raises OSError where the source cannot be read."""
    return {
        "source": digest_of_suite(),
        "torch": [torch.__version__, torch.version.git_version],
        "python": [sys.version, numpy.__version__],
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_OF_TORCH)},
    }


def _key(case: Case, libraries: CudaLibraries | None) -> str:
    return f"{case!r} {libraries!r}"


def _path(case: Case, libraries: CudaLibraries | None) -> Path | None:
    """None where the source cannot be read."""
    try:
        folder = _digest(json.dumps(environment()))
    except OSError:
        return None
    return cache_folder() / "counters" / folder / f"{_digest(_key(case, libraries))}.json"


@cache
def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def _read(path: Path, key: str) -> Counters | None:
    """None if the file is missing, broken or of another case."""
    try:
        data = json.loads(path.read_bytes())
        return _counters(data["counters"]) if data["case"] == key else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _counters(given: Mapping[str, Any]) -> Counters:
    """Raises TypeError or KeyError for data of another shape."""
    lists = {"kernels": KernelGroup, "parts": PartPeak, "largest_allocations": Allocation}
    return Counters(**{**given, **{name: tuple(kind(**row) for row in given[name]) for name, kind in lists.items()}})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _forget_the_oldest(path.parent.parent)
    write_whole(path, json.dumps(content, allow_nan=False).encode())


def _forget_the_oldest(folder: Path) -> None:
    """Another run may be removing the same ones, or reading one, which then counts again."""
    with suppress(OSError):
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-MOST_FOLDERS]:
            shutil.rmtree(path, ignore_errors=True)
