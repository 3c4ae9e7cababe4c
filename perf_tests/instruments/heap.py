"""The heap of this process, made to keep freed memory as a GPU's caching allocator does.

Each round then finds the memory of the round before, and no figure depends on what ran earlier. This needs glibc; under
another C library the heap stays as it is, and records say so.
"""

import ctypes

# malloc.h; the numbers are part of glibc's binary interface.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_NEVER = -1
_LARGEST_ARGUMENT = 2**31 - 1

KEPT_BLOCKS_IN_BUDGET = 64
"""The budget holds this many of the largest kept blocks, so that a few free gaps cost no case its memory."""

_largest_kept_bytes = 0
_heap_bytes_with_room = 0


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def keep_freed_memory(budget_bytes: int) -> None:
    """From here on, large blocks come from the heap like small ones, and the heap never shrinks by itself.

    By default glibc maps each block above 32 MiB anew, at the cost of thousands of page faults, and gives back the free
    end of the heap (mallopt(3)). It still maps blocks above a 64th of the budget, rounded down to a power of 2.
    """
    global _largest_kept_bytes
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    largest = min(1 << (budget_bytes // KEPT_BLOCKS_IN_BUDGET).bit_length() >> 1, _LARGEST_ARGUMENT)
    if mallopt and mallopt(_M_MMAP_THRESHOLD, largest) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        _largest_kept_bytes = largest


def is_kept() -> bool:
    """Whether this process keeps freed memory."""
    return _largest_kept_bytes > 0


def make_room() -> None:
    """Take as many pages ahead as the heap has grown since the last call, up to the largest kept block.

    Before 2.39, the place of a freed aligned block can be a few bytes short of the next one of its size
    (sourceware.org/bugzilla, 30723), so that the heap sometimes grows in the middle of a later round.
    """
    global _heap_bytes_with_room
    libc = ctypes.CDLL(None)
    mallinfo2 = getattr(libc, "mallinfo2", None)
    if mallinfo2 is None or not is_kept():
        return
    mallinfo2.restype = _Mallinfo2
    heap = mallinfo2()
    grown_bytes = heap.arena - _heap_bytes_with_room
    if grown_bytes <= 0:
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_ARGUMENT)
    # Beyond the free end of the heap, or the block would be cut from existing pages.
    size = heap.keepcost + min(grown_bytes, _largest_kept_bytes)
    block = libc.malloc(size)
    if block is not None:  # else the memory budget is spent
        ctypes.memset(block, 0, size)
        libc.free(block)
    libc.mallopt(_M_MMAP_THRESHOLD, _largest_kept_bytes)
    _heap_bytes_with_room = mallinfo2().arena


def give_back() -> None:
    """Return all unused pages to the kernel (malloc_trim(3))."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
