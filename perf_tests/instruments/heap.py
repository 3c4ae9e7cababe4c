"""The heap of this process, told to keep what tensors free: a round then finds the memory of the round before."""

import ctypes

# malloc.h; the numbers are part of glibc's binary interface.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4

_NEVER = -1

_is_kept = False


def keep_freed_memory() -> None:
    """From here on, large blocks come out of the heap like small ones, and the heap shrinks only when told to.

    Left to itself, glibc maps a block above 32 MiB anew each time, a thousand page faults for 4 MB, unless the heap
    has room from something that ran earlier, and gives the heap's end back whenever it is free (mallopt(3)): a figure
    would depend on the cases before it. A C library without the switch is left as it is.
    """
    global _is_kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        _is_kept = bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def is_kept() -> bool:
    """Whether this process keeps the memory that tensors free."""
    return _is_kept


def give_back() -> None:
    """Hand all pages that nobody uses back to the kernel (malloc_trim(3))."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
