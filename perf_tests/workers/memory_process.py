"""The suite's end of the memory pass's worker: started at the first case that asks, asked case by case."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from perf_tests.records.record import Json
from perf_tests.workers.channel import Channel, ClosedError


class MemoryWorkerError(Exception):
    """The worker itself is gone, not just the process of a case; the message is one sentence."""


@dataclass
class MemoryWorker:
    """`root` is the folder that holds the suite; a worker that is gone is started again for the next case."""

    root: Path
    _process: subprocess.Popen[bytes] | None = None
    _channel: Channel | None = None
    _log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    def ask(self, task: Json) -> Json:
        """Its answer, however long that takes. Raises MemoryWorkerError."""
        channel = self._channel or self._start()
        try:
            channel.send(task)
            return channel.receive()
        except (ClosedError, ValueError) as error:
            reason = self._last_words()
            self._stop()
            raise MemoryWorkerError(f"the worker of the memory pass ended: {reason}.") from error

    def end(self) -> None:
        """Whatever it is doing, and whatever it started."""
        self._stop()
        self._log.close()

    def _start(self) -> Channel:
        its_read, our_write = os.pipe()
        our_read, its_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perf_tests.workers.memory", str(its_read), str(its_write)],
                cwd=self.root,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(its_read, its_write),
                process_group=0,  # Ctrl-C is for the suite, which ends its worker itself
            )
        finally:
            os.close(its_read)
            os.close(its_write)
        self._channel = Channel(our_read, our_write)
        return self._channel

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else "it said nothing"


def _environment() -> dict[str, str]:
    """Ours, without pytest's own variables and the threads that numpy starts on import: a fork takes none along."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1"}
