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
class StorageBlock:
    """One storage, from its allocation on."""

    bytes: int
    operator: str
    place: str
    """`model/attention.py:48`, where the source of the model is known and made it; else empty."""
    category: str
    on_host: bool
    is_saved: bool = False
    """Whether autograd keeps it for the backward pass."""


@dataclass(frozen=True)
class Change:
    """A block came or went."""

    block: StorageBlock
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
        self._block_bytes = block_bytes
        self._separate_host = separate_host
        self._blocks: dict[int, StorageBlock] = {}
        self._references: dict[int, weakref.ref[object]] = {}
        self._last_allocation = 0
        self._last_key = 0
        self._may_be_reused: StorageBlock | None = None

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor.untyped_storage()) in self._blocks

    def block_of(self, tensor: Tensor) -> StorageBlock:
        """The block under a tensor; one that was never seen existed before, and is taken in as such."""
        key = id(tensor.untyped_storage())
        if key not in self._blocks:
            self.add(tensor, "", "", TEMPORARIES)
        return self._blocks[key]

    def add(self, tensor: Tensor, operator: str, place: str, category: str, on_host: bool = False) -> StorageBlock:
        """Take in the storage of `tensor`, which is not known yet."""
        storage = tensor.untyped_storage()
        key = id(storage)
        size = -(-storage.nbytes() // self._block_bytes) * self._block_bytes
        on_host = on_host and self._separate_host
        block = StorageBlock(0 if on_host else size, operator, place, category, on_host)
        self._blocks[key] = block
        self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        self.changes.append(Change(block, True))
        self._last_allocation, self._last_key = len(self.changes) - 1, key
        self._may_be_reused = None
        return block

    def reuses_if_freed_next(self, argument: StorageBlock) -> None:
        """The block just added is no new one if `argument` is let go of before anything else is allocated."""
        if self.changes[self._last_allocation].block.bytes == argument.bytes:
            self._may_be_reused = argument

    def settle(self) -> int:
        """How many changes there are for good: nothing from before is handed on any more."""
        self._may_be_reused = None
        return len(self.changes)

    def live_blocks(self) -> list[StorageBlock]:
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
        if block is self._may_be_reused and self._last_key in self._blocks:
            self._hand_on(block)
        else:
            self.changes.append(Change(block, False))

    def _hand_on(self, block: StorageBlock) -> None:
        """What was added last was written into `block`, which lives on under its name."""
        self._may_be_reused = None
        self._blocks[self._last_key] = block
        del self.changes[self._last_allocation]
