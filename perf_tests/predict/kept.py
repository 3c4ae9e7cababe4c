"""Exact counters of the suite's own cases, kept between runs: counting the same case in the same code gives the same.

A file holds one case, below a folder that is named for everything else that a count depends on: each source file of
the suite, torch, Python, the processor's instructions, torch's environment. So a change of any of them counts again.
What is the user's own (a model, an attention, an optimizer) is counted in every run, because its code may lie
anywhere. The ledger, the claims and `predict` always count. A run with another `XDG_CACHE_HOME` keeps its own."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Any, TypeVar

import numpy
import torch

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries
from perf_tests_suite.perf_tests.hardware.limits import KernelGroup
from perf_tests_suite.perf_tests.predict.counters import Allocation, Counters, PartPeak, counters_or_reason
from perf_tests_suite.perf_tests.records.record import Json, cache_folder
from perf_tests_suite.perf_tests.records.store import write_whole
from perf_tests_suite.perf_tests.user_code.named import digest_of_suite

MOST_FOLDERS = 8
"""Folders of as many states of the code; then the one that was written to longest ago is removed."""


_OF_TORCH = ("TORCH_", "PYTORCH_", "ATEN_")
"""How names of environment variables begin that torch reads; those of Inductor, which torch sets itself, change nothing
that is counted."""


def kept_counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """Read the counters from the cache if it holds the case, else count. A case without counters is asked again."""
    if case.user_code:
        return counters_or_reason(case, libraries)
    key, variables = f"{case!r} {libraries!r}", sorted(os.environ.items())
    try:
        depends_on = {
            "source": digest_of_suite(),
            "torch": [torch.__version__, torch.version.git_version],
            "python": [sys.version, numpy.__version__],
            "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "variables": {name: value for name, value in variables if name.startswith(_OF_TORCH)},
        }
    except OSError:  # the source cannot be read
        return counters_or_reason(case, libraries)
    state, name = (sha256(text.encode()).hexdigest()[:32] for text in (json.dumps(depends_on), key))
    file = f"counters/{state}/{name}.json"
    known = kept(file, key, "counters", _counters_of_json)
    if known is not None:
        return known, None
    counters, reason = counters_or_reason(case, libraries)
    if counters is not None:
        keep(file, key, "counters", asdict(counters))
        # Another run may be removing the same ones, or reading one, which then counts again.
        with suppress(OSError):
            by_age = sorted((cache_folder() / "counters").iterdir(), key=lambda folder: folder.stat().st_mtime)
            for old in by_age[:-MOST_FOLDERS]:
                shutil.rmtree(old, ignore_errors=True)
    return counters, reason


def _counters_of_json(given: Json) -> Counters:
    kinds = {"kernels": KernelGroup, "parts": PartPeak, "largest_allocations": Allocation}
    return Counters(**{**given, **{name: tuple(kind(**row) for row in given[name]) for name, kind in kinds.items()}})


Kept = TypeVar("Kept")


def kept(file: str, identity: Any, name: str, build: Callable[[Any], Kept]) -> Kept | None:
    """Return what `keep` wrote, built anew; None where the file is missing, broken or of another identity."""
    try:
        data = json.loads((cache_folder() / file).read_bytes())
        # As JSON gives it back: tuples are lists there.
        return build(data[name]) if data["identity"] == json.loads(json.dumps(identity)) else None
    # Anybody may have written the file; JSON nested too deep is a RecursionError.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def keep(file: str, identity: Any, name: str, values: Any) -> None:
    """Write what only an equal identity may read; where that fails, the next run finds it out again."""
    with suppress(OSError):
        path = cache_folder() / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"identity": identity, name: values}, allow_nan=False, indent=1).encode())
