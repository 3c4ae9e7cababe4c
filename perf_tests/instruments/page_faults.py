"""Pages that the kernel hands this process on first touch: how many so far, and what one costs here."""

import mmap
import resource
import time

CALIBRATION_BYTES = 8 << 20
CALIBRATIONS = 5


def page_faults() -> int:
    """Since the process began, those served without a disk (getrusage(2), ru_minflt)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def system_seconds() -> float:
    """CPU time that the kernel spent for this process since it began, in all threads (getrusage(2), ru_stime)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def seconds_per_page_fault() -> float:
    """Of a page of the usual size, its clearing included: first touch of fresh pages less a second touch.

    CPU time, and the minimum of a few runs: a neighbour that takes the core is no page fault.
    """
    return min(_calibrate() for _ in range(CALIBRATIONS))


def _calibrate() -> float:
    pages = CALIBRATION_BYTES // mmap.PAGESIZE
    with mmap.mmap(-1, CALIBRATION_BYTES) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        ones = b"\x01" * pages
        before, start = page_faults(), time.process_time()
        memory[:: mmap.PAGESIZE] = ones
        faults, touched = page_faults() - before, time.process_time()
        memory[:: mmap.PAGESIZE] = ones
        again_seconds = time.process_time() - touched
    return max(0.0, touched - start - again_seconds) / max(1, faults)
