"""The kernel pass: the rounds of a timing, traced kernel by kernel in this process."""

import inspect

from perf_tests.bench.outcomes import Outcome
from perf_tests.instruments.kernels import ALL_ROUNDS
from perf_tests.measures.traced import TracedMeasure
from perf_tests.passes.extra_pass import ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.traces.chrome_trace import NoDeviceEventsError


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
