"""No case hangs a run: one that takes far longer than predicted is an outcome.

While a case runs nothing wakes up before its time is up: the alarm is the kernel's, and two threads sleep on locks.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType

import pytest

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.session import MeasuringSession
from perf_tests.bench.stash import CASE, OUTCOME, PASS, WORKBENCH
from perf_tests.run.time_limit import TIME_LIMIT
from perf_tests.views.screens.lines import case_name

TIMES_THE_PREDICTION = 20
"""A prediction is rough until a like case is measured, and compiling and slow disks are not in it."""
LEAST_SECONDS = 300.0
GRACE_SECONDS = 60.0
"""For C code to return to Python, which alone can raise an error."""


class TimedOutError(BaseException):
    """No `except Exception` on the way may take it for a failure of its own."""


class Alarm(threading.Thread):
    """Calls what was set once its time is up; `cancel` waits for a call that has begun.

    One thread for all cases, started before the memory of the process is capped, because a thread reserves 128 MiB.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._changed = threading.Condition()
        self._due = threading.TIMEOUT_MAX
        self._call: Callable[[], None] = lambda: None
        self.start()

    def set(self, seconds: float, call: Callable[[], None]) -> None:
        with self._changed:
            self._due, self._call = time.monotonic() + seconds, call
            self._changed.notify()

    def cancel(self) -> None:
        self.set(threading.TIMEOUT_MAX / 2, lambda: None)

    def run(self) -> None:
        with self._changed:
            while True:
                left = self._due - time.monotonic()
                if left <= 0:
                    self._call()
                    self._due, left = threading.TIMEOUT_MAX, threading.TIMEOUT_MAX / 2
                self._changed.wait(min(left, threading.TIMEOUT_MAX / 2))


class Timeout:
    """A plugin that ends a case in time: by an error, and where its C code does not return, with the whole process."""

    least_seconds = LEAST_SECONDS
    grace_seconds = GRACE_SECONDS

    def __init__(self, config: pytest.Config, end_process: Callable[[int], None] = os._exit) -> None:
        self.config = config
        self.end_process = end_process
        self._alarm = Alarm()

    def predict(self, item: pytest.Item) -> float:
        """Seconds of the whole case, as far as known."""
        return self.config.stash[TIME_LIMIT].seconds(item)

    def limit_seconds(self, item: pytest.Item) -> float:
        return max(self.least_seconds, TIMES_THE_PREDICTION * self.predict(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.limited(item):
            return (yield)

    @contextmanager
    def limited(self, item: pytest.Item) -> Iterator[None]:
        """For set-up and call each."""
        session = self.config.stash[WORKBENCH].session if CASE in item.stash else None
        if session is None:
            yield
            return
        predicted, seconds = self.predict(item), self.limit_seconds(item)
        outcome = Outcome("timed_out", f"took longer than {seconds:.0f} s; {predicted:.0f} s were predicted.")

        def raise_error(number: int, frame: FrameType | None) -> None:
            item.stash[OUTCOME] = outcome
            raise TimedOutError(outcome.reason)

        before = signal.signal(signal.SIGALRM, raise_error)
        try:
            self._alarm.set(seconds + self.grace_seconds, lambda: self._end(item, outcome, session))
            session.journal.end_process_after(seconds + 2 * self.grace_seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            faulthandler.cancel_dump_traceback_later()
            self._alarm.cancel()

    def _end(self, item: pytest.Item, outcome: Outcome, session: MeasuringSession) -> None:
        with suppress(OSError):  # a full disk, on which the case stays begun
            session.not_measured(item.nodeid, item.stash[CASE], outcome, extra_pass=item.stash[PASS])
        capture = self.config.pluginmanager.getplugin("capturemanager")
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            print(
                f"\n{case_name(item.nodeid)} {outcome.reason} It does not return, so this process ends; "
                f"resume with `{session.contents.header['command']}`.",
                file=sys.__stderr__,
                flush=True,
            )
        self.end_process(pytest.ExitCode.INTERRUPTED)
