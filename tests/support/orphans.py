"""Processes that tests started and left running: found by a variable that every descendant inherits."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "STARTED_BY_TEST_PROCESS"
"""Its value names the process that ran the test, also where the process between has ended and left an orphan."""

PATIENCE_SECONDS = 5.0
"""A process that is on its way out, as a worker whose pipe has just closed, is none."""


OF_PYTHON = ("from multiprocessing.resource_tracker import main", "from multiprocessing.forkserver import main")
"""Helpers of `multiprocessing`, one each, which end with the process that started them."""


def mark(environment: dict[str, str] | os._Environ[str]) -> None:
    """Let everything that this process starts from here on bear its mark."""
    environment[VARIABLE] = str(os.getpid())


def _marked(mark: str) -> Iterator[tuple[int, str]]:
    """Yield the id and the command line of each process with the mark, without this one and what has ended."""
    wanted = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == os.getpid() or wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if command and not any(words in command for words in OF_PYTHON):  # a zombie has none
                yield int(folder.name), command
        except (FileNotFoundError, PermissionError, ProcessLookupError):  # it ended meanwhile, or is another user's
            continue


def orphans(mark: str, patience_seconds: float = PATIENCE_SECONDS) -> list[str]:
    """Return `id command` of each process that still runs once the patience is over."""
    deadline = time.monotonic() + patience_seconds
    while (found := list(_marked(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{number} {command[:200]}" for number, command in found]
