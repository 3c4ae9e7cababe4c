"""The state of an NVIDIA GPU through NVML: clocks, temperature, power, energy, throttling.

NVML is a library of the driver; the package nvidia-ml-py, module pynvml, calls it. It is imported only for a GPU.
A figure that the card or driver does not report is None.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

# Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReasons).
REASONS = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat",
    0x040: "heat, by the hardware",
    0x080: "power brake",
    0x100: "display clocks",
}
THROTTLING = frozenset({0x004, 0x008, 0x020, 0x040, 0x080})
"""Power and heat: what slows a GPU down under load, unlike idle clocks and chosen ones."""

COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
"""By NVML's number (nvml.h, nvmlComputeMode_t)."""

ENERGY_LEAST_SECONDS = 2.0
"""The counter advances every 20 to 100 ms, so over less time an energy would be off by more than 5 %."""


class GpuHealth:
    """One GPU. None of the calls waits for work on the device."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle

    def facts(self) -> dict[str, Any]:
        """The state now, as a record holds it; None for what the card does not report."""
        nvml, bits = self._nvml, self.clock_event_bits()
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return {
            "sm_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            "temperature_celsius": self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            "power_watts": None if milliwatts is None else milliwatts / 1e3,
            "clock_events": None if bits is None else [name for bit, name in REASONS.items() if bits & bit],
        }

    def limits(self) -> dict[str, Any]:
        """What stays until an administrator changes it; None for what the card does not report."""
        nvml = self._nvml
        milliwatts, mode = self._ask(nvml.nvmlDeviceGetPowerManagementLimit), self._ask(nvml.nvmlDeviceGetComputeMode)
        mig = self._ask(nvml.nvmlDeviceGetMigMode)  # the current one, and the one after the next reset
        return {
            "power_limit_watts": None if milliwatts is None else milliwatts / 1e3,
            "max_sm_clock_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
            "compute_mode": COMPUTE_MODES[mode] if mode in range(len(COMPUTE_MODES)) else None,
            "mig": None if mig is None else bool(mig[0]),
        }

    def clock_event_bits(self) -> int | None:
        # The name until driver 535; newer releases of the package know both.
        older = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        ask = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", older)
        return None if ask is None else self._ask(ask)

    def is_throttled(self) -> bool:
        """Whether power or heat holds the clocks down now."""
        bits = self.clock_event_bits() or 0
        return any(bits & bit for bit in THROTTLING)

    def energy_joules(self) -> float | None:
        """Since the driver was loaded; None on cards older than Volta."""
        millijoules = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def _ask(self, question: Callable[..., Any], *arguments: object) -> Any:
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


class NoHealthError(Exception):
    """The state of the GPU cannot be read; the message is one sentence with the next step."""


def open_gpu_health(device: torch.device) -> GpuHealth:
    """Raises NoHealthError where there is no package, no driver library or no such GPU."""
    try:
        import pynvml
    except ImportError as error:
        raise NoHealthError(
            "Clocks, temperature, power and throttling of the GPU are not recorded, because nvidia-ml-py is "
            "not installed; run `pip install nvidia-ml-py`."
        ) from error
    try:
        pynvml.nvmlInit()
        return GpuHealth(pynvml, _handle_of(pynvml, device))
    except (pynvml.NVMLError, LookupError) as error:
        raise NoHealthError(
            f"Clocks, temperature, power and throttling of the GPU are not recorded: {error}; check that "
            "nvidia-smi lists the GPU."
        ) from error


def _handle_of(nvml: ModuleType, device: torch.device) -> object:
    """By UUID or bus, never by number: CUDA_VISIBLE_DEVICES renumbers GPUs for CUDA alone."""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        return nvml.nvmlDeviceGetHandleByUUID(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        raise LookupError(f"torch {torch.__version__} reports neither the UUID nor the PCI bus of {device}")
    domain, number = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    return nvml.nvmlDeviceGetHandleByPciBusId(f"{domain:08X}:{bus:02X}:{number:02X}.0")


@dataclass
class RoundHealth:
    """State of a GPU over the rounds of one case, asked between rounds; without `health` all facts are None."""

    health: GpuHealth | None
    throttled_rounds: list[int] = field(default_factory=list)
    """Measured rounds, counted from 1, at whose end power or heat held the clocks down."""
    _rounds: int = 0
    _start_joules: float | None = None
    _start: float = 0.0

    def begin(self) -> None:
        """The next round is the first measured one."""
        self.throttled_rounds, self._rounds = [], 0
        self._start_joules = None if self.health is None else self.health.energy_joules()
        self._start = time.perf_counter()

    def end_of_round(self) -> None:
        """Call it when a measured round has just ended: the clocks are still those of the round."""
        self._rounds += 1
        if self.health is not None and self.health.is_throttled():
            self.throttled_rounds.append(self._rounds)

    def facts(self) -> dict[str, Any]:
        """`energy_joules_per_round` includes the set-up of a round."""
        throttled_rounds = None if self.health is None else self.throttled_rounds
        return {"throttled_rounds": throttled_rounds, "energy_joules_per_round": self._energy_per_round()}

    def _energy_per_round(self) -> float | None:
        if self.health is None:
            return None
        stop_joules, seconds = self.health.energy_joules(), time.perf_counter() - self._start
        if stop_joules is None or self._start_joules is None or not self._rounds or seconds < ENERGY_LEAST_SECONDS:
            return None
        return (stop_joules - self._start_joules) / self._rounds
