"""A few rounds of a case under torch.profiler, as a Chrome trace with the model's regions in it."""

import importlib.machinery
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from model.regions import regions_opened_by
from perf_tests.hardware.device import Device, no_collections, page_faults, system_seconds
from perf_tests.hardware.torch_private import profiler_is_active

# What a profiler of PyTorch saw, as a Chrome trace in memory.


def exported_trace(export: Callable[[str], object]) -> bytes:
    """JSON in Kineto's schema, from the method `export_chrome_trace` of either kind of PyTorch profiler."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        export(str(path))
        return path.read_bytes()


PLAIN_ROUNDS = 2
"""Without the profiler: the first is cold, the second gives the time of a round without the profiler's overhead."""

WARMUP_ROUNDS = 2
"""Under the profiler and discarded, because its first use is slow."""

TRACED_ROUNDS = 2
"""Two, to detect a count that differs between them."""

ALL_ROUNDS = PLAIN_ROUNDS + WARMUP_ROUNDS + TRACED_ROUNDS

ROUND, SET_UP = "round", "set-up"
"""Regions around what is timed and around its set-up; all others are the model's."""

NSYS_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NSYS_TARGET_STD_REDIRECT_ACTIVE")
"""Set by Nsight Systems in processes that it starts."""


class ProfilerBusyError(Exception):
    """Something else profiles this process; the message is one sentence."""


@dataclass(frozen=True)
class TracedRounds:
    """`plain_seconds` is one round without the profiler; `trace` is Kineto's JSON."""

    plain_seconds: float
    trace: bytes


Around = Callable[[], AbstractContextManager[object]]
"""Makes the context that half a round runs in."""

PlayRound = Callable[[Around, Around], None]
"""Runs one round, its set-up inside the first context and its target inside the second."""


def trace_rounds(play: PlayRound, device: Device) -> TracedRounds:
    """Run a few rounds and trace the last ones. Raises ProfilerBusyError."""
    check_no_profiler()
    plain_seconds = 0.0
    traces: list[bytes] = []
    on_gpu = device.torch_device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        schedule=schedule(wait=PLAIN_ROUNDS, warmup=WARMUP_ROUNDS, active=TRACED_ROUNDS),
        on_trace_ready=lambda profiler: traces.append(exported_trace(profiler.export_chrome_trace)),
        record_shapes=True,
    ) as profiler:
        for number in range(ALL_ROUNDS):
            is_plain = number < PLAIN_ROUNDS
            halves = _Halves(device, nullcontext if is_plain else record_function)
            with nullcontext() if is_plain else regions_opened_by(_open_region):
                play(halves.set_up, halves.target)
            if is_plain:
                plain_seconds = halves.target_seconds
            profiler.step()
    return TracedRounds(plain_seconds, traces[0])


@dataclass
class _Halves:
    """The contexts of set-up and target; each waits for the device."""

    device: Device
    annotate: Callable[[str], AbstractContextManager[object]]
    target_seconds: float = 0.0

    @contextmanager
    def set_up(self) -> Iterator[None]:
        with self.annotate(SET_UP):
            yield
            self.device.synchronize()

    @contextmanager
    def target(self) -> Iterator[None]:
        with no_collections(), self.annotate(ROUND):
            start = time.perf_counter()
            yield
            self.device.synchronize()
            self.target_seconds = time.perf_counter() - start


def _open_region(name: str) -> AbstractContextManager[object]:
    # Inside compiled code there is nothing to mark: the regions are fused into one kernel.
    return nullcontext() if torch.compiler.is_compiling() else record_function(name)


def check_no_profiler(option: str = "--kernels") -> None:
    """Raises ProfilerBusyError where another profiler is active, so that that of `option` would conflict with it."""
    running = next((name for name in NSYS_VARIABLES if os.environ.get(name)), None)
    if running is not None:
        raise ProfilerBusyError(
            f"Nsight Systems profiles this process ({running} is set), and a device allows one profiler at a time; "
            f"run without {option} under nsys, or with {option} without nsys."
        )
    if profiler_is_active():
        raise ProfilerBusyError(
            "A PyTorch profiler is already active in this process, and two cannot run at once; "
            f"stop it, or run without {option}."
        )


# The first round of a process under torch.profiler, and a later one to compare it with.
#
# Each import that no other import causes is a range of the trace.


# Not torch.profiler's: that imports all of Inductor when it starts, which is part of what is measured here.


CALL = "round"
"""The range around what is timed."""

IMPORT_RANGE = "import of "
"""Prefix of the ranges of imports."""

ROUNDS_BETWEEN = 5
"""Untraced rounds between the two, so that the later one is warm."""


@dataclass(frozen=True)
class TracedCall:
    """One call of a function: its trace in Kineto's schema, modules loaded, pages touched first except by imports."""

    events: list[dict[str, Any]]
    modules_loaded: int
    page_faults: int
    system_seconds: float
    """CPU time of the kernel for this process during the call, page faults included."""


def traced_call(function: Callable[[], Any], device: Device) -> TracedCall:
    """Call `function` once, traced, and wait for the device."""
    device.synchronize()
    use_device = "cuda" if device.torch_device.type == "cuda" else None
    with no_collections(), autograd_profile(use_kineto=True, use_device=use_device) as profiler:
        with record_function("first range of all"):  # which imports what ranges need
            pass
        with imports_as_ranges() as imports:
            before, system_before = page_faults(), system_seconds()
            with record_function(CALL):
                function()
                device.synchronize()
            faults, kernel_seconds = page_faults() - before, system_seconds() - system_before
    events = json.loads(exported_trace(profiler.export_chrome_trace))["traceEvents"]
    return TracedCall(events, imports.modules_loaded, faults - imports.page_faults, kernel_seconds)


@contextmanager
def imports_as_ranges() -> Iterator["ImportRanges"]:
    """Open a range of the profiler around each outermost import; the yielded object counts them."""
    finder = ImportRanges()
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)


class ImportRanges(MetaPathFinder):
    """Asks the other finders and makes the loader that they choose work inside a range."""

    def __init__(self) -> None:
        self.modules_loaded = 0
        self.page_faults = 0
        self._is_open = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(fullname, path, target)
            if spec is None:
                continue
            # A loader that is a class, as that of builtin modules, serves all of them and loads no file.
            if spec.loader is not None and not isinstance(spec.loader, type):
                self._watch(spec.loader, fullname)
            return spec
        return None

    def _watch(self, loader: Loader, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self.modules_loaded += 1
            if self._is_open:
                execute(module)
                return
            self._is_open, before = True, page_faults()
            try:
                with record_function(f"{IMPORT_RANGE}{name}"):
                    execute(module)
            finally:
                self._is_open = False
                self.page_faults += page_faults() - before

        # On this object alone, which loads this module and no other.
        loader.exec_module = exec_module  # type: ignore[method-assign]
