"""How a worker and the process that started it talk: one JSON object per line over a socket, never a pickle."""

import json
import socket
import sys

from perf_tests.records.record import Json
from perf_tests.workers.lifeline import end_with_starter


class ClosedError(Exception):
    """The other end has closed the channel."""


class SilentError(Exception):
    """No message came in time; the argument is the wait in seconds."""


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._end, self._received = end, end.makefile("rb")

    def send(self, message: Json) -> None:
        """Raises ClosedError."""
        try:
            self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ClosedError from error

    def receive(self, patience_seconds: float | None = None) -> Json:
        """The next message, within `patience_seconds` where given; raises ClosedError or SilentError."""
        self._end.settimeout(patience_seconds)
        try:
            line = self._received.readline()
        except TimeoutError as error:
            raise SilentError(patience_seconds) from error
        except OSError as error:
            raise ClosedError from error
        if not line.endswith(b"\n"):
            raise ClosedError
        message: Json = json.loads(line)
        return message

    def close(self) -> None:
        self._received.close()
        self._end.close()


def channel_of_worker() -> Channel:
    """The end of a process that was started as `python -m MODULE SOCKET`, which ends with its starter."""
    end_with_starter()
    return Channel(socket.socket(fileno=int(sys.argv[1])))
