"""A log of the storages that tensors come and go with: how much is held when, and by what.

A storage is a block of memory; views share one. It is followed by a weak reference, so that it is free when the last
tensor lets go of it, as in the allocator itself.
"""

import weakref
from dataclasses import dataclass

from torch import Tensor

CUDA_BLOCK_BYTES = 512
"""Multiple that CUDA's caching allocator rounds each block up to (PyTorch, c10/core/CachingDeviceAllocator.h)."""

TEMPORARIES = "temporaries"


@dataclass
class Block:
    """One storage, from its allocation on."""

    bytes: int
    operator: str
    place: str
    """`model/attention.py:48`, where the source of the model is known and made it; else empty."""
    category: str
    on_host: bool


@dataclass(frozen=True)
class Change:
    """A block came or went."""

    block: Block
    is_allocation: bool

    @property
    def bytes(self) -> int:
        """Negative when it went."""
        return self.block.bytes if self.is_allocation else -self.block.bytes


class StorageTracker:
    """Every block registered or allocated, and every change in order.

    Blocks are rounded up to multiples of `block_bytes`. On a device of its own (`separate_host`) numbers that stay on
    the host take no memory of the device.
    """

    def __init__(self, block_bytes: int, separate_host: bool) -> None:
        self.changes: list[Change] = []
        self.live_bytes = 0
        self._block_bytes = block_bytes
        self._separate_host = separate_host
        self._blocks: dict[int, Block] = {}
        self._references: dict[int, weakref.ref[object]] = {}
        self._may_be_reused: tuple[Block, Block] | None = None

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor.untyped_storage()) in self._blocks

    def block_of(self, tensor: Tensor) -> Block:
        """The block under a tensor; one that was never seen existed before, and is taken in as such."""
        key = id(tensor.untyped_storage())
        if key not in self._blocks:
            self.add(tensor, "", "", TEMPORARIES)
        return self._blocks[key]

    def add(self, tensor: Tensor, operator: str, place: str, category: str, on_host: bool = False) -> Block:
        """Take in the storage of `tensor`, which is not known yet."""
        storage = tensor.untyped_storage()
        key = id(storage)
        size = -(-storage.nbytes() // self._block_bytes) * self._block_bytes
        on_host = on_host and self._separate_host
        block = Block(0 if on_host else size, operator, place, category, on_host)
        self._blocks[key] = block
        self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        self.live_bytes += block.bytes
        self.changes.append(Change(block, True))
        self._may_be_reused = None
        return block

    def reuses_if_freed_next(self, result: Block, argument: Block) -> None:
        """`result`, just added, is no new block if `argument` is let go of before anything else is allocated."""
        if result.bytes == argument.bytes:
            self._may_be_reused = (result, argument)

    def live_blocks(self) -> list[Block]:
        return list(self._blocks.values())

    def forget_all(self) -> None:
        """Follow nothing any longer; what is free from here on is not noted."""
        self._references.clear()
        self._blocks.clear()

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        self._references.pop(key, None)
        if block is None:
            return
        if self._may_be_reused is not None and block is self._may_be_reused[1]:
            self._hand_on(block)
            return
        self.live_bytes -= block.bytes
        self.changes.append(Change(block, False))

    def _hand_on(self, block: Block) -> None:
        """The result of the last operation was written into `block`, and lives on under its name."""
        assert self._may_be_reused is not None
        result, _ = self._may_be_reused
        self._may_be_reused = None
        key = next(key for key, known in reversed(self._blocks.items()) if known is result)
        self._blocks[key] = block
        last = max(place for place, change in enumerate(self.changes) if change.block is result)
        del self.changes[last]
        self.live_bytes -= block.bytes
