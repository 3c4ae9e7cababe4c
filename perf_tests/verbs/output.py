"""Standard output that says when it cannot be written, so that no verb takes this for a fault of its own files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from perf_tests.phases import FINE, USAGE


class OutputError(Exception):
    """No OSError, which verbs catch around their files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.error = error


class _Output:
    """A stream whose writing and flushing raise OutputError; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _told():
            return self._stream.write(text)

    def flush(self) -> None:
        with _told():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


@contextmanager
def watched_output() -> Iterator[None]:
    """Watch a block in which printing raises OutputError where standard output cannot be written; where it is closed,
    it is lost.
    """
    stream = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # Python has None for a closed one
    sys.stdout = output = _Output(stream)
    try:
        yield
    finally:
        sys.stdout = stream
        output.flush()


def end_without_output(lost: OutputError) -> int:
    """Discard what is left, which Python would try to write when it ends. The exit code, and why there is none.

    That a reader closes the pipe, as `| head` does, is no fault.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(lost.error, BrokenPipeError):
        return FINE
    with suppress(OSError):
        print(f"The output cannot be written: {lost}; free space or print elsewhere.", file=sys.stderr)
    return USAGE
