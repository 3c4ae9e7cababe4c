"""The warm-up study (`--warmup-study`): how many warm-up rounds a phase needs, and where its first round goes.

A fresh process runs the benchmark for each number of warm-up rounds, and one more traces the first round of all and a
later one to compare it with.
"""

import gc
import importlib.machinery
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import record_function

from perf_tests_suite.perf_tests.audit.rounds import (
    LEAVING_OUT_ROUNDS,
    STUDIED_WARMUP_ROUNDS,
    study_rounds,
    warmup_values,
)
from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds
from perf_tests_suite.perf_tests.bench.worker_plugin import examined, sent_elsewhere
from perf_tests_suite.perf_tests.bench.workers import (
    WorkerEndedError,
    channel_of_worker,
    inherited_environment,
    start_worker,
)
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import (
    Device,
    cache_state,
    count_compilations,
    no_collections,
    page_faults,
    seconds_per_page_fault,
    system_seconds,
)
from perf_tests_suite.perf_tests.passes.extra_pass import ROOT, ExtraPass, Timing
from perf_tests_suite.perf_tests.passes.kernels import exported_trace
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces.kernels import TracedRound, first_round_parts, largest_growth


class WarmupPass(ExtraPass):
    """Runs no round in this process."""

    uses_profiler = True

    rounds_of = staticmethod(study_rounds)

    def examine(self, timing: Timing) -> Json | None:
        benchmark, rounds = self.benchmark_id(timing), self.workbench.rounds(self.case)
        settings = self.workbench.settings

        def run_study(study: Study) -> Json:
            return self.answered_by(lambda: in_fresh_process(settings, benchmark, study, ROOT))

        if self.workbench.disabled:
            run_study(Study(0, 1))
            return None
        studies = [Study(count, rounds) for count in STUDIED_WARMUP_ROUNDS]
        if self.case.phase_row.setup_computes:
            studies.append(Study(LEAVING_OUT_ROUNDS, rounds, leaves_out_timed_phase=True))
        named = ("warmup_rounds", "leaves_out_timed_phase")
        series = [{**{name: getattr(study, name) for name in named}, **run_study(study)} for study in studies]
        first_round = run_study(Study(0, 1, traces_first_round=True))
        return warmup_values(series, first_round, self.workbench.warmup_rounds(self.case))


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
class WarmupStudyMeasure(Measure):
    study: Study
    clock: Clock
    device: Device

    def run_rounds(self, rounds: Rounds) -> Json:
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
                rounds.run_round(around_target=self.clock.round)
        seconds = self.clock.wall_seconds
        return {
            "warmup_seconds": seconds[: study.warmup_rounds],
            "seconds": seconds[study.warmup_rounds :],
            "compile_cache": cache_state(count_compilations() - compilations),
        }

    def _trace(self, rounds: Rounds) -> Json:
        def traced_round() -> TracedCall:
            rounds.prepare()
            self.clock.begin_round()
            return traced_call(rounds.run, self.device)

        first = traced_round()
        for _ in range(ROUNDS_BETWEEN):
            rounds.run_round()
        steady = traced_round()
        # Memory of a GPU comes from its driver, whose calls are in the trace.
        on_cpu = self.device.torch_device.type == "cpu"
        fault_seconds = seconds_per_page_fault() if on_cpu else None
        return {
            "first_round_parts": first_round_parts(first, steady, fault_seconds),
            "first_round": {
                "modules_loaded": first.modules_loaded,
                "page_faults": first.page_faults,
                "steady_page_faults": steady.page_faults,
                "seconds_per_page_fault": fault_seconds,
                "largest_growth": largest_growth(first, steady),
            },
        }


def in_fresh_process(settings: Settings, benchmark: str, study: Study, root: Path) -> Json:
    """Return the `values` or the `outcome` of a study, from a process started in `root` that has run no round before.

    Raises WorkerEndedError with one sentence.
    """
    worker = start_worker(
        "perf_tests_suite.perf_tests.passes.warmup", root, inherited_environment([root / "perf_tests/importable"])
    )
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
    answer = examined(task, lambda item, workbench: WarmupStudyMeasure(study, workbench.clock, workbench.device))
    if answer is None:  # pytest has printed why
        return 1
    channel.send(answer)
    return 0


# The first round of a process under a profiler.


CALL = "round"
"""The range around what is timed."""

IMPORT_RANGE = "import of "
"""Prefix of the ranges of imports."""

ROUNDS_BETWEEN = 5
"""Untraced rounds between the two, so that the later one is warm."""


@dataclass(frozen=True)
class TracedCall(TracedRound):
    """One call of a function; its pages touched first are without those of imports."""

    modules_loaded: int


def traced_call(function: Callable[[], Any], device: Device) -> TracedCall:
    """Call `function` once, traced, and wait for the device.

    Each import that no other import causes is a range of the trace. The profiler is not torch.profiler's: that one
    imports all of Inductor when it starts, which is part of what is measured here.
    """
    device.synchronize()
    use_device = "cuda" if device.torch_device.type == "cuda" else None
    with no_collections(), autograd_profile(use_kineto=True, use_device=use_device) as profiler:
        with record_function("first range of all"):  # which imports what ranges need
            pass
        imports = ImportRanges()
        sys.meta_path.insert(0, imports)
        try:
            before, system_before = page_faults(), system_seconds()
            with record_function(CALL):
                function()
                device.synchronize()
            faults, kernel_seconds = page_faults() - before, system_seconds() - system_before
        finally:
            sys.meta_path.remove(imports)
    events = json.loads(exported_trace(profiler.export_chrome_trace))["traceEvents"]
    return TracedCall(events, faults - imports.page_faults, kernel_seconds, imports.modules_loaded)


class ImportRanges(MetaPathFinder):
    """Opens a range around each outermost import, by the loader that the other finders choose; counts all of them."""

    def __init__(self) -> None:
        self.modules_loaded = 0
        self.page_faults = 0
        self._is_open = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(fullname, path, target)
            if spec is None:
                continue
            # A loader that is a class, as that of builtin modules, serves all of them and loads no file.
            if spec.loader is not None and not isinstance(spec.loader, type):
                self._watch(spec.loader, fullname)
            return spec
        return None

    def _watch(self, loader: Loader, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self.modules_loaded += 1
            if self._is_open:
                execute(module)
                return
            self._is_open, before = True, page_faults()
            try:
                with record_function(f"{IMPORT_RANGE}{name}"):
                    execute(module)
            finally:
                self._is_open = False
                self.page_faults += page_faults() - before

        # On this object alone, which loads this module and no other.
        loader.exec_module = exec_module  # type: ignore[method-assign]


if __name__ == "__main__":
    # This file once more, by its name: pytest loads it so, and what one copy sets the other would not see.
    from perf_tests_suite.perf_tests.passes import warmup

    sys.exit(warmup.main())
