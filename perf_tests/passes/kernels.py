"""The kernel pass (`--kernels`): a few rounds under PyTorch's profiler, kernel by kernel, the trace beside the record.

And a run for Nsight Systems (`--nvtx`), which shows the same rounds inside NVTX ranges.
"""

import gzip
import inspect
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.perf_tests.bench.loop import Around, Measure, Rounds, warm_up
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.clock import NvtxRanges, capture
from perf_tests_suite.perf_tests.hardware.device import Device, no_collections
from perf_tests_suite.perf_tests.hardware.torch_private import profiler_is_active
from perf_tests_suite.perf_tests.passes.extra_pass import ExtraPass, Timing, kept_beside
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces.kernels import kernel_values
from perf_tests_suite.perf_tests.traces.trace import NoDeviceEventsError, read_chrome_trace

PLAIN_ROUNDS = 2
"""Rounds without the profiler: the first is cold, the second gives the time of a round without the profiler's
overhead."""
WARMUP_ROUNDS = 2
"""Rounds under the profiler that are discarded, because its first use is slow."""
TRACED_ROUNDS = 2
"""Two, to detect a count that differs between them."""
ALL_ROUNDS = PLAIN_ROUNDS + WARMUP_ROUNDS + TRACED_ROUNDS

ROUND, SET_UP = "round", "set-up"
"""Regions around what is timed and around its set-up; all others are the model's."""

COMPRESSION_LEVEL = 6
"""gzip's default: level 9 takes four times as long and saves 3 %."""


class KernelPass(ExtraPass):
    """Calls the timing in this process, with its own fixtures and another `measure`."""

    uses_profiler = True

    rounds_of = staticmethod(lambda phase, rounds: ALL_ROUNDS)

    def examine(self, timing: Timing) -> Json:
        measure = ProfiledMeasure(self.request.node.nodeid, self.case, self.workbench)
        names = [name for name in inspect.signature(timing).parameters if name != "measure"]
        try:
            timing(measure=measure, **{name: self.request.getfixturevalue(name) for name in names})
        except NoDeviceEventsError as error:
            self.end_with(Outcome("error", f"{error}."))
        return measure.values


@dataclass
class ProfiledMeasure(Measure):
    case_id: str
    case: Case
    workbench: Workbench

    def run_rounds(self, rounds: Rounds) -> Json:
        """Trace the rounds. Raises ProfilerBusyError, and NoDeviceEventsError for a trace that lacks what ran on the
        GPU.
        """
        device, clock = self.workbench.device, self.workbench.clock
        for _ in warm_up(device, self.case.fewest_warmup_rounds, now=clock.now):
            with clock.round():
                rounds.run_round()
        traced = trace_rounds(rounds.run_round, device)
        clock.forget()
        trace = read_chrome_trace(traced.trace)
        if device.torch_device.type == "cuda" and not trace.is_on_gpu:
            raise NoDeviceEventsError
        ceiling = None if self.workbench.disabled else self.workbench.ceiling(self.case.precision)
        values = kernel_values(trace, self.case.identity(), traced.plain_seconds, ceiling)
        session = self.workbench.session
        if session is None or not session.journal.keeps:
            return {**values, "trace": None}
        packed = gzip.compress(traced.trace, COMPRESSION_LEVEL)
        return values | kept_beside("trace", session.side_file(self.case_id, "trace.json.gz"), packed)


@dataclass(frozen=True)
class TracedRounds:
    """`plain_seconds` is one round without the profiler; `trace` is Kineto's JSON."""

    plain_seconds: float
    trace: bytes


def trace_rounds(run_round: Callable[[Around, Around], None], device: Device) -> TracedRounds:
    """Run a few rounds, set-up and target inside a context each, and trace the last. Raises ProfilerBusyError."""
    check_no_profiler()
    annotate: Callable[[str], AbstractContextManager[object]] = nullcontext
    seconds: dict[str, float] = {}
    traces: list[bytes] = []

    @contextmanager
    def half(name: str) -> Iterator[None]:
        """The context of the set-up, or of what is timed; each waits for the device."""
        with no_collections() if name == ROUND else nullcontext(), annotate(name):
            start = time.perf_counter()
            yield
            device.synchronize()
            seconds[name] = time.perf_counter() - start

    def open_region(name: str) -> AbstractContextManager[object]:
        # Inside compiled code there is nothing to mark: the regions are fused into one kernel.
        return nullcontext() if torch.compiler.is_compiling() else annotate(name)

    on_gpu = device.torch_device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        schedule=schedule(wait=PLAIN_ROUNDS, warmup=WARMUP_ROUNDS, active=TRACED_ROUNDS),
        on_trace_ready=lambda profiler: traces.append(exported_trace(profiler.export_chrome_trace)),
        record_shapes=True,
    ) as profiler:
        for number in range(ALL_ROUNDS):
            if number == PLAIN_ROUNDS:
                plain_seconds, annotate = seconds[ROUND], record_function
            with nullcontext() if number < PLAIN_ROUNDS else regions_opened_by(open_region):
                run_round(lambda: half(SET_UP), lambda: half(ROUND))
            profiler.step()
    return TracedRounds(plain_seconds, traces[0])


def exported_trace(export: Callable[[str], object]) -> bytes:
    """Return JSON in Kineto's schema, from the method `export_chrome_trace` of either kind of PyTorch profiler."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        export(str(path))
        return path.read_bytes()


NSYS_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NSYS_TARGET_STD_REDIRECT_ACTIVE")
"""Set by Nsight Systems in processes that it starts."""


class ProfilerBusyError(Exception):
    """Something else profiles this process; the message is one sentence."""


def check_no_profiler(option: str = "--kernels") -> None:
    """Refuse, by ProfilerBusyError, to trace where another profiler is active, so that that of `option` would conflict
    with it.
    """
    running = next((name for name in NSYS_VARIABLES if os.environ.get(name)), None)
    if running is not None:
        raise ProfilerBusyError(
            f"Nsight Systems profiles this process ({running} is set), and a device allows one profiler at a time; "
            f"run without {option} under nsys, or with {option} without nsys."
        )
    if profiler_is_active():
        raise ProfilerBusyError(
            "A PyTorch profiler is already active in this process, and two cannot run at once; "
            f"stop it, or run without {option}."
        )


@dataclass
class NvtxMeasure(Measure):
    """Runs the rounds of a case inside NVTX ranges, for Nsight Systems.

    Ranges cost time, so nothing is timed; only the measured rounds are captured.
    """

    case: Case
    workbench: Workbench

    def run_rounds(self, rounds: Rounds) -> None:
        ranges, device = NvtxRanges(), self.workbench.device

        @contextmanager
        def nvtx_range(name: str) -> Iterator[None]:
            with ranges(name):
                yield
                device.synchronize()

        def run_numbered(numbers: Iterable[int], name: str) -> None:
            for _ in numbers:
                self.workbench.clock.forget()
                rounds.run_round(lambda: nvtx_range(SET_UP), lambda: nvtx_range(name))

        with regions_opened_by(ranges):
            run_numbered(warm_up(device, self.workbench.warmup_rounds(self.case)), "warm-up")
            with capture(device.torch_device):
                run_numbered(range(self.workbench.rounds(self.case)), ROUND)
