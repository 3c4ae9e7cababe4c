"""The warm-up study of one case: a fresh process after each number of warm-up rounds, and one for the first round."""

from perf_tests.audit.warmup_study import (
    LEAVING_OUT_ROUNDS,
    STUDIED_WARMUP_ROUNDS,
    WITH_SET_UP,
    study_rounds,
    warmup_values,
)
from perf_tests.bench.outcomes import Outcome
from perf_tests.measures.study_task import Task
from perf_tests.passes.extra_pass import ROOT, ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.workers import fresh_process


class WarmupPass(ExtraPass):
    """None of its rounds is run in this process."""

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return study_rounds(phase, rounds)

    def look(self, timing: Timing) -> Json | None:
        self.request.getfixturevalue("shelf").leave_memory_to_others()
        benchmark, rounds = self.benchmark_id(timing), self.workbench.rounds(self.case)
        if self.workbench.disabled:
            self._answer(benchmark, warmup_rounds=0, rounds=1)
            return None
        series = [
            {
                "warmup_rounds": count,
                "leaves_out_timed_phase": False,
                **self._answer(benchmark, warmup_rounds=count, rounds=rounds),
            }
            for count in STUDIED_WARMUP_ROUNDS
        ]
        if self.case.phase in WITH_SET_UP:
            answer = self._answer(benchmark, LEAVING_OUT_ROUNDS, rounds, leaves_out_timed_phase=True)
            series.append({"warmup_rounds": LEAVING_OUT_ROUNDS, "leaves_out_timed_phase": True, **answer})
        first_round = self._answer(benchmark, 0, 1, traces_first_round=True)
        return warmup_values(series, first_round, self.workbench.settings.warmup_rounds)

    def _answer(
        self,
        benchmark: str,
        warmup_rounds: int,
        rounds: int,
        leaves_out_timed_phase: bool = False,
        traces_first_round: bool = False,
    ) -> Json:
        settings = self.workbench.settings
        task = Task(settings, benchmark, warmup_rounds, rounds, leaves_out_timed_phase, traces_first_round)
        answer = fresh_process.in_fresh_process(task, ROOT)
        if "outcome" in answer:
            self.end_with(Outcome(**answer["outcome"]))
        return answer
