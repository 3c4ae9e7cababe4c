"""One gate, or search with the gate, at a time: two would share the machine, and neither could tell its neighbour from
a slow side."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perf_tests.paired.trees import TREES, TreeError


class BesideAnotherError(Exception):
    """Another gate measures on this machine; the message is one sentence."""


@contextmanager
def alone(what: str = "gate", folders: str = TREES) -> Iterator[None]:
    """Holds the lock of the temporary folder, after removing the `folders` of runs that were killed.

    The lock ends with its process; its file stays. Raises BesideAnotherError where another run holds it, TreeError
    where it cannot be opened.
    """
    try:
        folder = Path(tempfile.gettempdir())
        lock = _opened(folder / f"perf-tests-{what}.lock")
    except OSError as error:
        raise TreeError(f"The {what} cannot lock the machine: {error}; set TMPDIR to a folder to write to.") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise BesideAnotherError(
                f"Another {what}, process {process}, is measuring on this machine, and two at once would disturb each "
                "other; wait for its end."
            ) from error
        with suppress(OSError):  # of another user, who left it
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        for left in folder.glob(f"{folders}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(lock)


def _opened(path: Path) -> int:
    """For every user: a shared temporary folder lets nobody create, or open to write, the file of another."""
    with suppress(FileExistsError):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):
            os.fchmod(lock, 0o666)
        return lock
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
