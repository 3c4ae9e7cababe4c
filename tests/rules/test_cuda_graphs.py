"""Modes of torch.compile that replay CUDA graphs: where they run, and what a round needs to replay and not record."""

import sys
from collections import Counter
from dataclasses import replace
from importlib import util
from unittest.mock import Mock

import pytest
import torch

from model.compilation import CUDA_GRAPH_MODES, compiled
from perf_tests.bench import loop as timed
from perf_tests.bench import models
from perf_tests.bench import worker_plugin as worker_settings
from perf_tests.bench.loop import Rounds, Row, TimedMeasure
from perf_tests.bench.models import executed
from perf_tests.bench.workbench import Workbench
from perf_tests.bench.worker_plugin import received, sent
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import EXECUTIONS
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice, count_compilations
from perf_tests.passes import kernels as traced
from perf_tests.passes.kernels import ProfiledMeasure, ProfilerBusyError
from perf_tests.predict.counters import needed_bytes
from tests.support.example_cases import CPU, SETTINGS, attention_case, build, language_model_case
from tests.support.fake_device import LoopBenchmark

GRAPHED = language_model_case(execution="reduce-overhead")


@pytest.mark.parametrize("mode", CUDA_GRAPH_MODES)
def test_a_cpu_has_no_cuda_graphs_and_the_row_says_what_to_choose(mode: str) -> None:
    reason = language_model_case(execution=mode).why_unsupported(CPU)
    assert reason == f"--execution {mode} replays CUDA graphs, and a CPU has none; choose compiled."


@pytest.mark.parametrize("mode", CUDA_GRAPH_MODES)
def test_a_gpu_with_triton_runs_them(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, gpu = language_model_case(execution=mode, device="cuda"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert "triton" in str(case.why_unsupported(gpu))
    monkeypatch.setattr(util, "find_spec", lambda name: "triton")
    assert case.why_unsupported(gpu) is None


def test_a_mode_is_named_in_the_id_and_goes_with_no_attention_that_compiles_itself() -> None:
    grid = LanguageModelCase.grid(replace(SETTINGS, executions=EXECUTIONS, attentions=("naive", "compiled", "flex")))
    assert [LanguageModelCase.id_of(*values) for values in grid] == [
        "tiny-ctx8-fp32-naive",
        "tiny-ctx8-fp32-naive-compiled-model",
        "tiny-ctx8-fp32-naive-reduce-overhead",
        "tiny-ctx8-fp32-naive-max-autotune",
        "tiny-ctx8-fp32-compiled",
        "tiny-ctx8-fp32-flex",
    ]


@pytest.mark.parametrize("execution, mode", [("compiled", "default"), *((name, name) for name in CUDA_GRAPH_MODES)])
def test_an_execution_is_a_mode_of_torch_compile(execution: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_compile = Mock()
    monkeypatch.setattr(torch, "compile", torch_compile)
    executed(build(), execution)
    assert torch_compile.call_args.kwargs == {"dynamic": False, "mode": mode}


def test_a_model_of_a_base_without_modes_is_still_compiled_and_its_missing_modes_are_not_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "compiled", lambda function: function)
    monkeypatch.setattr(worker_settings, "EXECUTIONS", ("eager", "compiled"))
    module = build()
    assert executed(module, "compiled") is executed(module, "eager") is module
    assert received(sent(replace(SETTINGS, executions=EXECUTIONS))).executions == ("eager", "compiled")


@pytest.mark.parametrize("is_loaded", [True, False])
def test_each_round_is_marked_before_its_set_up_where_graphs_may_exist(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: ran.append("mark"))
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    if is_loaded:
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", Mock())
    rounds = Rounds(lambda: ran.append("target"), lambda: ran.append("set-up"))
    for _ in range(2):
        rounds.play()
    assert ran == [*(["mark"] if is_loaded else []), "set-up", "target"] * 2


@pytest.mark.parametrize(
    "case, asked, warmup_rounds", [(GRAPHED, 1, 3), (GRAPHED, 5, 5), (language_model_case(execution="compiled"), 1, 1)]
)
def test_graphs_are_recorded_before_the_first_measured_round(
    case: LanguageModelCase, asked: int, warmup_rounds: int
) -> None:
    device = CpuDevice(CPU)
    workbench = Workbench(replace(SETTINGS, warmup_rounds=asked), device, Clock(device), 0)
    assert workbench.warmup_rounds(case) == warmup_rounds
    assert attention_case().fewest_warmup_rounds == 0


def test_as_a_test_alone_a_graph_is_replayed_too() -> None:
    device, ran = CpuDevice(CPU), []
    TimedMeasure(LoopBenchmark(), Clock(device), device, 1, GRAPHED.fewest_warmup_rounds, None)(lambda: ran.append(1))
    assert len(ran) == 4


def test_the_kernel_pass_records_graphs_before_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(traced, "trace_rounds", Mock(side_effect=ProfilerBusyError))
    device = CpuDevice(CPU)
    with pytest.raises(ProfilerBusyError):
        ProfiledMeasure("some id", GRAPHED, Mock(device=device, clock=Clock(device)))(lambda: ran.append(1))
    assert len(ran) == 3


class CountingDevice(CpuDevice):
    def peak_allocated_bytes(self) -> int:
        return 1


@pytest.mark.parametrize("case, peak", [(GRAPHED, None), (language_model_case(execution="compiled"), 1)])
def test_a_graphs_pool_is_no_allocated_peak_and_what_was_left_out_of_graphs_is_flagged(
    case: LanguageModelCase, peak: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([Counter[str](), *[Counter(graphs=1, cudagraph_skips=1)] * 5])
    monkeypatch.setattr(timed, "count_compilations", lambda: next(seen))
    device, benchmark = CountingDevice(CPU), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 3, Row(case))(lambda: None)
    assert benchmark.extra_info["peak_allocated_bytes"] == peak
    assert "no_cuda_graph" in benchmark.extra_info["flags"]


def test_what_torch_leaves_out_of_cuda_graphs_is_counted() -> None:
    """As everything on a CPU."""
    before = count_compilations()
    compiled(lambda x: x + 1, mode="reduce-overhead")(torch.ones(1))
    assert (count_compilations() - before)["cudagraph_skips"] == 1


def test_of_what_a_graph_holds_only_the_least_is_known() -> None:
    assert needed_bytes(GRAPHED) == needed_bytes(replace(GRAPHED, execution="compiled"))
    assert "pool of its CUDA graphs" in str(GRAPHED.why_not_counted)
