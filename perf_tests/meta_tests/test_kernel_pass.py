"""A kernel pass over a GPU of which the profiler sees nothing fails, with the reason and what to do about it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf_tests.bench.stash import OUTCOME
from perf_tests.instruments.kernels import TracedRounds
from perf_tests.measures.rounds import Measure
from perf_tests.meta_tests.example_cases import language_model_case
from perf_tests.meta_tests.fake_device import QueueDevice
from perf_tests.passes.kernels import KernelPass
from perf_tests.proofs.synthetic_trace import HandWritten


def timing(measure: Measure) -> None:
    measure(lambda: None)


def test_the_hosts_operations_never_pass_for_kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    trace.operation("aten::mm", 10, 20)  # not even a call of the runtime
    traced = TracedRounds(0.1, trace.text())
    monkeypatch.setattr("perf_tests.measures.traced.trace_rounds", lambda play, device: traced)
    device = QueueDevice()
    device.torch_device = torch.device("cuda", 0)
    workbench: Any = SimpleNamespace(device=device, clock=SimpleNamespace(forget=lambda: None), disabled=True)
    request: Any = SimpleNamespace(node=SimpleNamespace(nodeid="a case", stash=pytest.Stash()))
    with pytest.raises(pytest.fail.Exception, match="CUPTI"):
        KernelPass(request, language_model_case(), workbench).look(timing)
    outcome = request.node.stash[OUTCOME]
    assert (outcome.outcome, outcome.reason.count("trace again.")) == ("error", 1)
