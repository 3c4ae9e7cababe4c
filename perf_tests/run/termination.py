"""Ctrl-C, and SIGTERM as a scheduler sends it: the case in flight ends, workers too, and what is finished is kept."""

import atexit
import ctypes
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from traceback import walk_stack
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


# Code in C ends a process without a word, by `_exit` or `exec`, with exit code 0 if it likes: only a parent can tell
# such an end from that of a run. Both share the terminal, its signals and the exit code.


OPTIONS_OF_USER_CODE = ("--model", "--attention", "--optimizer")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
ENDED_EARLY = (
    "\nThe process ended with exit code 0 before the run did: code of --model, --attention or --optimizer ended it "
    "from C (_exit, exit or exec). Finished cases are kept in the journal; mend that code, and go on with --resume."
)


def watch_over_user_code() -> None:
    """Run what follows in a child, and end as that ends, where the command line names code of the user's.

    Call it before torch is loaded, of which no more than one copy is needed. Ranks are watched by torchrun, and a
    pytest inside of another program by that.
    """
    words = [*os.environ.get("PYTEST_ADDOPTS", "").split(), *sys.argv[1:], ""]
    named = ((word.partition("=")[0], word.partition("=")[2] or after) for word, after in pairwise(words))
    names_code = any(option in OPTIONS_OF_USER_CODE and ":" in value for option, value in named)
    frames = [frame for frame, _ in walk_stack(sys._getframe(1))]  # without this one, which would hold itself
    of_pytest = [f.f_code.co_name.lstrip("_") for f in frames if f.f_globals.get("__name__") == "_pytest.config"]
    is_command = of_pytest.count("console_main") == of_pytest.count("main") == 1  # and no pytest inside of another
    if not names_code or "TORCHELASTIC_RUN_ID" in os.environ or threading.active_count() > 1 or not is_command:
        return
    parent, (done, mark) = os.getpid(), os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, where a plugin's library has threads of its own
        child = os.fork()
    if child == 0:
        os.close(done)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_CODES[signal.SIGTERM])
        atexit.register(os.write, mark, b"done")  # which C does not call
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return
    os.close(mark)
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, status = os.waitpid(child, 0)
    if (code := os.waitstatus_to_exitcode(status)) < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(parent, -code)
    if code == 0 and not os.read(done, 1):
        # pytest has turned the standard error to a file by the time of the first conftest.
        managers = (f.f_locals.get("self") for f in frames)
        manager = next((one for one in managers if isinstance(one, pytest.PytestPluginManager)), None)
        capture = None if manager is None else manager.getplugin("capturemanager")
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            print(ENDED_EARLY, file=sys.__stderr__, flush=True)
        code = 4
    os._exit(code)


class TerminatedError(KeyboardInterrupt):
    """No `except Exception` on the way may take it for a failure of the case."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Termination:
    """A plugin from which the first signal raises TerminatedError, but waits until a file is whole.

    Later signals do not disturb the clean-up.
    """

    came: signal.Signals | None = None
    _waits: bool = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Return a context, outside of pytest, that the first signal ends."""
        _install(self.note)
        try:
            yield
        finally:
            _install(None)

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.came is None:
            self.came = signal.Signals(number)
            self.raise_if_ended()

    def raise_if_ended(self) -> None:
        if self.came is not None and not self._waits:
            raise TerminatedError(f"{self.came.name} has ended the run")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise a signal that comes inside at the end."""
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
        """Raise again what a model may have caught."""
        self.raise_if_ended()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """What follows saves, which ends whole and says what it did; pytest need not, between exclamation marks."""
        try:
            return (yield)
        except TerminatedError:
            return True
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
