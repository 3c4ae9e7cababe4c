"""A worker as its starter sees it: `python -m MODULE SOCKET` in a folder, and the channel to it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from perf_tests.gate.events import Side
from perf_tests.records.record import Json
from perf_tests.workers.channel import Channel, ClosedError, SilentError


class WorkerEndedError(Exception):
    """A worker died, hung or cannot serve; the message says how, without a full stop."""

    def __init__(self, reason: str, side: Side | None = None, cannot_start: bool = False) -> None:
        super().__init__(reason)
        self.side: Any = side
        """Of the gate's worker; None of another one."""
        self.cannot_start = cannot_start
        """Whether the side's own code failed before the first case."""


@dataclass
class WorkerProcess:
    """A running worker; `log` holds what it printed."""

    process: subprocess.Popen[bytes]
    channel: Channel
    log: IO[bytes]
    side: Side | None = None
    """Of a gate."""

    def send(self, message: Json) -> None:
        """Raises WorkerEndedError."""
        try:
            self.channel.send(message)
        except ClosedError as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """The next message, within `patience_seconds` where given.

        Raises WorkerEndedError if there is none, or if it says that the worker cannot start or continue.
        """
        try:
            message = self.channel.receive(patience_seconds)
        except SilentError as error:
            raise WorkerEndedError(f"it gave no answer for {patience_seconds:.0f} s", self.side) from error
        except (ClosedError, ValueError) as error:
            raise WorkerEndedError(self._how_it_ended(), self.side) from error
        for name in ("cannot", "ended"):
            if name in message:
                raise WorkerEndedError(str(message[name]).strip().rstrip("."), self.side, cannot_start=name == "cannot")
        return message

    def ask(self, message: Json, patience_seconds: float | None = None) -> Json:
        self.send(message)
        return self.receive(patience_seconds)

    def _how_it_ended(self) -> str:
        """Call it once the worker has closed its end of the channel."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its end of the channel"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with {code}" + (f": {words}" if (words := self._last_words()) else "")

    def _last_words(self) -> str:
        self.log.seek(0)
        return last_words(self.log.read().decode(errors="replace"))

    def end(self) -> None:
        """Kill the worker and every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.channel.close()
        self.log.close()


def last_words(printed: str) -> str:
    """pytest's last error line, or else the last line printed, without a full stop."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1].rstrip(".")


def start_worker(
    module: str,
    folder: Path,
    environment: Mapping[str, str],
    side: Side | None = None,
    python: str | None = None,
) -> WorkerProcess:
    """Under `python`, or this process's interpreter."""
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


def inherited_environment() -> dict[str, str]:
    """Without pytest's variables, whose options are meant for the run and not for its workers.

    The one that keeps a machine's plugins out counts for workers too. Python's path is absolute, because a worker
    starts in another folder, and holds this folder where `python -m pytest` imports from it.
    """
    kept = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [os.getcwd()] if {"", os.getcwd()}.intersection(sys.path) else []
    path = os.pathsep.join(os.path.abspath(entry) for entry in (*given, *here))
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST") or name == kept}
    return {**others, **({"PYTHONPATH": path} if path else {})}
