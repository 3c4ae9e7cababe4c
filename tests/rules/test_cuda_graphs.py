"""Modes of torch.compile that replay CUDA graphs: where they run, and what a round needs to replay and not record."""

import sys
from collections import Counter
from dataclasses import replace
from importlib import util
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model.compilation import CUDA_GRAPH_MODES, compiled
from perf_tests_suite.perf_tests.bench import loop, models, worker_plugin
from perf_tests_suite.perf_tests.bench.loop import Rounds, RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.models import executed
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.bench.worker_plugin import received, sent
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.options import EXECUTIONS
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CpuDevice, count_compilations
from perf_tests_suite.perf_tests.passes import kernels
from perf_tests_suite.perf_tests.passes.kernels import ProfiledMeasure, ProfilerBusyError
from perf_tests_suite.perf_tests.predict.counters import needed_bytes
from tests.support.example_cases import CPU, SETTINGS, attention_case, build, language_model_case
from tests.support.fake_device import LoopBenchmark

GRAPHED, COMPILED = (language_model_case(execution=name) for name in ("reduce-overhead", "compiled"))
DEVICE = CpuDevice(CPU)


@pytest.mark.parametrize("mode", CUDA_GRAPH_MODES)
def test_graphs_need_a_gpu_with_triton_and_the_row_says_so(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = why_unsupported(language_model_case(execution=mode), CPU)
    assert reason == f"--execution {mode} replays CUDA graphs, and a CPU has none; choose compiled."
    case, gpu = language_model_case(execution=mode, device="cuda"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for found, words in ((None, "triton"), ("triton", "None")):
        monkeypatch.setattr(util, "find_spec", lambda name, found=found: found)
        assert words in str(why_unsupported(case, gpu))


def test_an_execution_is_a_mode_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base without modes still compiles, and its missing modes are not collected."""
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", torch_compile := Mock())
        for execution in ("compiled", *CUDA_GRAPH_MODES):
            executed(build(), execution)
            mode = "default" if execution == "compiled" else execution
            assert torch_compile.call_args.kwargs == {"dynamic": False, "mode": mode}
    monkeypatch.setattr(models, "compiled", lambda function: function)
    monkeypatch.setattr(worker_plugin, "EXECUTIONS", ("eager", "compiled"))
    module = build()
    assert executed(module, "compiled") is executed(module, "eager") is module
    assert received(sent(replace(SETTINGS, executions=EXECUTIONS))).executions == ("eager", "compiled")


def test_each_round_is_marked_before_its_set_up_where_graphs_may_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: ran.append("mark"))
    rounds = Rounds(lambda: ran.append("target"), lambda: ran.append("set-up"))
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    rounds.run_round()
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", Mock())
    rounds.run_round()
    assert ran == ["set-up", "target", "mark", "set-up", "target"]


def test_graphs_are_recorded_before_the_first_measured_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a case, as a test alone, and in the kernel pass."""
    for case, asked, warmup_rounds in ((GRAPHED, 1, 3), (GRAPHED, 5, 5), (COMPILED, 1, 1), (attention_case(), 0, 0)):
        workbench = Workbench(replace(SETTINGS, warmup_rounds=asked), DEVICE, Clock(DEVICE), 0)
        assert workbench.warmup_rounds(case) == warmup_rounds
    ran: list[int] = []
    TimedMeasure(LoopBenchmark(), Clock(DEVICE), DEVICE, 1, GRAPHED.fewest_warmup_rounds, None)(lambda: ran.append(1))
    monkeypatch.setattr(kernels, "trace_rounds", Mock(side_effect=ProfilerBusyError))
    with pytest.raises(ProfilerBusyError):
        ProfiledMeasure("some id", GRAPHED, Mock(device=DEVICE, clock=Clock(DEVICE)))(lambda: ran.append(2))
    assert ran == [1] * 4 + [2] * 3


def test_a_graphs_pool_is_no_peak_and_what_was_left_out_of_graphs_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a graph holds only the least is known."""
    monkeypatch.setattr(CpuDevice, "peaks", lambda device: (1, None, None))
    for case, peak in ((GRAPHED, None), (COMPILED, 1)):
        seen = [Counter[str](), *[Counter(graphs=1, cudagraph_skips=1)] * 5]
        monkeypatch.setattr(loop, "count_compilations", Mock(side_effect=seen))
        benchmark = LoopBenchmark()
        TimedMeasure(benchmark, Clock(DEVICE), DEVICE, 3, 3, RowBuilder(case))(lambda: None)
        assert benchmark.extra_info["peak_allocated_bytes"] == peak
        assert "no_cuda_graph" in benchmark.extra_info["flags"]
    assert needed_bytes(GRAPHED) == needed_bytes(COMPILED)
    assert "pool of its CUDA graphs" in str(GRAPHED.why_not_counted)


def test_what_torch_leaves_out_of_cuda_graphs_is_counted() -> None:
    """As everything on a CPU."""
    before = count_compilations()
    compiled(lambda x: x + 1, mode="reduce-overhead")(torch.ones(1))
    assert (count_compilations() - before)["cudagraph_skips"] == 1
