"""How long cases take, and how a run ends in time: no case hangs it, none is begun too late, none kills it twice."""

import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

import pytest

from perf_tests_suite.perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, uncaptured
from perf_tests_suite.perf_tests.bench.session import Session, benchmark_of, is_benchmark, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.attention import CollectiveCase
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.cases.sharing import Launched, launched
from perf_tests_suite.perf_tests.hardware.datasheets import gpu_named, rate_name
from perf_tests_suite.perf_tests.hardware.device import Device
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, ceilings_of
from perf_tests_suite.perf_tests.hardware.machine import seconds_since_process_start
from perf_tests_suite.perf_tests.passes.extra_pass import pass_named
from perf_tests_suite.perf_tests.phases import FORWARD_PASSES
from perf_tests_suite.perf_tests.predict.counters import update_flops
from perf_tests_suite.perf_tests.predict.kept import keep, kept
from perf_tests_suite.perf_tests.predict.machine import kept_ceilings, machine_identity
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.record import how_many
from perf_tests_suite.perf_tests.user_code.guard import alarm_after

# Quarantine: cases in which the process died twice, or that did not return in time, are not tried again.


def quarantine(left: list[pytest.Item], session: MeasuringSession, killed: Outcome = KILLED) -> list[pytest.Item]:
    """Give up on cases that killed the process; returns the others. `killed` is the outcome where nothing says how."""
    contents = session.contents
    spared = []
    for item in left:
        is_last = item.nodeid == contents.last_started
        outcome = None
        if is_last and contents.out_of_time:
            outcome = Outcome("timed_out", "did not return in time, and the process was ended.")
        elif contents.starts.get(item.nodeid, 0) >= 2:
            outcome = killed
            if is_last and contents.fatal_error:
                how = f"last of: {contents.fatal_error}; run it alone to see why."
                outcome = Outcome("process_died", f"the process died twice while this case ran, {how}")
        if outcome is None:
            spared.append(item)
        else:
            session.not_measured(
                item.nodeid, benchmark_of(item).case, outcome, extra_pass=benchmark_of(item).extra_pass
            )
    if any(item.nodeid in contents.starts for item in spared):
        session.journal.log_crashes()
    return spared


# How long a case takes with everything around its rounds: a closed form, for progress, time limits and fair shares.
#
# The exact counters would say more, but counting a whole grid takes minutes.


NOMINAL = {
    "cpu": Ceilings(
        name="a CPU",
        matmul_flops_per_second={"fp32": 1e11},
        bytes_per_second=2e10,
        launch_seconds=1e-5,
        backward_launch_seconds=2e-5,
        bare_launch_seconds=1e-5,
        loop_launch_seconds=1e-5,
        launches_overlap=False,
        source="round figures",
    ),
    "cuda": ceilings_of(gpu_named("H100")),
}
"""Stand in for this machine where its figures are unknown, or must be the same on every machine."""

_FORWARD_PASSES = {**FORWARD_PASSES, "optimizer": 0.5}
LAUNCHES_PER_BLOCK = 50
"""Launches of an eager forward pass: 46 in fp32, 62 in bf16, by the ledger of exact counters."""
USES_PER_BYTE = 3
"""What a round holds is written once and read about twice."""
COMPILING_SECONDS_PER_BLOCK = 5.0
COLLECTIVE_BYTES_PER_SECOND = {"gloo": 2.5e8, "nccl": 1e10}
OVERHEAD_SECONDS = {None: 2.0, "kernels": 5.0, "memory": 5.0, "warmup": 60.0}
"""Building, counting and processes, by pass. These and compiling are rough, and hold until a like case is measured."""


def predicted_seconds(item: pytest.Item, settings: Settings, ceilings: Ceilings | None = None) -> float:
    """Predict a benchmark's case or pass, in seconds; by `ceilings`, or on the nominal machine."""
    case, extra_pass = benchmark_of(item).case, benchmark_of(item).extra_pass
    rounds = case.rounds(settings)
    if extra_pass is None:
        rounds += settings.warmup_rounds
    else:
        rounds = pass_named(extra_pass).rounds_of(case.phase, rounds)
    around = OVERHEAD_SECONDS[extra_pass] + (COMPILING_SECONDS_PER_BLOCK * case.blocks if case.is_compiled else 0.0)
    if isinstance(case, CollectiveCase):
        return around + rounds * case.message_bytes / COLLECTIVE_BYTES_PER_SECOND[case.backend]
    ceilings = ceilings or NOMINAL[case.device]
    rates = ceilings.matmul_flops_per_second
    rate = rates.get(rate_name(case.precision)) or rates["fp32"]
    # Of a model of the user's own only the products with its weights are known.
    flops = case.forward_flops if case.user_model is None else 2 * (case.tokens or 0) * (case.parameters or 0)
    launching = LAUNCHES_PER_BLOCK * case.blocks * ceilings.launch_seconds * ceilings.host_spread
    passes = sum(_FORWARD_PASSES.get(part, 0.0) for part in case.phase_row.parts)
    updating = update_flops(case) / rates["fp32"]
    moving = USES_PER_BYTE * case.resident_bytes / ceilings.bytes_per_second
    return around + rounds * (passes * (flops / rate + launching) + updating + moving)


