"""The warm-up study of one case: a fresh process after each number of warm-up rounds, and one for the first round."""

from perf_tests.audit.warmup_study import (
    LEAVING_OUT_ROUNDS,
    STUDIED_WARMUP_ROUNDS,
    WITH_SET_UP,
    study_rounds,
    warmup_values,
)
from perf_tests.bench.outcomes import Outcome
from perf_tests.measures.studied import Study
from perf_tests.passes.extra_pass import ROOT, ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.workers import study as worker


class WarmupPass(ExtraPass):
    """None of its rounds is run in this process."""

    @staticmethod
    def rounds_of(phase: str, rounds: int) -> int:
        return study_rounds(phase, rounds)

    def look(self, timing: Timing) -> Json | None:
        self.request.getfixturevalue("shelf").leave_memory_to_others()
        benchmark, rounds = self.benchmark_id(timing), self.workbench.rounds(self.case)
        if self.workbench.disabled:
            self._studied(benchmark, Study(0, 1))
            return None
        studies = [Study(count, rounds) for count in STUDIED_WARMUP_ROUNDS]
        if self.case.phase in WITH_SET_UP:
            studies.append(Study(LEAVING_OUT_ROUNDS, rounds, leaves_out_timed_phase=True))
        series = [
            {
                "warmup_rounds": study.warmup_rounds,
                "leaves_out_timed_phase": study.leaves_out_timed_phase,
                **self._studied(benchmark, study),
            }
            for study in studies
        ]
        first_round = self._studied(benchmark, Study(0, 1, traces_first_round=True))
        return warmup_values(series, first_round, self.workbench.settings.warmup_rounds)

    def _studied(self, benchmark: str, study: Study) -> Json:
        answer = worker.in_fresh_process(self.workbench.settings, benchmark, study, ROOT)
        if "outcome" in answer:
            self.end_with(Outcome(**answer["outcome"]))
        values: Json = answer["values"]
        return values
