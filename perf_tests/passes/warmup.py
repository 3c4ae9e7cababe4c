"""The warm-up study of one case: a fresh process for each number of warm-up rounds, and one for the first round."""

import gc
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from perf_tests.audit.rounds import LEAVING_OUT_ROUNDS, STUDIED_WARMUP_ROUNDS, study_rounds, warmup_values
from perf_tests.bench.loop import Measure, Rounds
from perf_tests.bench.profiler import ROUNDS_BETWEEN, TracedCall, traced_call
from perf_tests.bench.workers import (
    WorkerEndedError,
    channel_of_worker,
    examined,
    inherited_environment,
    sent_elsewhere,
    start_worker,
)
from perf_tests.cases.settings import Settings
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import Device, cache_state, count_compilations, seconds_per_page_fault
from perf_tests.passes.extra_pass import ROOT, ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.traces.kernels import TracedRound, first_round_parts, largest_growth

# The warm-up study in one process: every round timed from the first on, or the first and a later one traced.


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


# One process of the warm-up study, which has run no round before: `python -m perf_tests.passes.warmup SOCKET`.


def in_fresh_process(settings: Settings, benchmark: str, study: Study, root: Path) -> Json:
    """The `values` or the `outcome` of a process started in `root`. Raises WorkerEndedError with one sentence."""
    worker = start_worker("perf_tests.passes.warmup", root, inherited_environment())
    try:
        return worker.ask({"settings": sent_elsewhere(settings), "benchmark": benchmark, "study": asdict(study)})
    except WorkerEndedError as error:
        raise WorkerEndedError(
            f"A fresh process for {benchmark} with {study.warmup_rounds} warm-up rounds failed: {error}."
        ) from error
    finally:
        worker.end()


def main() -> int:
    channel = channel_of_worker()
    task = channel.receive()
    study = Study(**task["study"])
    answer = examined(task, lambda item, workbench: StudiedMeasure(study, workbench.clock, workbench.device))
    if answer is None:  # pytest has printed why
        return 1
    channel.send(answer)
    return 0


class WarmupPass(ExtraPass):
    """Runs no round in this process."""

    uses_profiler = True

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return study_rounds(phase, rounds)

    def look(self, timing: Timing) -> Json | None:
        benchmark, rounds, settings = (
            self.benchmark_id(timing),
            self.workbench.rounds(self.case),
            self.workbench.settings,
        )

        def studied(study: Study) -> Json:
            return self.answered_by(lambda: in_fresh_process(settings, benchmark, study, ROOT))

        if self.workbench.disabled:
            studied(Study(0, 1))
            return None
        studies = [Study(count, rounds) for count in STUDIED_WARMUP_ROUNDS]
        if self.case.row.setup_computes:
            studies.append(Study(LEAVING_OUT_ROUNDS, rounds, leaves_out_timed_phase=True))
        series = [
            {
                "warmup_rounds": study.warmup_rounds,
                "leaves_out_timed_phase": study.leaves_out_timed_phase,
                **studied(study),
            }
            for study in studies
        ]
        first_round = studied(Study(0, 1, traces_first_round=True))
        return warmup_values(series, first_round, self.workbench.warmup_rounds(self.case))


if __name__ == "__main__":
    sys.exit(main())
