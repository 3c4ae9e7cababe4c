"""A kernel pass: real rounds under the profiler, what it refuses and what it keeps; and rounds inside NVTX ranges."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import nvtx
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import region, regions_opened_by
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.audit.rounds import inconsistencies
from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds
from perf_tests_suite.perf_tests.bench.session import benchmark_of
from perf_tests_suite.perf_tests.hardware.clock import DOMAIN, Clock, NvtxRanges, capture, why_no_ranges
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.passes import kernels
from perf_tests_suite.perf_tests.records.record import without_nan
from perf_tests_suite.perf_tests.report.screens import pass_lines
from perf_tests_suite.perf_tests.traces import trace as traces
from tests.support.example_cases import CPU, TOY, build, language_model_case, random_tokens
from tests.support.fake_device import QueueDevice
from tests.support.items import benchmark
from tests.support.synthetic_trace import HandWritten, forward_and_backward, row
from tests.support.traced_rounds import rounds, traced_values


def test_of_a_real_step_everything_agrees_and_every_backward_kernel_is_given_back_to_a_region() -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU)
    training.create_optimizer_state()
    traced = traced_values(language_model_case(phase="full_step"), *rounds(training, random_tokens())["full_step"])
    assert inconsistencies(traced) == []
    assert without_nan(traced) == traced
    back = [row for row in traced["regions"] if row["is_backward"]]
    regions = {"attention", "attention / softmax", "feed_forward", "norm", "head", "loss", "embedding"}
    assert regions <= {row["region"] for row in back}
    top = [row for row in back if " / " not in row["region"]]
    assert sum(row["share_of_direction"] for row in top) == pytest.approx(1)
    assert sum(row["launches"] for row in top if row["region"] in ("elsewhere", "residual")) <= 2
    forward = traced["attention"]["forward"]
    softmax = row(forward["parts"], part="softmax")
    assert (forward["layers"], softmax["launches"]) == (TOY.num_layers, 5)
    assert forward["softmax_over_products_flops"] == pytest.approx(5 / (4 * TOY.head_dim)), "a FLOP an element each"


def test_a_profiler_that_is_already_active_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(kernels.ProfilerBusyError, match="already active"):
        kernels.trace_rounds(Rounds(lambda: None).run_round, CpuDevice(CPU))
    for name in kernels.NSYS_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "17")
            with pytest.raises(kernels.ProfilerBusyError, match=f"{name} is set.*without --it"):
                kernels.check_no_profiler("--it")
    kernels.check_no_profiler()


def timing(measure: Measure) -> None:
    measure(lambda: None)


def pass_of(monkeypatch: pytest.MonkeyPatch, trace: HandWritten, device: CpuDevice, session: Any) -> kernels.KernelPass:
    """A kernel pass over rounds that left this trace."""
    traced = kernels.TracedRounds(0.1, trace.text())
    monkeypatch.setattr("perf_tests_suite.perf_tests.passes.kernels.trace_rounds", lambda play, device: traced)
    workbench: Any = SimpleNamespace(device=device, clock=Clock(device), disabled=True, session=session)
    request: Any = SimpleNamespace(node=benchmark(language_model_case(), "kernels", "it"))
    return kernels.KernelPass(request, language_model_case(), workbench)


def test_the_hosts_operations_never_pass_for_kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    trace.operation("aten::mm", 10, 20)  # not even a call of the runtime
    device = QueueDevice()
    device.torch_device = torch.device("cuda", 0)
    examined = pass_of(monkeypatch, trace, device, None)
    with pytest.raises(pytest.fail.Exception, match="CUPTI"):
        examined.examine(timing)
    outcome = benchmark_of(examined.request.node).outcome
    assert outcome is not None
    assert (outcome.outcome, outcome.reason.count("trace again.")) == ("error", 1)


def test_a_full_disk_costs_the_trace_and_not_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path = tmp_path / "files" / "trace"
    journal = SimpleNamespace(keeps=True)
    session = SimpleNamespace(side_file=lambda case_id, suffix: path, journal=journal)
    for refused in ("mkdir", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, refused, Mock(side_effect=full))
            values = pass_of(patch, forward_and_backward(), CpuDevice(CPU), session).examine(timing)
        assert (values["kernel_seconds"] > 0, values["trace"], path.exists()) == (True, None, False)
        assert "No space left on device" in values["trace_reason"]
        passed = {"id": "it", "pass": "kernels", "identity": language_model_case().identity(), "values": values}
        lines = pass_lines({"passes": [passed], "outcomes": []})["kernels"]
        assert any(values["trace_reason"] in line for line in lines)


# NVTX.


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What the package gives for the suite's domain, while a profiler listens."""
    domain = Mock()
    domain.get_event_attributes.side_effect = lambda message: message
    monkeypatch.setattr(nvtx, "get_domain", {DOMAIN: domain}.__getitem__)
    return domain


def told(domain: Mock) -> list[str]:
    ranges = [(name, arguments) for name, arguments, _ in domain.method_calls if name.endswith("_range")]
    return [" ".join([name.removesuffix("_range"), *arguments]) for name, arguments in ranges]


def test_set_ups_and_rounds_are_ranges_around_the_models_regions_which_end_also_when_those_fail(domain: Mock) -> None:
    def target() -> None:
        with region("softmax"):
            raise RuntimeError("planted")

    def caught() -> None:
        with suppress(RuntimeError):
            target()

    device: Any = CpuDevice(CPU)
    workbench: Any = SimpleNamespace(device=device, clock=Clock(device), warmup_rounds=lambda _: 1, rounds=lambda _: 2)
    kernels.NvtxMeasure(language_model_case(), workbench)(caught)

    def played(name: str) -> list[str]:
        return [f"push {kernels.SET_UP}", "pop", f"push {name}", "push softmax", "pop", "pop"]

    assert told(domain) == [*played("warm-up"), *played(kernels.ROUND), *played(kernels.ROUND)]
    assert (traces.DOMAIN, traces.ROUND, traces.SET_UP) == (DOMAIN, kernels.ROUND, kernels.SET_UP)


def test_each_name_is_registered_once_however_many_layers_bear_it_and_compiled_code_holds_none(domain: Mock) -> None:
    with regions_opened_by(NvtxRanges()):
        torch.compile(build(), fullgraph=True, backend="eager", dynamic=False)(random_tokens())
        assert told(domain) == []
        build()(random_tokens())
    registered = [call.kwargs["message"] for call in domain.get_event_attributes.call_args_list]
    assert len(registered) == len(set(registered)) > 5
    assert told(domain).count("push softmax") == 2
    assert told(domain).count("pop") * 2 == len(told(domain))


def test_on_a_gpu_the_capture_encloses_the_measured_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    with suppress(RuntimeError), capture(torch.device("cuda")):
        calls.append("rounds")
        raise RuntimeError("a planted failure")
    with capture(CPU):
        pass
    assert calls == ["start", "rounds", "stop"]


def test_without_the_package_ranges_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "it is not installed; run `pip install nvtx`" in str(why_no_ranges())
