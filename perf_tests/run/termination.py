"""SIGTERM, as a scheduler sends it: the case in flight ends, workers too, and what is finished is kept."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

EXIT_CODE = 128 + signal.SIGTERM
"""143, as a shell shows a process that the signal ended."""

TERMINATED = pytest.StashKey[bool]()
"""On the config: whether SIGTERM ended the run."""


class TerminatedError(KeyboardInterrupt):
    """No `except Exception` on the way may take it for a failure of the case."""


@contextmanager
def interrupted_by_sigterm(config: pytest.Config) -> Iterator[None]:
    """Inside, SIGTERM raises TerminatedError once; a second one does not disturb the clean-up."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        config.stash[TERMINATED] = True
        raise TerminatedError("SIGTERM has ended the run")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
