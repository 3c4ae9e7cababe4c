"""Cores of this machine and the binding of processes to them (Linux). No torch."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path


def processor_of_each_core() -> list[int]:
    """The processors that this process may use, one for each physical core."""
    first: dict[str, int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        siblings = str(number)
        with suppress(OSError):
            siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text()
        first.setdefault(siblings, number)
    return list(first.values())


def processors_for(threads: int) -> list[int]:
    """Processors for a number of threads: one of each core, or all if there are more threads than cores."""
    cores = processor_of_each_core()
    return cores if threads <= len(cores) else sorted(os.sched_getaffinity(0))


def processor_quota() -> float | None:
    """Processors that the control group (version 2) lets this process use at a time; None where nothing limits it."""
    limits = []
    with suppress(OSError, ValueError):
        (own,) = (line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for group in (Path(own), *Path(own).parents):
            with suppress(OSError, ValueError):  # the root has no limit, and `max` is no number
                quota, period = Path(f"/sys/fs/cgroup{group}", "cpu.max").read_text().split()
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def can_bind() -> bool:
    """Whether this process may bind processes to cores, which some containers forbid."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True


def keep_on(process_id: int, cores: Sequence[int]) -> None:
    """Bind the main thread of a process to the first of `cores` and its other threads to the rest.

    A later thread inherits the binding of its creator. A process that has ended is ignored.
    """
    for thread in _threads(process_id):
        _bind(thread, cores[:1] if thread == process_id else cores[1:] or cores)


def let_go(process_id: int) -> None:
    """Allow a process all processors that this one may use."""
    for thread in _threads(process_id):
        _bind(thread, os.sched_getaffinity(0))


def _threads(process_id: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process_id}/task")]
    return []


def _bind(thread: int, cores: Collection[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def physical_cores() -> int:
    """How many physical cores this process may use."""
    return len(processor_of_each_core())
