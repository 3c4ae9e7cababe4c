"""Page faults of this process: how many so far, and the cost of one on this machine."""

import mmap
import resource
import time

CALIBRATION_BYTES = 8 << 20
CALIBRATIONS = 5


def page_faults() -> int:
    """Minor page faults since the process began (getrusage(2), ru_minflt)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def system_seconds() -> float:
    """CPU time of the kernel for all threads of this process since it began (getrusage(2), ru_stime)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def seconds_per_page_fault() -> float:
    """CPU time of one fault, clearing the page included: first touch of fresh pages minus a second touch.

    The minimum of a few runs, so that a neighbour on the core does not count.
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
