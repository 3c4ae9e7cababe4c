"""Cores of this machine, and which of them a process works on (Linux)."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path


def processor_of_each_core() -> list[int]:
    """The numbers of the processors that this process may run on, of a core with two hardware threads one alone."""
    first: dict[str, int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        siblings = str(number)
        with suppress(OSError):
            siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text()
        first.setdefault(siblings, number)
    return list(first.values())


def processors_for(threads: int) -> list[int]:
    """Where so many threads may work: one processor of each core, or all where the threads are more than the cores."""
    cores = processor_of_each_core()
    return cores if threads <= len(cores) else sorted(os.sched_getaffinity(0))


def can_bind() -> bool:
    """Whether this process may say where a process works, which some containers forbid."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True


def keep_on(process_id: int, cores: Sequence[int]) -> None:
    """Bind the main thread of a process to the first of `cores`, and those that it has beside it to the others.

    A thread made later is bound where its maker is. A process that has ended is left alone.
    """
    for thread in _threads(process_id):
        _bind(thread, cores[:1] if thread == process_id else cores[1:] or cores)


def let_go(process_id: int) -> None:
    """Let a process work wherever this one may."""
    for thread in _threads(process_id):
        _bind(thread, os.sched_getaffinity(0))


def _threads(process_id: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process_id}/task")]
    return []


def _bind(thread: int, cores: Collection[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)
