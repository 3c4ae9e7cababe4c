"""A log of tensor storages as they are allocated and freed: how much is held when, and by what.

A storage is a block of memory that views share. A weak reference follows it, so that it counts as free when its last
tensor is gone, as in the allocator.
"""

import weakref
from dataclasses import dataclass

from torch import Tensor

CUDA_BLOCK_BYTES = 512
"""CUDA's caching allocator rounds blocks up to multiples of this (PyTorch, c10/core/CachingDeviceAllocator.h)."""

TEMPORARIES = "temporaries"


@dataclass
class StorageBlock:
    """One storage, from its allocation on."""

    bytes: int
    operator: str
    place: str
    """`model/attention.py:48`; empty where no known line of the model made it."""
    category: str
    on_host: bool
    is_saved: bool = False
    """For the backward pass, by autograd."""


@dataclass(frozen=True)
class Change:
    """One allocation or release."""

    block: StorageBlock
    is_allocation: bool

    @property
    def bytes(self) -> int:
        """Negative when freed."""
        return self.block.bytes if self.is_allocation else -self.block.bytes


class StorageTracker:
    """Every block registered or allocated, and every change in order.

    Blocks are rounded up to multiples of `block_bytes`. With `separate_host`, tensors on the host take no memory.
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
        """The block under a tensor; an unknown one existed before and is added."""
        key = id(tensor.untyped_storage())
        if key not in self._blocks:
            self.add(tensor, "", "", TEMPORARIES)
        return self._blocks[key]

    def add(self, tensor: Tensor, operator: str, place: str, category: str, on_host: bool = False) -> StorageBlock:
        """Follow the storage of `tensor`, which must be unknown so far."""
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

    def pass_by(self, size: int, operator: str, place: str, category: str) -> None:
        """Add a block that its operation frees before it returns."""
        block = StorageBlock(
            -(-size // self._block_bytes) * self._block_bytes, operator, place, category, on_host=False
        )
        self.changes += [Change(block, True), Change(block, False)]

    def reuses_if_freed_next(self, argument: StorageBlock) -> None:
        """The block just added reuses that of `argument` if the latter is freed before the next allocation."""
        if self.changes[self._last_allocation].block.bytes == argument.bytes:
            self._may_be_reused = argument

    def settle(self) -> int:
        """The number of changes so far, now final: no earlier block can be reused any more."""
        self._may_be_reused = None
        return len(self.changes)

    def live_blocks(self) -> list[StorageBlock]:
        return list(self._blocks.values())

    def forget_all(self) -> None:
        """Stop following all blocks."""
        self._references.clear()
        self._blocks.clear()

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        self._references.pop(key, None)
        if block is None:
            return
        if block is self._may_be_reused and self._last_key in self._blocks:
            # What was added last was written into `block`, which lives on under its name.
            self._may_be_reused = None
            self._blocks[self._last_key] = block
            del self.changes[self._last_allocation]
        else:
            self.changes.append(Change(block, False))
