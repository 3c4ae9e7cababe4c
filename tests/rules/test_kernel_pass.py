"""A kernel pass fails over a GPU of which the profiler sees nothing, and keeps its figures where the disk is full."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench.loop import Measure
from perf_tests.bench.session import noted
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice
from perf_tests.passes.kernels import KernelPass, ProfiledMeasure, TracedRounds
from perf_tests.report.screens import kernel_summary_lines
from tests.support.example_cases import CPU, language_model_case
from tests.support.fake_device import QueueDevice
from tests.support.items import benchmark
from tests.support.synthetic_trace import HandWritten, forward_and_backward


def timing(measure: Measure) -> None:
    measure(lambda: None)


def test_the_hosts_operations_never_pass_for_kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    trace.operation("aten::mm", 10, 20)  # not even a call of the runtime
    traced = TracedRounds(0.1, trace.text())
    monkeypatch.setattr("perf_tests.passes.kernels.trace_rounds", lambda play, device: traced)
    device = QueueDevice()
    device.torch_device = torch.device("cuda", 0)
    workbench: Any = SimpleNamespace(device=device, clock=Clock(device), disabled=True)
    request: Any = SimpleNamespace(node=benchmark(language_model_case(), "kernels"))
    with pytest.raises(pytest.fail.Exception, match="CUPTI"):
        KernelPass(request, language_model_case(), workbench).examine(timing)
    outcome = noted(request.node).outcome
    assert outcome is not None
    assert (outcome.outcome, outcome.reason.count("trace again.")) == ("error", 1)


def full(folder: Path) -> Any:
    """A session whose disk refuses the side file, or its folder where there is none."""

    def side_file(case_id: str, suffix: str) -> Path:
        if not folder.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return folder / f"{case_id}.{suffix}"

    return SimpleNamespace(side_file=side_file, journal=SimpleNamespace(keeps=True))


@pytest.mark.parametrize("folder", ["there", "missing"])
def test_a_full_disk_costs_the_trace_and_not_the_case(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    traced = TracedRounds(0.1, forward_and_backward().text())
    monkeypatch.setattr("perf_tests.passes.kernels.trace_rounds", lambda play, device: traced)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    device = CpuDevice(CPU)
    session = full(tmp_path / folder)
    workbench: Any = SimpleNamespace(device=device, clock=Clock(device), disabled=True, session=session)
    measure = ProfiledMeasure("it", language_model_case(), workbench)
    measure(lambda: None)
    assert measure.values["kernel_seconds"] > 0
    assert measure.values["trace"] is None
    assert "No space left on device" in measure.values["trace_reason"]
    assert list((tmp_path / "there").iterdir()) == []
    row = {"id": "it", "identity": language_model_case().identity(), "values": measure.values}
    assert any(measure.values["trace_reason"] in line for line in kernel_summary_lines([row]))
