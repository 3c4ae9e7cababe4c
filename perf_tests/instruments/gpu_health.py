"""The state of an NVIDIA GPU through NVML: clocks, temperature, power, energy, and what holds the clocks down.

NVML is NVIDIA's own library of the driver; the package nvidia-ml-py, module pynvml, calls it. It is imported only for
a GPU, and every figure that a card or driver does not give is None.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

# Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReasons), their meaning in our words.
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
"""Those that make a GPU slower than its work would have it, power and heat; idle clocks and chosen ones are none."""

ENERGY_LEAST_SECONDS = 2.0
"""The counter moves every 20 to 100 ms, so that over less time an energy would be off by more than 5 %."""


@dataclass(frozen=True)
class GpuReading:
    """One moment; None where the card does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_celsius: int | None
    power_watts: float | None
    clock_event_bits: int | None

    def facts(self) -> dict[str, Any]:
        """As a record holds them."""
        facts = {name: value for name, value in vars(self).items() if name != "clock_event_bits"}
        return {**facts, "clock_events": None if self.clock_event_bits is None else self.clock_events}

    @property
    def clock_events(self) -> list[str]:
        return [name for bit, name in REASONS.items() if (self.clock_event_bits or 0) & bit]


class GpuHealth:
    """One GPU, as NVML knows it. None of the calls waits for work on the device."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> GpuReading:
        nvml = self._nvml
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return GpuReading(
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            temperature_celsius=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            power_watts=None if milliwatts is None else milliwatts / 1e3,
            clock_event_bits=self.clock_event_bits(),
        )

    def clock_event_bits(self) -> int | None:
        # The name until driver 535; newer releases of the package know both.
        older = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        ask = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", older)
        return None if ask is None else self._ask(ask)

    def is_throttled(self) -> bool:
        """Whether power or heat holds the clocks down at this moment."""
        bits = self.clock_event_bits() or 0
        return any(bits & bit for bit in THROTTLING)

    def energy_joules(self) -> float | None:
        """Since the driver was loaded; None on cards before Volta, which do not count it."""
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
            "Clocks, temperature, power and throttling of the GPU are not recorded, since nvidia-ml-py is not "
            "installed; run `pip install nvidia-ml-py`."
        ) from error
    try:
        pynvml.nvmlInit()
        return GpuHealth(pynvml, _handle_of(pynvml, device))
    except (pynvml.NVMLError, LookupError) as error:
        raise NoHealthError(
            f"Clocks, temperature, power and throttling of the GPU are not recorded: {error}; see whether nvidia-smi "
            "lists it."
        ) from error


def _handle_of(nvml: ModuleType, device: torch.device) -> object:
    """By what the card is, never by its number: CUDA_VISIBLE_DEVICES renumbers GPUs for CUDA alone."""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        return nvml.nvmlDeviceGetHandleByUUID(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        raise LookupError(f"torch {torch.__version__} tells neither the UUID nor the PCI bus of {device}")
    domain, number = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    return nvml.nvmlDeviceGetHandleByPciBusId(f"{domain:08X}:{bus:02X}:{number:02X}.0")
