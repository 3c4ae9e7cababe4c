"""Two GPUs of different kinds in one machine: each is measured, predicted and compared as itself."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from model.device import device_named
from perf_tests.hardware.device import CudaDevice
from perf_tests.hardware.machine import OtherProcesses, open_gpu_health, stable_facts
from perf_tests.predict import machine as machine_ceilings
from perf_tests.predict.costs import libraries_here
from perf_tests.predict.machine import ceilings_here
from perf_tests.records.record import machine_differences
from tests.rules.test_cuda_device import FakeCuda
from tests.support.example_cases import CEILINGS

KINDS = {
    0: SimpleNamespace(name="NVIDIA H200", uuid="aaaa", total_memory=141 * 2**30, major=9, minor=0,
                       multi_processor_count=132, power_watts=700.0),
    1: SimpleNamespace(name="NVIDIA RTX A4000", uuid="bbbb", total_memory=16 * 2**30, major=8, minor=6,
                       multi_processor_count=48, power_watts=140.0),
}  # fmt: skip


class TwoCards(ModuleType):
    """NVML, which counts by the bus and finds a card by its UUID."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")

    def nvmlInit(self) -> None:  # noqa: N802 -- NVML's name
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:  # noqa: N802
        return next(kind for kind in KINDS.values() if uuid == f"GPU-{kind.uuid}")

    def nvmlDeviceGetPowerManagementLimit(self, kind: SimpleNamespace) -> float:  # noqa: N802
        return float(kind.power_watts * 1000)

    def __getattr__(self, name: str) -> object:
        if name.startswith("NVML_"):
            return 0
        return self.does_not_tell

    def does_not_tell(self, *_: object) -> None:
        raise self.NVMLError("Not Supported")


def kind_of(device: torch.device | int) -> SimpleNamespace:
    return KINDS[device if isinstance(device, int) else device.index or 0]


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch).sees(count=2)
    monkeypatch.setitem(sys.modules, "pynvml", TwoCards())
    monkeypatch.setattr(torch.cuda, "get_device_properties", kind_of)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: kind_of(device).name)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: (kind_of(device).major, kind_of(device).minor)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (kind_of(device).total_memory,) * 2)


def test_the_facts_of_each_are_its_own() -> None:
    for place, kind in KINDS.items():
        device = device_named(f"cuda:{place}")
        facts = stable_facts(device, 1)["gpu"]
        assert (facts["name"], facts["memory_bytes"]) == (kind.name, kind.total_memory)
        assert facts["power_limit_watts"] == kind.power_watts
        assert open_gpu_health(device).limits()["power_limit_watts"] == kind.power_watts
        assert CudaDevice(device).available_bytes() == kind.total_memory - CudaDevice.kept_free_bytes


def test_the_libraries_rules_are_those_of_the_kind_that_is_named() -> None:
    large, small = (libraries_here(device_named(f"cuda:{place}")) for place in KINDS)
    assert large is not None
    assert small is not None
    assert large.workspace_bytes > small.workspace_bytes


def test_times_of_one_are_not_compared_with_those_of_the_other() -> None:
    here, there = ({"torch": stable_facts(device_named(f"cuda:{place}"), 1)} for place in KINDS)
    assert "gpu.name: 'NVIDIA H200' here, 'NVIDIA RTX A4000' there" in machine_differences(here, there)


def test_what_one_can_do_is_not_taken_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(device: CudaDevice) -> object:
        measured.append(kind_of(device.torch_device).name)
        return CEILINGS

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_ceilings, "measured_ceilings", measure)
    monkeypatch.setattr(OtherProcesses, "cores", lambda _: 0.0)
    for place in (0, 0, 1, 1):
        ceilings_here(CudaDevice(device_named(f"cuda:{place}")))
    assert measured == [kind.name for kind in KINDS.values()]


def test_a_third_is_refused_with_the_names_of_the_two() -> None:
    with pytest.raises(ValueError, match=r"cuda:0 \(NVIDIA H200\), cuda:1 \(NVIDIA RTX A4000\)\.$"):
        device_named("cuda:2")
