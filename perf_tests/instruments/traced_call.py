"""The first round of a process under torch.profiler, and a later one to hold it against."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Not torch.profiler's own: that one imports all of Inductor when it starts, which is what is to be looked for.
from torch.autograd.profiler import profile, record_function

from perf_tests.instruments.device import Device
from perf_tests.instruments.garbage import no_collections
from perf_tests.instruments.import_ranges import imports_as_ranges
from perf_tests.instruments.page_faults import page_faults, system_seconds

ROUND = "round"
"""The range around what is timed."""

ROUNDS_BETWEEN = 5
"""Not traced, so that the later round is a warm one."""


@dataclass(frozen=True)
class TracedCall:
    """One call of a function: its trace in Kineto's schema, modules that it loaded, pages touched first.

    Pages that loading a module touched are left out.
    """

    events: list[dict[str, Any]]
    modules_loaded: int
    page_faults: int
    system_seconds: float
    """The kernel's CPU time for this process meanwhile, which serves page faults among other things."""


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
    return TracedCall(_events(profiler), len(imports.modules), faults - imports.page_faults, kernel_seconds)


def _events(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
        return events
