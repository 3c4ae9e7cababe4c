"""The heap of this process, made to do what a GPU's caching allocator does: what is freed stays at hand.

A round then finds the memory of the round before, and no figure depends on what ran earlier. Of glibc; a C library
that has no such switch, or refuses it, is left as it is, and a record says so.
"""

import ctypes

# malloc.h; the numbers are part of glibc's binary interface.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_NEVER = -1
_LARGEST_ARGUMENT = 2**31 - 1

KEPT_BLOCKS_IN_BUDGET = 64
"""How many of the largest blocks that are kept the memory has room for: so many that a few free places, each a little
too small, cost no case the memory it needs."""

_largest_kept_bytes = 0
_heap_bytes_with_room = 0


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def keep_freed_memory(budget_bytes: int) -> None:
    """From here on, large blocks come out of the heap like small ones, and the heap never shrinks by itself.

    Left to itself, glibc maps a block above 32 MiB each time, which costs thousands of page faults, unless the heap
    has room from something that ran earlier, and it gives the heap's end back whenever that is free (mallopt(3)). It
    still does so with blocks above a 64th of the budget, which is taken down to a power of 2.
    """
    global _largest_kept_bytes
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    largest = min(1 << (budget_bytes // KEPT_BLOCKS_IN_BUDGET).bit_length() >> 1, _LARGEST_ARGUMENT)
    if mallopt and mallopt(_M_MMAP_THRESHOLD, largest) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        _largest_kept_bytes = largest


def is_kept() -> bool:
    """Whether this process keeps the memory that tensors free."""
    return _largest_kept_bytes > 0


def make_room() -> None:
    """Take pages ahead, as many as the heap has grown by since the last time, up to the largest block that is kept.

    Until 2.39 glibc cuts an aligned block so that its place, once free, can be a few bytes short of the next one of its
    size (sourceware.org/bugzilla, 30723). The heap then grows now and then in the middle of a later round.
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
    # Beyond the free end of the heap, or the block would be cut out of pages that are there already.
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
