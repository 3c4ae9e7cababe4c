"""Inside a fresh process: what stands in for `measure`, and times every round from the first on."""

import gc
from collections.abc import Callable
from typing import Any

from perf_tests.bench.workbench import Workbench
from perf_tests.instruments.compilation import count_compilations
from perf_tests.instruments.page_faults import seconds_per_page_fault
from perf_tests.instruments.traced_call import ROUNDS_BETWEEN, TracedCall, traced_call
from perf_tests.measures.study_task import Task
from perf_tests.records.record import Json
from perf_tests.traces.first_round_parts import TracedRound, first_round_parts, largest_growth


class StudiedMeasure:
    """Called by a benchmark as `Measure` is; what it found is in `answer`."""

    def __init__(self, task: Task, workbench: Workbench) -> None:
        self.answer: Json | None = None
        self._task = task
        self._device = workbench.device
        self._clock = workbench.clock
        self._arguments: tuple[Any, ...] = ()
        self._result: Any = None

    def __call__(
        self,
        target: Callable[..., Any],
        setup: Callable[[], tuple[Any, ...] | None] | None = None,
        loss_scale: Callable[[], float] | None = None,
    ) -> Any:
        """The result of the last of all rounds of `target(*setup())`."""

        def prepare() -> None:
            self._arguments, self._result = (), None
            self._arguments = (setup() if setup is not None else None) or ()

        def timed() -> None:
            self._result = target(*self._arguments)

        gc.collect()
        if self._task.traces_first_round:
            self._trace(prepare, timed)
        else:
            self._time(prepare, timed)
        return self._result

    def _time(self, prepare: Callable[[], None], timed: Callable[[], None]) -> None:
        seconds, compilations = [], count_compilations()
        for number in range(self._task.warmup_rounds + self._task.rounds):
            if 0 < number == self._task.warmup_rounds:
                self._arguments, self._result = (), None
                self._device.make_room()
            if number < self._task.warmup_rounds and self._task.leaves_out_timed_phase:
                seconds.append(self._seconds_of(prepare))
            else:
                prepare()
                seconds.append(self._seconds_of(timed))
        warmup_rounds = self._task.warmup_rounds
        self.answer = {
            "warmup_seconds": seconds[:warmup_rounds],
            "seconds": seconds[warmup_rounds:],
            "compile_cache": count_compilations().since(compilations).cache_state,
        }

    def _seconds_of(self, function: Callable[[], None]) -> float:
        gc.disable()
        try:
            self._clock.begin_round()
            start = self._clock()
            function()
            return self._clock() - start
        finally:
            gc.enable()

    def _trace(self, prepare: Callable[[], None], timed: Callable[[], None]) -> None:
        """Trace the first round and a later one; a benchmark's own marks lead nowhere meanwhile."""
        prepare()
        first = self._traced(timed)
        for _ in range(ROUNDS_BETWEEN):
            prepare()
            timed()
        prepare()
        steady = self._traced(timed)
        # Memory of a GPU comes from its driver, whose calls are in the trace.
        on_cpu = self._device.torch_device.type == "cpu"
        fault_seconds = seconds_per_page_fault() if on_cpu else None
        self.answer = {
            "first_round_parts": first_round_parts(_round_of(first), _round_of(steady), fault_seconds),
            "first_round": {
                "modules_loaded": first.modules_loaded,
                "page_faults": first.page_faults,
                "steady_page_faults": steady.page_faults,
                "seconds_per_page_fault": fault_seconds,
                "largest_growth": largest_growth(_round_of(first), _round_of(steady)),
            },
        }

    def _traced(self, timed: Callable[[], None]) -> TracedCall:
        self._clock.begin_round()
        return traced_call(timed, self._device)


def _round_of(call: TracedCall) -> TracedRound:
    return TracedRound(call.events, call.page_faults, call.system_seconds)
