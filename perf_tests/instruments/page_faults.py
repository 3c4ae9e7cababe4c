"""Pages that the kernel hands this process on first touch: how many so far, and what one costs here."""

import mmap
import resource
import time

CALIBRATION_BYTES = 32 << 20


def page_faults() -> int:
    """Since the process began, those served without a disk (getrusage(2), ru_minflt)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def seconds_per_page_fault() -> float:
    """Of a page of the usual size, its clearing included: first touch of fresh pages less a second touch."""
    pages = CALIBRATION_BYTES // mmap.PAGESIZE
    with mmap.mmap(-1, CALIBRATION_BYTES) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        ones = b"\x01" * pages
        before, start = page_faults(), time.perf_counter()
        memory[:: mmap.PAGESIZE] = ones
        faults, touched = page_faults() - before, time.perf_counter()
        memory[:: mmap.PAGESIZE] = ones
        again_seconds = time.perf_counter() - touched
    return max(0.0, touched - start - again_seconds) / max(1, faults)