# `--time-limit`: the run ends between cases, before the one that would end too late.


@dataclass(eq=False)  # pytest keeps its plugins in sets
class TimeLimit:
    """A plugin that leaves the cases that would end after the limit, if there is one.

    A case is predicted in closed form, times how much longer than predicted the last like case took.
    """

    minutes: float
    """Infinite without a limit."""
    predict: Callable[[pytest.Item], float]
    """Seconds on this machine before any like case is measured."""
    is_tried: Callable[[pytest.Item], bool]
    """Whether the case fits and is supported, which takes long to ask for a whole grid."""
    now: Callable[[], float]
    """Seconds since this process started."""
    is_reached: bool = False
    _begun: tuple[pytest.Item, float, float] | None = None
    """The case in flight, its predicted seconds and when it began."""
    _slowness: dict[Hashable, float] = field(default_factory=dict)
    """Measured over predicted seconds of the last case of each kind; the very last case stands last."""

    @property
    def seconds_left(self) -> float:
        return 60 * self.minutes - self.now()

    def seconds(self, item: pytest.Item) -> float:
        """Predict how long the case will take, its set-up, compiling and clean-up included."""
        of_last = [1.0, *self._slowness.values()][-1]
        return self.predict(item) * max(1.0, self._slowness.get(_kind(item), of_last))

    def refuse_if_too_short(self, items: list[pytest.Item]) -> None:
        """Refuse, by pytest.UsageError with one sentence, a limit where a case does not fit even right after the
        start.
        """
        if self.minutes == math.inf:
            return
        too_long = sorted((item for item in items if self.seconds(item) > self.seconds_left), key=self.seconds)
        longest = next(filter(self.is_tried, reversed(too_long)), None)
        if longest is not None:
            raise pytest.UsageError(
                f"{case_name(longest.nodeid)} takes about {self.seconds(longest):.0f} s here, and --time-limit "
                f"{self.minutes:g} leaves {max(0.0, self.seconds_left):.0f} s after the start; nothing was measured, "
                "give it more minutes."
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True, without a report, for whatever comes after the limit."""
        if self._begun is not None:
            before, predicted, start = self._begun
            outcome = benchmark_of(before).outcome
            if outcome is None or outcome.outcome != "timed_out":  # which says nothing of the next case
                self._slowness.pop(_kind(before), None)
                self._slowness[_kind(before)] = (self.now() - start) / predicted
        if self.is_reached or not is_benchmark(item):
            self._begun = None
            return True if self.is_reached else None
        is_tried = self.is_tried(item)
        # The first was judged before the run, and the time since then must not leave a run without any case.
        self.is_reached = is_tried and bool(self._slowness) and self.seconds(item) > self.seconds_left
        self._begun = (item, self.predict(item), self.now()) if is_tried and not self.is_reached else None
        return True if self.is_reached else None


def _kind(item: pytest.Item) -> Hashable:
    case = benchmark_of(item).case
    return benchmark_of(item).extra_pass, case.phase, case.precision, case.attention, case.is_compiled


def time_limit_of(config: pytest.Config) -> TimeLimit:
    """The session's limit, by predictions for a workbench that it may not have yet."""
    minutes = session_of(config).most_minutes

    def predict(item: pytest.Item) -> float:
        workbench = session_of(config).workbench
        # Ceilings may have to be measured first.
        ceilings = None if minutes == math.inf else workbench.ceilings_for(benchmark_of(item).case.precision)
        return predicted_seconds(item, workbench.settings, ceilings)

    def is_tried(item: pytest.Item) -> bool:
        return session_of(config).workbench.why_not(benchmark_of(item).case) is None

    return TimeLimit(minutes, predict, is_tried, seconds_since_process_start)


# No case hangs a run: one that takes far longer than predicted is an outcome.
#
# While a case runs nothing wakes up before its time is up: the alarm is the kernel's, and two threads sleep on locks.


TIMES_THE_PREDICTION = 20
"""A prediction is rough until a like case is measured, and compiling and slow disks are not in it."""
LEAST_SECONDS = 300.0
GRACE_SECONDS = 60.0
"""Seconds for C code to return to Python, which alone can raise an error."""


class TimedOutError(BaseException):
    """No `except Exception` on the way may take it for a failure of its own."""


class Timeout:
    """A plugin that ends a case in time: by an error, and where its C code does not return, with the whole process."""

    least_seconds = LEAST_SECONDS
    grace_seconds = GRACE_SECONDS

    def __init__(self, config: pytest.Config, limit: TimeLimit, end_process: Callable[[int], None] = os._exit) -> None:
        self.config = config
        self.end_process = end_process
        self.predict = limit.seconds
        """Seconds of the whole case, as far as known."""
        self._alarm = Alarm()

    def limit_seconds(self, item: pytest.Item) -> float:
        return max(self.least_seconds, TIMES_THE_PREDICTION * self.predict(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.limited(item):
            return (yield)

    pytest_runtest_call = pytest_runtest_setup

    @contextmanager
    def limited(self, item: pytest.Item) -> Iterator[None]:
        """Limit what runs inside: the set-up and the call of a case each."""
        session = session_of(self.config).workbench.session if is_benchmark(item) else None
        if session is None:
            yield
            return
        predicted, seconds = self.predict(item), self.limit_seconds(item)
        outcome = Outcome("timed_out", f"took longer than {seconds:.0f} s; {predicted:.0f} s were predicted.")

        def raise_error(number: int, frame: FrameType | None) -> None:
            benchmark_of(item).outcome = outcome
            raise TimedOutError(outcome.reason)

        try:
            self._alarm.set(seconds + self.grace_seconds, lambda: self._end(item, outcome, session))
            session.journal.end_process_after(seconds + 2 * self.grace_seconds)
            with alarm_after(seconds, raise_error):
                yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._alarm.cancel()

    def _end(self, item: pytest.Item, outcome: Outcome, session: MeasuringSession) -> None:
        with suppress(OSError):  # a full disk, on which the case stays begun
            session.not_measured(
                item.nodeid, benchmark_of(item).case, outcome, extra_pass=benchmark_of(item).extra_pass
            )
        with uncaptured(self.config)():
            print(
                f"\n{case_name(item.nodeid)} {outcome.reason} It does not return, so this process ends; "
                f"resume with `{session.contents.header['command']}`.",
                file=sys.__stderr__,
                flush=True,
            )
        self.end_process(pytest.ExitCode.INTERRUPTED)


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


# How long a run will take here: predicted in closed form, times how much longer than predicted the last run took.


FEWEST_SECONDS = 10.0
"""Seconds that cases must have taken for their pace to be kept."""
MOST = 1000.0
"""Times slower or faster than predicted. Beyond it the figure is no pace of a machine but, say, of a laptop that slept
during the run, and would spoil the announcement of every run after it."""


def predicted_here(items: Iterable[pytest.Item], workbench: Workbench) -> dict[str, float]:
    """Return the seconds of each case by id, at the ceilings kept for this machine, else at round figures.

    Measures nothing. A case that the device does not support takes none.
    """
    ceilings, device = kept_ceilings(workbench.device), workbench.device.torch_device
    return {
        item.nodeid: 0.0
        if why_unsupported(benchmark_of(item).case, device)
        else predicted_seconds(item, workbench.settings, ceilings)
        for item in items
        if is_benchmark(item)
    }


def eta(predicted: Mapping[str, float], device: Device) -> str:
    """Say `28 cases, about 3 min`, at the last run's pace."""
    ratio, seconds = kept_ratio(device), expected_seconds(predicted, device)
    words = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1.0):.0f} s"
    basis = "" if ratio else " (rough: a first run here also measures ceilings)"
    return f"{how_many(len(predicted), 'case')}, about {words}{basis}"


def expected_seconds(predicted: Mapping[str, float], device: Device) -> float:
    """Return what all cases take at the last run's pace."""
    return sum(predicted.values()) * (kept_ratio(device) or 1.0)


def kept_ratio(device: Device) -> float | None:
    """Return how many times longer than predicted the last run took; None where no run of this machine and build has
    left that.
    """
    ratio = kept(_file(device), machine_identity(device.torch_device), "pace", float)
    return ratio if ratio is not None and _is_ratio(ratio) else None


def keep_pace(suite: Session) -> None:
    """Keep for the next run's announcement how much longer than predicted the cases of this one took."""
    if suite.run is not None and (measuring := suite.workbench.session) is not None:
        progress = measuring.progress
        keep_ratio(suite.workbench.device, progress.measured_seconds, progress.done_predicted_seconds)


def keep_ratio(device: Device, measured_seconds: float, predicted: float) -> None:
    if measured_seconds < FEWEST_SECONDS or not predicted > 0 or not _is_ratio(measured_seconds / predicted):
        return
    keep(_file(device), machine_identity(device.torch_device), "pace", measured_seconds / predicted)


def _is_ratio(ratio: float) -> bool:
    return math.isfinite(ratio) and 1 / MOST < ratio < MOST


def _file(device: Device) -> str:
    """Ranks that share a machine have a pace of their own: an exchange takes what no prediction of a case knows."""
    ranks = (launched() or Launched()).world
    return f"pace-{device.torch_device.type}{f'-{ranks}-ranks' if ranks > 1 else ''}.json"
