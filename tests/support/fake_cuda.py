"""GPUs as far as torch.cuda and NVML tell of them, on a machine that has none."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

WHEEL = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
TOTAL_BYTES = 80 * 2**30
GPU = torch.device("cuda", 0)
POWER_CAP, IDLE = 0x004, 0x001


class FakeCuda:
    """One GPU, as far as torch.cuda tells of it; `calls` holds the names of the functions called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._monkeypatch = monkeypatch
        self.sees()
        self._replace("get_device_properties", SimpleNamespace(total_memory=TOTAL_BYTES))
        self._replace("mem_get_info", (TOTAL_BYTES // 2, TOTAL_BYTES))
        self._replace("max_memory_allocated", 300)
        self._replace("max_memory_reserved", 500)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
            self._replace(name, None)
        self.limit = Mock()
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.limit)

    def sees(self, capability: tuple[int, int] = (9, 0), built_for: list[str] = WHEEL, count: int = 1) -> None:
        """A second GPU is of 2007."""
        capabilities: dict[object, tuple[int, int]] = {0: capability, GPU: capability, 1: (1, 0)}
        self._replace("is_available", count > 0)
        self._replace("device_count", count)
        self._monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
        names: dict[object, str] = {0: "NVIDIA Example", GPU: "NVIDIA Example", 1: "NVIDIA Relic"}
        self._monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
        self._replace("get_arch_list", built_for)
        self.does_not_start("No CUDA GPUs are available")

    def does_not_start(self, words: str) -> None:
        """What `torch.cuda.init` raises where no GPU is available."""
        self._monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(words)))

    def _replace(self, name: str, answer: object) -> None:
        def fake(*_: object) -> object:
            self.calls.append(name)
            return answer

        self._monkeypatch.setattr(torch.cuda, name, fake)


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
