"""Memory snapshots for pytorch.org/memory_viz, written from what was seen of a round where PyTorch records none itself.

Sizes, order and lines of Python are real, addresses those of an imaginary device.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

from perf_tests.instruments.allocator_trace import AllocatorEvent
from perf_tests.instruments.memory_holders import Frame, Held

MOST_ENTRIES = 100_000
"""Only the latest events are kept: a million of them exhausts the viewer's memory."""

ALIGNMENT_BYTES = 512
FIRST_ADDRESS = 0x7F00_0000_0000

Snapshot = dict[str, Any]
Frames = tuple[Frame, ...]
Rows = Callable[[Frames], list[dict[str, Any]]]
Happening = tuple[object, int, Frames]
"""A block came, or went where bytes are negative: its key, bytes, and the lines that made it."""


def snapshot_of_held(held: Held) -> Snapshot:
    """Of a watched round; earlier blocks have no event."""
    happenings = [(id(change.block), change.bytes, held.frames.get(id(change.block), ())) for change in held.changes]
    return synthetic_snapshot(happenings[: held.first_of_round], happenings[held.first_of_round :])


def snapshot_of_events(events: Iterable[AllocatorEvent]) -> Snapshot:
    """Of a round without lines of Python: compiled code has none."""
    return synthetic_snapshot([], [(event.address, event.bytes, ()) for event in events])


def synthetic_snapshot(before: Iterable[Happening], during: Iterable[Happening]) -> Snapshot:
    """Blocks of `before` have a place but no event."""
    memory = _ImaginaryMemory()
    # Each frame and each stack once, so that a file of 100 000 entries refers to them.
    row = cache(asdict)
    rows = cache(lambda frames: [row(frame) for frame in frames])
    for key, count, frames in before:
        memory.follow(key, count, frames)
    entries: list[dict[str, Any]] = []
    for time, (key, count, frames) in enumerate(during):
        address = memory.follow(key, count, frames)
        if address is None:
            continue
        event = {"addr": address, "size": abs(count), "stream": 0, "time_us": time, "frames": rows(frames)}
        actions = ("alloc",) if count > 0 else ("free_requested", "free_completed")
        entries += [{"action": action, **event} for action in actions]
    return {"segments": memory.segments(rows), "device_traces": [entries[-MOST_ENTRIES:]]}


class _ImaginaryMemory:
    """One segment, filled first fit; blocks by address, each with its size, the size asked for and its lines."""

    def __init__(self) -> None:
        self._live: dict[object, int] = {}
        self._blocks: dict[int, tuple[int, int, Frames]] = {}
        self._addresses: list[int] = []
        self._end = FIRST_ADDRESS

    def follow(self, key: object, count: int, frames: Frames) -> int | None:
        """The block's address; None for an empty one and for one that goes but never came."""
        if count > 0:
            address = self._place(count)
            self._live[key] = address
            self._blocks[address] = (_aligned(count), count, frames)
            insort(self._addresses, address)
            self._end = max(self._end, address + _aligned(count))
            return address
        address_of_gone = self._live.pop(key, None)
        if address_of_gone is not None:
            self._addresses.remove(address_of_gone)
            del self._blocks[address_of_gone]
        return address_of_gone

    def _place(self, count: int) -> int:
        """The first gap that is large enough."""
        free = FIRST_ADDRESS
        for address in self._addresses:
            if address - free >= _aligned(count):
                return free
            free = address + self._blocks[address][0]
        return free

    def segments(self, rows: Rows) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        free = FIRST_ADDRESS
        for address in [*self._addresses, self._end]:
            if address > free:
                blocks.append(_block(free, address - free, 0, "inactive", []))
            if address in self._blocks:
                size, asked, frames = self._blocks[address]
                blocks.append(_block(address, size, asked, "active_allocated", rows(frames)))
                free = address + size
        held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return [
            {
                "device": 0, "address": FIRST_ADDRESS, "total_size": self._end - FIRST_ADDRESS, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": held, "active_size": held,
                "requested_size": sum(block["requested_size"] for block in blocks), "is_expandable": False,
                "frames": [], "blocks": blocks,
            }
        ]  # fmt: skip


def _block(address: int, size: int, asked: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": frames}


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
