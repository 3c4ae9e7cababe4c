"""Worker processes, `python -m MODULE SOCKET`: how one is started, talks, and ends with its starter. No torch."""

import ctypes
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.records.record import Json

if TYPE_CHECKING:  # it loads numpy, for which a refusal need not wait
    from perf_tests_suite.perf_tests.gate.samples import Side

# One JSON object per line over a socket, never a pickle.


class ClosedError(Exception):
    """The other end has closed the channel."""


class Channel:
    """One end, the worker's or its starter's."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._received = end, end.makefile("rb")

    def send(self, message: Json) -> None:
        """Send one message. Raises ClosedError."""
        try:
            self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ClosedError from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """Return the next message, within `patience_seconds` where given; raises ClosedError or TimeoutError."""
        self._end.settimeout(patience_seconds)
        try:
            line = self._received.readline()
        except TimeoutError:  # an OSError too
            raise
        except OSError as error:
            raise ClosedError from error
        if not line.endswith(b"\n"):
            raise ClosedError
        message: Json = json.loads(line)
        return message

    def close(self) -> None:
        self._received.close()
        self._end.close()


# The starter's side: start a worker, ask it, end it.


class WorkerEndedError(Exception):
    """A worker died, hung or cannot serve; the message says how, without a full stop."""

    def __init__(
        self, reason: str, side: "Side | None" = None, cannot_start: bool = False, is_absent: bool = False
    ) -> None:
        super().__init__(reason)
        self.side: Any = side
        """The side of the gate's worker; None for another one."""
        self.cannot_start = cannot_start
        """Whether the side's own code failed before the first case, or is not there."""
        self.is_absent = is_absent


@dataclass
class WorkerProcess:
    """A running worker; `log` holds what it printed."""

    process: subprocess.Popen[bytes]
    channel: Channel
    log: IO[bytes]
    side: "Side | None" = None
    """The side of a gate."""

    def send(self, message: Json) -> None:
        """Send one message to the worker. Raises WorkerEndedError."""
        try:
            self.channel.send(message)
        except ClosedError as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """Return the next message, within `patience_seconds` where given.

        Raises WorkerEndedError if there is none, or if it says that the worker cannot start or continue.
        """
        try:
            message = self.channel.receive(patience_seconds)
        except TimeoutError as error:
            raise WorkerEndedError(f"it gave no answer for {patience_seconds:.0f} s", self.side) from error
        except (ClosedError, ValueError) as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error
        for name in ("absent", "cannot", "ended"):
            if name in message:
                reason = str(message[name]).strip().rstrip(".")
                raise WorkerEndedError(reason, self.side, cannot_start=name != "ended", is_absent=name == "absent")
        return message

    def ask(self, message: Json, patience_seconds: float | None = None) -> Json:
        self.send(message)
        return self.receive(patience_seconds)

    def _how_it_ended(self) -> str:
        """Say how, once the worker has closed its end of the channel."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its end of the channel"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        self.log.seek(0)
        words = last_error_line(self.log.read().decode(errors="replace"))
        return f"its process exited with {code}" + (f": {words}" if words else "")

    def end(self) -> None:
        """Kill the worker and every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.channel.close()
        self.log.close()


def lines_not_compiled(message: str) -> list[tuple[str, str]]:
    """The stack, file and line, of what torch could not compile, with which its error ends; empty of any other."""
    return re.findall(r'File "(.+)", line (\d+)', message.partition("from user code:")[2])


def last_error_line(printed: str) -> str:
    """Return pytest's last error line, or else the last line printed, without a full stop."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1].rstrip(".")


def start_worker(
    module: str,
    folder: Path,
    environment: Mapping[str, str],
    side: "Side | None" = None,
    python: str | None = None,
) -> WorkerProcess:
    """Start one in `folder` under `python`, or this process's interpreter."""
    log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the worker lives
    # A scheduler sends SIGTERM to every process. The worker inherits the mask, so that its starter ends it, in order.
    unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ours, its = socket.socketpair()
    try:
        process = subprocess.Popen(
            [python or sys.executable, "-m", module, str(its.fileno())],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,  # until it closes, with this process
            stdout=log,
            stderr=log,
            pass_fds=(its.fileno(),),
            process_group=0,  # Ctrl-C is for the suite, which ends its workers itself
        )
    finally:
        its.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
    return WorkerProcess(process, Channel(ours), log, side)


def inherited_environment(
    first: Sequence[Path] = (IMPORTABLE,), without: Callable[[Path], bool] | None = None
) -> dict[str, str]:
    """Return this process's variables without pytest's, whose options are meant for the run and not for its workers.

    The one that keeps a machine's plugins out counts for workers too. Python's path is absolute, because a worker
    starts in another folder, and holds this folder where `python -m pytest` imports from it; `first`, with the suite in
    it, comes before it, and entries that are to be left out are told by `without`.
    """
    kept = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [os.getcwd()] if {"", os.getcwd()}.intersection(sys.path) else []
    entries = [os.path.abspath(entry) for entry in (*given, *here)]
    entries = [entry for entry in entries if without is None or not without(Path(entry).resolve())]
    left_out = ("PYTEST", "PYTHONPATH")
    others = {name: value for name, value in os.environ.items() if name == kept or not name.startswith(left_out)}
    path = os.pathsep.join((*map(str, first), *entries))
    return {**others, **({"PYTHONPATH": path} if path else {})}


# The worker's side.


def channel_of_worker() -> Channel:
    """Return the channel of a process that was started as `python -m MODULE SOCKET`, which ends with its starter."""
    end_with_starter()
    # A process that the starter forked holds the pipe of `end_with_starter` open too, and may outlive it. This signal
    # does not need the pipe, but comes when the starting *thread* ends and reaches this process alone: one that starts
    # others with a pipe of their own would leave them running.
    if hasattr(fcntl, "F_SETSIG"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return Channel(socket.socket(fileno=int(sys.argv[1])))


_PR_SET_PDEATHSIG = 1


def end_with_starter(outlives_exec: bool = False) -> None:
    """Let the kernel kill this process and its group, from here on, when the starter is gone, whatever ended that.

    The standard input is a pipe that nobody writes to and that closes with the starter. Linux sends a chosen signal
    when a pipe closes, here SIGKILL to the group. Until then nothing happens, so no round can notice: a thread that
    waited instead would make the process multi-threaded, in which malloc is slower and a fork of the memory worker
    dangerous, and it would need the interpreter's lock to act.

    With `outlives_exec` it holds for the program that takes this one's place too. Where the system cannot send such a
    signal, a worker ends at its next message instead.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    pipe = os.dup(0)
    os.set_inheritable(pipe, outlives_exec)
    with open(os.devnull) as nothing:  # what a benchmark reads
        os.dup2(nothing.fileno(), 0)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it was closed before
        sys.exit(1)
