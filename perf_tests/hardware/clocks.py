"""Clocks, kept before code of the user's runs, which may replace those of the module `time`. No torch."""

import os
import time as _time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial


class ProcessClock:
    """CPU seconds of every thread of this process, those that have ended included.

    The kernel brings the process's own clock up to date for the calling thread alone (kernel/sched/cputime.c,
    thread_group_cputime): of a thread that runs on another processor it misses what that has used since its last tick,
    up to 4 or 10 ms. Reading the clock of a thread brings that thread up to date, so each is read first; the process's
    clock then misses nothing, and a thread that ended between two readings stays in its sum.
    """

    def __init__(self) -> None:
        self._stat, self._list, self._read, self._sum = os.stat, os.listdir, _time.clock_gettime, _time.process_time
        self._links = -1
        self._clocks: list[int] = []

    def __call__(self) -> float:
        """CPU seconds of all threads, read in microseconds; as coarse as `time.process_time` without /proc."""
        with suppress(OSError):
            # The folder of threads has a link for each. One that took an ended one's place has another number.
            if (links := self._stat("/proc/self/task").st_nlink) != self._links or not self._bring_up_to_date():
                # The kernel's clock of another thread: its number inverted, and 6 for its scheduler's time
                # (include/linux/posix-timers_types.h).
                self._clocks = [(~int(thread) << 3) | 6 for thread in self._list("/proc/self/task")]
                self._links = links
                self._bring_up_to_date()
        return self._sum()

    def _bring_up_to_date(self) -> bool:
        """Return whether every thread is still there."""
        are_there = True
        for clock in self._clocks:
            try:
                self._read(clock)
            except OSError:
                are_there = False
        return are_there


@dataclass(frozen=True)
class Clocks:
    """What the suite reads in place of the module `time`, whose functions any code of this process can replace."""

    perf_counter: Callable[[], float]
    monotonic: Callable[[], float]
    process_time: Callable[[], float]
    raw: Callable[[], float]
    """A second clock, which no time server corrects; the first is corrected by .05 % at most, or see `rate_of_clocks`.
    """
    sleep: Callable[[float], None]


_raw = partial(_time.clock_gettime, getattr(_time, "CLOCK_MONOTONIC_RAW", _time.CLOCK_MONOTONIC))
time = Clocks(_time.perf_counter, _time.monotonic, ProcessClock(), _raw, _time.sleep)
