"""The first round of a process under torch.profiler, and a later one to compare it with.

Each import that no other import causes is a range of the trace.
"""

import importlib.machinery
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

# Not torch.profiler's: that imports all of Inductor when it starts, which is part of what is measured here.
from torch.autograd.profiler import profile, record_function

from perf_tests.instruments.device import Device
from perf_tests.instruments.exported_trace import exported_trace
from perf_tests.instruments.garbage import no_collections
from perf_tests.instruments.page_faults import page_faults, system_seconds

ROUND = "round"
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
    with no_collections(), profile(use_kineto=True, use_device=use_device) as profiler:
        with record_function("first range of all"):  # which imports what ranges need
            pass
        with imports_as_ranges() as imports:
            before, system_before = page_faults(), system_seconds()
            with record_function(ROUND):
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
