"""The starting end of a worker: `python -m MODULE READ WRITE` in a folder, and the channel to it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perf_tests.workers.channel import Channel


@dataclass
class WorkerProcess:
    """A running worker; `log` holds what it printed."""

    process: subprocess.Popen[bytes]
    channel: Channel
    log: IO[bytes]

    def how_it_ended(self) -> str:
        """Words for what became of a worker whose end of the channel is closed."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its end of the conversation"
        if code < 0:
            return f"its process died of {signal.Signals(-code).name}"
        return f"its process exited with {code}" + (f": {words}" if (words := self.last_words()) else "")

    def last_words(self) -> str:
        """pytest's own word for what went wrong, or else the last line of all; empty where it said nothing."""
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        return (errors or lines or [""])[-1]

    def end(self) -> None:
        """Whatever it is doing, and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()
        self.log.close()


def start_worker(module: str, folder: Path, environment: Mapping[str, str]) -> WorkerProcess:
    log = tempfile.TemporaryFile()  # noqa: SIM115  # it is open for as long as the worker lives
    its_read, our_write = os.pipe()
    our_read, its_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(its_read), str(its_write)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(its_read, its_write),
            process_group=0,  # Ctrl-C is for the suite, which ends its workers itself
        )
    finally:
        os.close(its_read)
        os.close(its_write)
    return WorkerProcess(process, Channel(our_read, our_write), log)


def inherited_environment() -> dict[str, str]:
    """Ours without pytest's own variables: what a user adds to every pytest is meant for the run, not for workers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
