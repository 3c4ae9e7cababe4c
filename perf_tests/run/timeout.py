"""No case hangs a run: one that takes far longer than predicted is an outcome.

While a case runs nothing wakes up before its time is up: the alarm is the kernel's, and both threads sleep on a lock.
"""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType

import pytest

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.session import MeasuringSession
from perf_tests.bench.stash import CASE, OUTCOME, PASS
from perf_tests.views.screens.lines import case_name

TIMES_THE_PREDICTION = 20
"""A prediction is rough until a like case is measured, and compiling and slow disks are not in it."""
LEAST_SECONDS = 300.0
GRACE_SECONDS = 60.0
"""For C code to return to Python, which alone can raise an error."""


class TimedOutError(BaseException):
    """No `except Exception` on the way may take it for a failure of its own."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Timeout:
    """A plugin that ends a case in time: by an error, and where its C code does not return, with the whole process."""

    config: pytest.Config
    session: MeasuringSession
    predict: Callable[[pytest.Item], float]
    """Seconds of the whole case, as far as known."""
    end_process: Callable[[int], None] = os._exit
    least_seconds: float = LEAST_SECONDS
    grace_seconds: float = GRACE_SECONDS
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._limited(item):
            return (yield)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        """For set-up and call each."""
        if CASE not in item.stash:
            yield
            return
        predicted = self.predict(item)
        seconds = max(self.least_seconds, TIMES_THE_PREDICTION * predicted)
        reason = f"took longer than {seconds:.0f} s; {predicted:.0f} s were predicted."
        outcome = Outcome("timed_out", reason)

        def raise_error(number: int, frame: FrameType | None) -> None:
            item.stash[OUTCOME] = outcome
            raise TimedOutError(reason)

        ender = threading.Timer(seconds + self.grace_seconds, self._end_process, (item, outcome))
        ender.daemon = True
        before = signal.signal(signal.SIGALRM, raise_error)
        try:
            ender.start()
            self.session.journal.end_process_after(seconds + 2 * self.grace_seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            faulthandler.cancel_dump_traceback_later()
            ender.cancel()
            with self._ending:  # an end that has begun comes first
                pass

    def _end_process(self, item: pytest.Item, outcome: Outcome) -> None:
        with self._ending:
            self.session.not_measured(item.nodeid, item.stash[CASE], outcome, extra_pass=item.stash[PASS])
            capture = self.config.pluginmanager.getplugin("capturemanager")
            with nullcontext() if capture is None else capture.global_and_fixture_disabled():
                print(
                    f"\n{case_name(item.nodeid)} {outcome.reason} It does not return, so this process ends; "
                    f"resume with `{self.session.contents.header['command']}`.",
                    file=sys.__stderr__,
                    flush=True,
                )
            self.end_process(pytest.ExitCode.INTERRUPTED)
