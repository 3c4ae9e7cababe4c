"""A worker ends with its starter, whatever ends that: the kernel kills the worker's process group.

The worker's standard input is a pipe that nobody writes to and that closes with the starter. Linux sends a chosen
signal when a pipe closes, here SIGKILL to the group. Until then nothing happens, so no round can notice: a thread that
waited instead would make the process multi-threaded, in which malloc is slower and a fork of the memory worker
dangerous, and it would need the interpreter's lock to act.
"""

import fcntl
import os
import select
import signal
import sys


def end_with_starter() -> None:
    """Where the system cannot send such a signal, a worker ends at its next message instead."""
    if not hasattr(fcntl, "F_SETSIG"):
        return
    pipe = os.dup(0)
    with open(os.devnull) as nothing:  # what a benchmark reads
        os.dup2(nothing.fileno(), 0)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it was closed before
        sys.exit(1)
