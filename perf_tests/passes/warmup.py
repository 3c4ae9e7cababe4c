"""The warm-up study of one case: a fresh process for each number of warm-up rounds, and one for the first round."""

from perf_tests.audit.warmup_study import LEAVING_OUT_ROUNDS, STUDIED_WARMUP_ROUNDS, study_rounds, warmup_values
from perf_tests.measures.studied import Study
from perf_tests.passes.extra_pass import ROOT, ExtraPass, Timing
from perf_tests.records.record import Json
from perf_tests.workers import study as worker


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
            return self.answered_by(lambda: worker.in_fresh_process(settings, benchmark, study, ROOT))

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
