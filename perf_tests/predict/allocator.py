"""The rules of PyTorch's caching allocator for CUDA, replayed on sizes: what blocks take, and the device must give.

Blocks come from segments, which the device gives and the allocator keeps until memory runs out. The rules are those of
c10/cuda/CUDACachingAllocator.cpp with its default settings, for one stream and without expandable segments. Segments
lie in the order in which they came, which a device need not do. No torch.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

MIB = 1 << 20
CUDA_BLOCK_BYTES = 512
"""Blocks are multiples of this (also c10/core/CachingDeviceAllocator.h)."""

SMALL_BYTES = MIB
"""Blocks up to this come from a pool of their own, of segments of SMALL_SEGMENT_BYTES. A larger block is cut only if
more than this is left, and else keeps the rest."""

SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES, ROUNDED_BYTES = 2 * MIB, 20 * MIB, 2 * MIB
LEAST_SEGMENT_BYTES = 10 * MIB
"""A block from this on gets a segment of its size, rounded up to ROUNDED_BYTES; a smaller one LARGE_SEGMENT_BYTES."""

Log = tuple[tuple[str, int, int], ...]
"""Allocations and releases: the category; bytes, negative of a release; how many younger blocks of this category and
size live at a release, which is the same in each layer."""


class DeviceFullError(Exception):
    """The device has not as much left as a block needs, all that was kept given back."""


@dataclass(frozen=True)
class AllocatorPeaks:
    """The peaks that `torch.cuda.memory_stats` would report of one round."""

    requested_bytes: int
    """Multiples of CUDA_BLOCK_BYTES."""
    allocated_bytes: int
    reserved_bytes: int


class SegmentBlock:
    """A piece of a segment, between its neighbours there."""

    __slots__ = ("address", "after", "asked_bytes", "before", "bytes", "is_free", "pool")

    def __init__(self, address: int, size: int, pool: list[tuple[int, int, "SegmentBlock"]]) -> None:
        self.address, self.bytes, self.pool = address, size, pool
        self.before: SegmentBlock | None = None
        self.after: SegmentBlock | None = None
        self.is_free, self.asked_bytes = False, 0


class CachingAllocator:
    """Blocks handed out, and segments of a device that has `room_bytes`; any number where it is None."""

    def __init__(self, room_bytes: int | None = None) -> None:
        self._room_bytes = room_bytes
        self._small: list[tuple[int, int, SegmentBlock]] = []
        self._large: list[tuple[int, int, SegmentBlock]] = []
        """Free blocks by size, then address."""
        self._end = 0
        self._asked, self._allocated, self._reserved = 0, 0, 0
        self.forget_peaks()

    def forget_peaks(self) -> None:
        self._peaks = [self._asked, self._allocated, self._reserved]

    def peaks(self) -> AllocatorPeaks:
        """The highest of each since they were forgotten."""
        return AllocatorPeaks(*self._peaks)

    def allocate(self, asked_bytes: int) -> SegmentBlock:
        """Hand out the smallest free block that is large enough. Raises DeviceFullError."""
        size = -(-asked_bytes // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
        pool = self._small if size <= SMALL_BYTES else self._large
        place = bisect_left(pool, (size,))
        block = pool.pop(place)[2] if place < len(pool) else self._segment(size, pool)
        left = block.bytes - size
        if left >= CUDA_BLOCK_BYTES if size <= SMALL_BYTES else left > SMALL_BYTES:
            rest = SegmentBlock(block.address + size, left, pool)
            rest.before, rest.after, rest.is_free = block, block.after, True
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.bytes = rest, size
            insort(pool, (rest.bytes, rest.address, rest))
        block.is_free, block.asked_bytes = False, size
        self._asked += size
        self._allocated += block.bytes
        for place, now in enumerate((self._asked, self._allocated, self._reserved)):
            if now > self._peaks[place]:
                self._peaks[place] = now
        return block

    def free(self, block: SegmentBlock) -> None:
        """Keep the block for others, as one with what is free beside it."""
        self._asked -= block.asked_bytes
        self._allocated -= block.bytes
        block.is_free = True
        for first, second in ((block, block.after), (block.before, block)):
            if first is not None and second is not None and first.is_free and second.is_free:
                beside = second if first is block else first
                del block.pool[bisect_left(block.pool, (beside.bytes, beside.address))]
                first.bytes += second.bytes
                first.after = second.after
                if first.after is not None:
                    first.after.before = first
                block = first
        insort(block.pool, (block.bytes, block.address, block))

    def _segment(self, size: int, pool: list[tuple[int, int, SegmentBlock]]) -> SegmentBlock:
        if size <= SMALL_BYTES:
            size = SMALL_SEGMENT_BYTES
        elif size < LEAST_SEGMENT_BYTES:
            size = LARGE_SEGMENT_BYTES
        else:
            size = -(-size // ROUNDED_BYTES) * ROUNDED_BYTES
        if self._is_too_much(size):
            for kept in (self._small, self._large):
                self._reserved -= sum(bytes_ for bytes_, _, free in kept if free.before is free.after is None)
                kept[:] = [item for item in kept if not item[2].before is item[2].after is None]
            if self._is_too_much(size):
                raise DeviceFullError
        self._reserved += size
        self._end += size
        return SegmentBlock(self._end - size, size, pool)

    def _is_too_much(self, size: int) -> bool:
        return self._room_bytes is not None and self._reserved + size > self._room_bytes


class AllocatorReplay:
    """Replays logs on an allocator, and knows the blocks that live by category and size, the youngest last."""

    def __init__(self, room_bytes: int | None) -> None:
        self.allocator = CachingAllocator(room_bytes)
        self._living: defaultdict[tuple[str, int], list[SegmentBlock]] = defaultdict(list)

    def run(self, log: Log, keeps_freed: bool = False) -> list[SegmentBlock]:
        """Return the blocks that the log frees and that stay, for a caller `keeps_freed`. Raises DeviceFullError."""
        kept = []
        for category, size, younger in log:
            if size > 0:
                self._living[category, size].append(self.allocator.allocate(size))
                continue
            block = self._living[category, -size].pop(-1 - younger)
            if keeps_freed:
                kept.append(block)
            else:
                self.allocator.free(block)
        return kept

    def take(self, categories: Collection[str], others: bool = False) -> list[SegmentBlock]:
        """Take the living blocks of these categories, or of all others, out of the replay."""
        kinds = [kind for kind in self._living if (kind[0] in categories) is not others]
        return [block for kind in kinds for block in self._living.pop(kind)]

    def free(self, blocks: Sequence[SegmentBlock]) -> None:
        for block in blocks:
            self.allocator.free(block)
