"""How a worker and the process that started it talk: one JSON object per line over two pipes, never a pickle."""

import json
import os
import select
import sys
import time

from perf_tests.records.record import Json


class ClosedError(Exception):
    """The other end has closed the channel."""


class SilentError(Exception):
    """No message came in time; the argument is the wait in seconds."""


class Channel:
    def __init__(self, read_descriptor: int, write_descriptor: int) -> None:
        self._read = read_descriptor
        self._write = write_descriptor
        self._received = b""

    def send(self, message: Json) -> None:
        """Raises ClosedError."""
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._write, line) :]
        except OSError as error:
            raise ClosedError from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """The next message, within `patience_seconds` where given; raises ClosedError or SilentError."""
        deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
        while b"\n" not in self._received:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._read], [], [], left)
            if not readable:
                raise SilentError(patience_seconds)
            content = os.read(self._read, 1 << 16)
            if not content:
                raise ClosedError
            self._received += content
        line, _, self._received = self._received.partition(b"\n")
        message: Json = json.loads(line)
        return message

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def channel_of_worker() -> Channel:
    """The end of a process that was started as `python -m MODULE READ WRITE`."""
    return Channel(int(sys.argv[1]), int(sys.argv[2]))
