"""Peak memory on the CPU, exactly: every block that PyTorch's allocator hands out and takes back, as it happens.

In: a function. Out: bytes. The resident size of the process would add pages of other libraries and of freed blocks.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

CPU_DEVICE_TYPE = 0


def allocator_peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes handed out at one moment of `function()`, beyond those handed out before it.

    A block from before that is freed meanwhile is not subtracted: the allocator knows no size of it. What a library
    allocates for itself, a matrix product's packing buffers for example, does not pass through the allocator.
    The profiler slows the function down, so never time it at once.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            function()
        profiler.export_chrome_trace(str(trace))
        return peak_bytes(json.loads(trace.read_bytes())["traceEvents"])


def peak_bytes(events: Iterable[dict[str, Any]]) -> int:
    """The peak of the running sum over a trace's memory events, in the order of time."""
    changes = [
        (event["ts"], event["args"]["Ev Idx"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == CPU_DEVICE_TYPE
    ]
    peak = allocated = 0
    for _, _, change in sorted(changes):
        allocated += change
        peak = max(peak, allocated)
    return peak
