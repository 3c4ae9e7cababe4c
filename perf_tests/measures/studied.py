"""The warm-up study in one process: every round timed from the first on, or the first and a later one traced."""

import gc
from dataclasses import dataclass

from perf_tests.instruments.clock import Clock
from perf_tests.instruments.compilation import cache_state, count_compilations
from perf_tests.instruments.device import Device
from perf_tests.instruments.page_faults import seconds_per_page_fault
from perf_tests.instruments.traced_call import ROUNDS_BETWEEN, TracedCall, traced_call
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.records.record import Json
from perf_tests.traces.first_round_parts import TracedRound, first_round_parts, largest_growth


@dataclass(frozen=True)
class Study:
    """The rounds of one process of the warm-up study."""

    warmup_rounds: int
    rounds: int
    leaves_out_timed_phase: bool = False
    """Whether a warm-up round is its set-up alone."""
    traces_first_round: bool = False
    """Whether the first round is traced and compared with a later one; then nothing is timed."""


@dataclass
class StudiedMeasure(Measure):
    study: Study
    clock: Clock
    device: Device

    def look(self, rounds: Rounds) -> Json:
        gc.collect()
        self.clock.forget()
        return self._trace(rounds) if self.study.traces_first_round else self._time(rounds)

    def _time(self, rounds: Rounds) -> Json:
        study, compilations = self.study, count_compilations()
        for number in range(study.warmup_rounds + study.rounds):
            if 0 < number == study.warmup_rounds:
                rounds.forget()
                self.device.make_room()
            if number < study.warmup_rounds and study.leaves_out_timed_phase:
                with self.clock.round():
                    rounds.prepare()
            else:
                rounds.play(around_target=self.clock.round)
        seconds = self.clock.wall_seconds
        return {
            "warmup_seconds": seconds[: study.warmup_rounds],
            "seconds": seconds[study.warmup_rounds :],
            "compile_cache": cache_state(count_compilations() - compilations),
        }

    def _trace(self, rounds: Rounds) -> Json:
        first, first_round = self._traced_round(rounds)
        for _ in range(ROUNDS_BETWEEN):
            rounds.play()
        steady, steady_round = self._traced_round(rounds)
        # Memory of a GPU comes from its driver, whose calls are in the trace.
        on_cpu = self.device.torch_device.type == "cpu"
        fault_seconds = seconds_per_page_fault() if on_cpu else None
        return {
            "first_round_parts": first_round_parts(first_round, steady_round, fault_seconds),
            "first_round": {
                "modules_loaded": first.modules_loaded,
                "page_faults": first.page_faults,
                "steady_page_faults": steady.page_faults,
                "seconds_per_page_fault": fault_seconds,
                "largest_growth": largest_growth(first_round, steady_round),
            },
        }

    def _traced_round(self, rounds: Rounds) -> tuple[TracedCall, TracedRound]:
        rounds.prepare()
        self.clock.begin_round()
        call = traced_call(rounds.run, self.device)
        return call, TracedRound(call.events, call.page_faults, call.system_seconds)
