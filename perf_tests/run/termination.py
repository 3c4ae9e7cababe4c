"""Ctrl-C, and SIGTERM as a scheduler sends it: the case in flight ends, workers too, and what is finished is kept."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import pytest

EXIT_CODES = {signal.SIGINT: 2, signal.SIGTERM: 128 + signal.SIGTERM}
"""143, as a shell shows a process that SIGTERM ended."""

_BEFORE = {number: signal.getsignal(number) for number in EXIT_CODES}


def end_at_once_when_signalled() -> None:
    """End this process with the signal's exit code until the cases are collected.

    Importing torch takes seconds, and nothing is there to be kept.
    """
    _install(lambda number, frame: os._exit(EXIT_CODES[signal.Signals(number)]))


def _install(handler: Callable[[int, FrameType | None], None] | None) -> None:
    """Handle the signals; None restores. A signal that is handled already, or ignored, is left alone.

    A shell lets what it starts in the background ignore Ctrl-C.
    """
    if threading.current_thread() is threading.main_thread():
        for number in EXIT_CODES:
            if _BEFORE[number] in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, handler or _BEFORE[number])


class TerminatedError(KeyboardInterrupt):
    """No `except Exception` on the way may take it for a failure of the case."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Termination:
    """A plugin from which the first signal raises TerminatedError, but waits until a file is whole.

    Later signals do not disturb the clean-up.
    """

    came: signal.Signals | None = None
    _waits: bool = False

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.came is None:
            self.came = signal.Signals(number)
            self.raise_if_ended()

    def raise_if_ended(self) -> None:
        if self.came is not None and not self._waits:
            raise TerminatedError(f"{self.came.name} has ended the run")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal that comes inside is raised at the end."""
        self._waits = True
        yield
        self._waits = False
        self.raise_if_ended()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        _install(self.note)
        session.config.add_cleanup(lambda: _install(None))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """A model may have caught what the signal raised."""
        self.raise_if_ended()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """What follows saves, which ends whole and says what it did."""
        try:
            return (yield)
        finally:
            self._waits = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        self._waits = True  # also where no loop began
        result = yield
        if self.came is not None:
            session.exitstatus = EXIT_CODES[self.came]
        return result


NAME = "termination"
"""The plugin's name in pytest."""


def termination_of(config: pytest.Config) -> Termination:
    found = config.pluginmanager.getplugin(NAME)
    assert isinstance(found, Termination)
    return found
