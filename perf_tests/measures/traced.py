"""A few rounds traced kernel by kernel; the trace is written beside the record."""

import gzip
from dataclasses import dataclass

from perf_tests.bench.workbench import Workbench
from perf_tests.cases.case import Case
from perf_tests.instruments.kernels import trace_rounds
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.warm_up import warm_up
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole
from perf_tests.traces.chrome_trace import NoDeviceEventsError, read_chrome_trace
from perf_tests.traces.kernel_table import kernel_values

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
