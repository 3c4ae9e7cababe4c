"""SIGTERM, as a scheduler sends it: the case in flight ends, workers too, and what is finished is kept."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

EXIT_CODE = 128 + signal.SIGTERM
"""143, as a shell shows a process that the signal ended."""


class TerminatedError(KeyboardInterrupt):
    """No `except Exception` on the way may take it for a failure of the case."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM unwinds to here and ends pytest with 143; a second one does not disturb the clean-up."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except TerminatedError:
        pytest.exit("SIGTERM has ended the run.", returncode=EXIT_CODE)
    finally:
        signal.signal(signal.SIGTERM, before)
