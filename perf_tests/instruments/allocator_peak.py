"""Peak memory on the CPU, exactly: every block that PyTorch's allocator hands out and takes back, as it happens.

In: a function. Out: bytes. The resident size of the process would add pages of other libraries and of freed blocks.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from perf_tests.instruments.allocator_trace import AllocatorTrace, read_allocator_trace


@dataclass
class TracedAllocator:
    """`trace` is there once the context that gave this has ended."""

    trace: AllocatorTrace | None = None


@contextmanager
def allocator_traced() -> Iterator[TracedAllocator]:
    """Everything that runs inside is traced. The profiler slows it down, so do not time the same run."""
    traced = TracedAllocator()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield traced
        profiler.export_chrome_trace(str(path))
        traced.trace = read_allocator_trace(json.loads(path.read_bytes())["traceEvents"])


def allocator_peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes handed out at one moment of `function()`, beyond those handed out before it.

    An earlier block that is freed inside is not subtracted: the allocator does not know its size. What a library
    allocates for itself, a matrix product's packing buffers for example, does not pass through the allocator.
    """
    with allocator_traced() as traced:
        function()
    assert traced.trace is not None
    return traced.trace.peak()
