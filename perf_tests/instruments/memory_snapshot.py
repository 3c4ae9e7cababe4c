"""Memory snapshots as pytorch.org/memory_viz reads them: the blocks of a device, and how they came and went.

On a GPU PyTorch records one itself. Elsewhere the same is written from what was seen of a round: real sizes in the real
order with the real lines of Python, at addresses of an imaginary device.
"""

from bisect import insort
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from perf_tests.instruments.allocator_trace import AllocatorEvent
from perf_tests.instruments.memory_holders import Frame, Held
from perf_tests.instruments.torch_private import cuda_memory_history, cuda_memory_snapshot

MOST_ENTRIES = 100_000
"""The latest events are kept; with a million of them the viewer's page runs out of memory."""

ALIGNMENT_BYTES = 512
FIRST_ADDRESS = 0x7F00_0000_0000

Snapshot = dict[str, Any]
Frames = tuple[Frame, ...]
Happening = tuple[object, int, Frames]
"""A block came, or went where the bytes are negative: its key, bytes, and the lines that made it."""


def cuda_history() -> AbstractContextManager[None]:
    """The caching allocator's events inside, with the Python that caused them."""
    return cuda_memory_history(MOST_ENTRIES)


def cuda_snapshot() -> Snapshot:
    """Of this moment; take it inside of `cuda_history`."""
    return cuda_memory_snapshot()


def snapshot_of_held(held: Held) -> Snapshot:
    """Of a watched round; what stood before it has no event."""
    happenings = [(id(change.block), change.bytes, held.frames.get(id(change.block), ())) for change in held.changes]
    return synthetic_snapshot(happenings[: held.first_of_round], happenings[held.first_of_round :])


def snapshot_of_events(events: Iterable[AllocatorEvent]) -> Snapshot:
    """Of a round without lines of Python: compiled code has none."""
    return synthetic_snapshot([], [(event.address, event.bytes, ()) for event in events])


def synthetic_snapshot(before: Iterable[Happening], during: Iterable[Happening]) -> Snapshot:
    """What comes and goes `before` only takes its place."""
    memory = _ImaginaryMemory()
    frames_of = _FrameTable()
    for key, count, frames in before:
        memory.follow(key, count, frames)
    entries: list[dict[str, Any]] = []
    for time, (key, count, frames) in enumerate(during):
        address = memory.follow(key, count, frames)
        if address is None:
            continue
        event = {"addr": address, "size": abs(count), "stream": 0, "time_us": time, "frames": frames_of.rows(frames)}
        actions = ("alloc",) if count > 0 else ("free_requested", "free_completed")
        entries += [{"action": action, **event} for action in actions]
    return {"segments": memory.segments(frames_of), "device_traces": [entries[-MOST_ENTRIES:]]}


class _FrameTable:
    """Each frame and each stack once, so that a file of 100 000 entries names them by reference."""

    def __init__(self) -> None:
        self._frames: dict[Frame, dict[str, Any]] = {}
        self._stacks: dict[Frames, list[dict[str, Any]]] = {}

    def rows(self, frames: Frames) -> list[dict[str, Any]]:
        if frames not in self._stacks:
            self._stacks[frames] = [self._row(frame) for frame in frames]
        return self._stacks[frames]

    def _row(self, frame: Frame) -> dict[str, Any]:
        if frame not in self._frames:
            self._frames[frame] = {"filename": frame.filename, "line": frame.line, "name": frame.name}
        return self._frames[frame]


class _ImaginaryMemory:
    """One segment, filled first fit; blocks are kept by address, each with its size, what was asked for, its lines."""

    def __init__(self) -> None:
        self._live: dict[object, int] = {}
        self._blocks: dict[int, tuple[int, int, Frames]] = {}
        self._addresses: list[int] = []
        self._end = FIRST_ADDRESS

    def follow(self, key: object, count: int, frames: Frames) -> int | None:
        """Where the block lies or lay; None for one of no size, and for one that goes and never came."""
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

    def segments(self, frames_of: _FrameTable) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        free = FIRST_ADDRESS
        for address in [*self._addresses, self._end]:
            if address > free:
                blocks.append(_block(free, address - free, 0, "inactive", []))
            if address in self._blocks:
                size, asked, frames = self._blocks[address]
                blocks.append(_block(address, size, asked, "active_allocated", frames_of.rows(frames)))
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
