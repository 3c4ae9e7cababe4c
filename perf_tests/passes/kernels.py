"""The kernel pass: the rounds of a timing, traced kernel by kernel in this process."""

import gzip
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from model.regions import regions_opened_by
from perf_tests.bench.loop import Measure, Rounds, warm_up
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.profiler import ALL_ROUNDS, ROUND, SET_UP, trace_rounds
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.hardware.clock import NvtxRanges, capture
from perf_tests.passes.extra_pass import ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole
from perf_tests.traces.kernels import kernel_values
from perf_tests.traces.trace import NoDeviceEventsError, read_chrome_trace

# A few rounds traced kernel by kernel; the trace is written beside the record.


COMPRESSION_LEVEL = 6
"""gzip's default: level 9 takes four times as long and saves 3 %."""


@dataclass
class TracedMeasure(Measure):
    case_id: str
    case: Case
    workbench: Workbench

    def look(self, rounds: Rounds) -> Json:
        """Raises ProfilerBusyError, and NoDeviceEventsError for a trace that lacks what ran on the GPU."""
        device = self.workbench.device
        clock = self.workbench.clock
        for _ in warm_up(device, self.case.fewest_warmup_rounds, now=clock.now):
            with clock.round():
                rounds.play()
        traced = trace_rounds(rounds.play, device)
        clock.forget()
        trace = read_chrome_trace(traced.trace)
        if device.torch_device.type == "cuda" and not trace.is_on_gpu:
            raise NoDeviceEventsError
        ceiling = None if self.workbench.disabled else self.workbench.ceiling(self.case.precision)
        values = kernel_values(trace, self.case.identity(), traced.plain_seconds, ceiling)
        return {**values, **self._keep(traced.trace)}

    def _keep(self, trace: bytes) -> Json:
        """Its path from the folder of the record; None where nothing is kept. A full disk costs the trace alone."""
        if self.workbench.session is None or not self.workbench.session.journal.keeps:
            return {"trace": None}
        content = gzip.compress(trace, COMPRESSION_LEVEL)
        try:
            path = self.workbench.session.side_file(self.case_id, "trace.json.gz")
            write_whole(path, content)
        except OSError as error:
            reason = f"the trace of {len(content):,} bytes cannot be written: {error}; free disk space and run again."
            return {"trace": None, "trace_reason": reason}
        return {"trace": f"{path.parent.name}/{path.name}"}


class KernelPass(ExtraPass):
    """Calls the timing with its own fixtures and another `measure`."""

    uses_profiler = True

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return ALL_ROUNDS

    def look(self, timing: Timing) -> Json:
        measure = TracedMeasure(self.request.node.nodeid, self.case, self.workbench)
        names = [name for name in inspect.signature(timing).parameters if name != "measure"]
        try:
            timing(measure=measure, **{name: self.request.getfixturevalue(name) for name in names})
        except NoDeviceEventsError as error:
            self._end_with(Outcome("error", f"{error}."))
        return measure.values


# A run for Nsight Systems (`--nvtx`): the rounds of each case inside NVTX ranges, and no timing.


@dataclass
class RangedMeasure(Measure):
    """Ranges cost time, so nothing is timed; only the measured rounds are captured."""

    case: Case
    workbench: Workbench

    def look(self, rounds: Rounds) -> None:
        ranges, device = NvtxRanges(), self.workbench.device

        @contextmanager
        def ranged(name: str) -> Iterator[None]:
            with ranges(name):
                yield
                device.synchronize()

        def play(numbers: Iterable[int], name: str) -> None:
            for _ in numbers:
                self.workbench.clock.forget()
                rounds.play(lambda: ranged(SET_UP), lambda: ranged(name))

        with regions_opened_by(ranges):
            play(warm_up(device, self.workbench.warmup_rounds(self.case)), "warm-up")
            with capture(device.torch_device):
                play(range(self.workbench.rounds(self.case)), ROUND)
