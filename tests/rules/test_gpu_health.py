"""The state of a GPU is read through NVML, against a fake of it: figures, what a card lacks, and which card it is."""

import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests.bench import workbench as workbench_module
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.workbench import set_up
from perf_tests.hardware import machine as gpu_health
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice
from perf_tests.hardware.machine import (
    GpuHealth,
    NoHealthError,
    RoundHealth,
    drifting_facts,
    granted_by_host,
    open_gpu_health,
    stable_facts,
)
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.fake_device import LoopBenchmark, QueueDevice

GPU = torch.device("cuda", 0)
POWER_CAP, IDLE = 0x004, 0x001


class FakeNvml(ModuleType):
    """Two cards by UUID and bus; the second is the one that CUDA calls 0. `lacking` names functions it refuses."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lacking: dict[str, str] = {}
        self.bits, self.millijoules = IDLE, 5_000
        clocks = {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}
        self.asked: list[str] = []
        self.answers: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self.find,
            "nvmlDeviceGetHandleByPciBusId": self.find,
            "nvmlDeviceGetPowerUsage": lambda handle: 71_500,
            "nvmlDeviceGetClockInfo": lambda handle, kind: clocks[kind],
            "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.bits,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.millijoules,
            "nvmlDeviceGetPowerManagementLimit": lambda handle: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: clocks[kind],
            "nvmlDeviceGetComputeMode": lambda handle: 3,
            "nvmlDeviceGetMigMode": lambda handle: [0, 1],
        }

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name not in self.answers:
            raise AttributeError(name)
        if name in self.lacking:
            return Mock(side_effect=self.NVMLError(self.lacking[name]))
        return self.answers[name]

    def find(self, uuid_or_bus: str) -> str:
        self.asked.append(uuid_or_bus)
        if uuid_or_bus == "MIG-2222":
            raise self.NVMLError("Not Found")
        return "second card"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    sees(monkeypatch, uuid="2222")
    return fake


def sees(monkeypatch: pytest.MonkeyPatch, **properties: object) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))


def test_a_reading_has_every_figure_in_its_unit(nvml: FakeNvml) -> None:
    assert open_gpu_health(GPU).facts() == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "temperature_celsius": 41, "power_watts": 71.5,
        "clock_events": ["idle"],
    }  # fmt: skip


FACTS = {
    "name": "NVIDIA H200", "total_memory": 2**37, "major": 9, "minor": 0, "multi_processor_count": 132, "uuid": "2222",
}  # fmt: skip


def test_a_machine_is_known_by_what_its_administrator_set(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch, **FACTS)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_002)
    nvml.lacking = {"nvmlDeviceGetMaxClockInfo": "Not Supported"}
    gpu = stable_facts(GPU, 1)["gpu"]
    assert (gpu["cudnn"], gpu["power_limit_watts"], gpu["max_sm_clock_mhz"]) == (91_002, 700.0, None)
    assert (gpu["compute_mode"], gpu["mig"]) == ("exclusive process", False)
    nvml.lacking = {"nvmlInit": "Driver Not Loaded"}
    assert "power_limit_watts" not in stable_facts(GPU, 1)["gpu"]


def test_variables_that_choose_kernels_are_facts_of_the_machine_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1", "CUDA_MODULE_LOADING": "EAGER"}
    for name, value in {**chosen, "TORCHINDUCTOR_CACHE_DIR": "/anywhere"}.items():
        monkeypatch.setenv(name, value)
    environment = stable_facts(CPU, 1)["environment"]
    assert environment.items() >= chosen.items()
    assert not {"TORCHINDUCTOR_CACHE_DIR", "CUBLASLT_WORKSPACE_SIZE"} & environment.keys()


def test_a_card_is_found_by_what_it_is_and_not_by_its_number(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CUDA_VISIBLE_DEVICES=1 the card that CUDA calls 0 is the second one of NVML."""
    open_gpu_health(GPU)
    assert nvml.asked == ["GPU-2222"]
    sees(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    open_gpu_health(GPU)
    assert nvml.asked[-1] == "00000000:3B:00.0"


def test_a_slice_of_a_card_keeps_the_kind_of_its_uuid(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch, uuid="MIG-2222")
    with pytest.raises(NoHealthError, match="Not Found; check that nvidia-smi lists the GPU"):
        open_gpu_health(GPU)
    assert nvml.asked == ["MIG-2222"]


def test_what_a_card_does_not_tell_is_null_and_the_rest_is_read(nvml: FakeNvml) -> None:
    nvml.lacking = dict.fromkeys(("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"), "Not Supported")
    health = open_gpu_health(GPU)
    assert health.energy_joules() is None
    assert health.facts()["power_watts"] is None
    assert health.facts()["temperature_celsius"] == 41


def test_an_older_package_is_asked_by_the_older_name(nvml: FakeNvml) -> None:
    del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda handle: POWER_CAP
    assert open_gpu_health(GPU).facts()["clock_events"] == ["power cap"]


@pytest.mark.parametrize("bits, is_throttled", [
    (0x000, False), (0x001, False), (0x002, False), (0x010, False), (0x100, False),
    (0x004, True), (0x008, True), (0x020, True), (0x040, True), (0x080, True), (0x005, True),
])  # fmt: skip
def test_power_and_heat_throttle_and_idling_does_not(nvml: FakeNvml, bits: int, is_throttled: bool) -> None:
    nvml.bits = bits
    assert open_gpu_health(GPU).is_throttled() is is_throttled


def test_without_a_driver_the_reason_is_the_drivers_own(nvml: FakeNvml) -> None:
    nvml.lacking = {"nvmlInit": "Driver Not Loaded"}
    with pytest.raises(NoHealthError, match="Driver Not Loaded"):
        open_gpu_health(GPU)


def test_a_gpu_without_uuid_or_bus_is_refused(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(monkeypatch)
    with pytest.raises(NoHealthError, match="reports neither the UUID nor the PCI bus of cuda:0"):
        open_gpu_health(GPU)


def test_a_cpu_never_imports_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(workbench_module, "open_device", lambda device: UncappedDevice(device))
    bench = set_up(SETTINGS)
    assert (bench.health, bench.why_no_health) == (None, None)


def test_a_gpu_without_the_package_is_measured_with_a_note(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(workbench_module, "open_device", lambda device: UncappedDevice(GPU))
    bench = set_up(SETTINGS)
    assert bench.health is None
    assert re.search("nvidia-ml-py is not installed.*run `pip install nvidia-ml-py`", bench.why_no_health or "")
    assert drifting_facts(GPU, bench.health) == {"sm_clock_mhz": None, **granted_by_host()}


class UncappedDevice(CpuDevice):
    """Leaves the memory of the test's own process alone."""

    def limit_memory(self, budget_bytes: int) -> None:
        return


@pytest.mark.parametrize("seconds_of_a_round, joules", [(1.0, 300.0), (0.1, None)])
def test_energy_is_that_of_one_round_and_none_where_its_counter_is_too_coarse(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, seconds_of_a_round: float, joules: float | None
) -> None:
    clock = QueueDevice()
    monkeypatch.setattr(gpu_health, "time", clock)
    rounds = RoundHealth(open_gpu_health(GPU))
    rounds.begin()
    for _ in range(4):
        nvml.millijoules += 300_000
        clock.now += seconds_of_a_round
        rounds.end_of_round()
    assert rounds.facts()["energy_joules_per_round"] == joules


def measured(nvml: FakeNvml, throttled: range) -> dict[str, Any]:
    """`extra_info` of two warm-up and three measured rounds, and how many ran; `throttled` are numbers from 1."""
    health = GpuHealth(nvml, "card")
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    done = 0

    def target() -> None:
        nonlocal done
        done += 1
        nvml.bits = POWER_CAP if done in throttled else IDLE

    row = Row(language_model_case())
    measure = TimedMeasure(benchmark, Clock(device), device, 3, 2, row, health=RoundHealth(health))
    measure(target)
    return {**benchmark.extra_info, "rounds_run": done}


@pytest.mark.parametrize(
    ("throttled", "numbers"),
    [(range(4, 6), [2, 3]), (range(1, 3), []), (range(0), [])],
    ids=["measured rounds", "warm-up rounds", "none"],
)
def test_throttled_rounds_are_flagged_by_number_and_kept(nvml: FakeNvml, throttled: range, numbers: list[int]) -> None:
    info = measured(nvml, throttled)
    assert info["throttled_rounds"] == numbers
    assert ("throttled" in info["flags"]) == bool(numbers)
    assert info["rounds_run"] == 5


def test_on_a_cpu_health_is_null() -> None:
    device, benchmark = CpuDevice(CPU), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 0, Row(language_model_case()))(lambda: None)
    assert benchmark.extra_info["throttled_rounds"] is None
    assert benchmark.extra_info["energy_joules_per_round"] is None
