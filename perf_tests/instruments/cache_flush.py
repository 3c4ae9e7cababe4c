"""Flushing the last-level cache, so that what is timed next reads its inputs from memory."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import torch

TIMES_THE_CACHE = 2
"""A cache replaces its oldest lines only approximately."""

UNKNOWN_CACHE_BYTES = 256 * 2**20
"""Assumed where Linux does not list a CPU's caches."""

SEGMENT_BYTES = 2 * 2**20
"""CUDA's caching allocator takes large blocks from the driver in multiples of this."""


class CacheFlush:
    """Writes a buffer of `bytes`, twice the last-level cache, which it holds while it lives."""

    def __init__(self, device: torch.device) -> None:
        segments = -(-TIMES_THE_CACHE * last_level_cache_bytes(device) // SEGMENT_BYTES)
        self.bytes = segments * SEGMENT_BYTES
        self._buffer = torch.zeros(self.bytes, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Does not wait for the device."""
        self._buffer.add_(1)  # reads too, because a CPU's stores of this size may bypass its caches


def last_level_cache_bytes(device: torch.device) -> int:
    """A GPU's L2; of a CPU all last-level caches of the processors that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return listed_cache_bytes(Path("/sys/devices/system/cpu")) or UNKNOWN_CACHE_BYTES


def listed_cache_bytes(processors: Path) -> int:
    """The sum over the caches of the highest level that Linux lists in this folder; 0 where it lists none."""
    levels: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for number in os.sched_getaffinity(0):
        for cache in processors.glob(f"cpu{number}/cache/index*"):
            with suppress(OSError, ValueError):
                level, size, shared_by = ((cache / name).read_text() for name in ("level", "size", "shared_cpu_list"))
                levels[int(level)][shared_by] = int(size.strip().removesuffix("K")) * 1024
    return sum(levels[max(levels)].values()) if levels else 0
