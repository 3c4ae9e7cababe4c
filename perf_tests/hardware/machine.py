"""Facts of the machine: stable ones belong to a record, drifting ones to each of its rows."""

import atexit
import fcntl
import json
import math
import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch

from perf_tests_suite.perf_tests.hardware import bound
from perf_tests_suite.perf_tests.hardware.cores import processor_quota
from perf_tests_suite.perf_tests.hardware.device import (
    control_group_bytes,
    float32_matmul_precision,
    is_kept,
    proc_values,
    total_bytes,
)

# How busy other processes keep the processors, whatever this one does.


class OtherProcesses:
    """Their use of the processors that this process may use, from here on; time stolen by a hypervisor is theirs."""

    WINDOW_SECONDS = 0.5
    """The kernel counts in ticks of 10 ms on each processor: 2 processors are known to .04 cores over this time."""

    def __init__(self) -> None:
        self._readings = deque([(bound.time.perf_counter(), _busy_seconds())], maxlen=256)

    def mark(self) -> None:
        """Begin a stretch of time, which `cores` is asked about at its end."""
        self._readings.append((bound.time.perf_counter(), _busy_seconds()))

    def cores(self) -> float | None:
        """Return their average number since the last mark, or since an earlier one where that is too short to tell.

        None where the kernel counts no time.
        """
        now, busy = bound.time.perf_counter(), _busy_seconds()
        long_ago = (reading for reading in reversed(self._readings) if now - reading[0] >= self.WINDOW_SECONDS)
        start, busy_before = next(long_ago, self._readings[0])
        if busy is None or busy_before is None:
            return None
        return max(0.0, busy - busy_before) / max(now - start, 0.01)


def _busy_seconds() -> float | None:
    """Return the busy seconds of the usable processors since boot, without this process; None where /proc is silent.

    `man proc_stat`: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in user and nice.
    """
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            name, *counts = line.split()
            if name in usable:
                user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
                ticks += user + nice + system + irq + softirq + steal
    except (OSError, ValueError):
        return None
    ours = os.times()  # of its children those that have ended, such as a compiler
    return ticks / os.sysconf("SC_CLK_TCK") - sum(ours[:4]) if ticks else None


class RunsBeside:
    """Tells other runs on this machine, whatever their storage, that this one measures, and finds those that do.

    Each holds the lock of a file of its own in the temporary folder, until its process ends.
    """

    PREFIX = "perf-tests-run-"

    def __init__(self, device: str, where: str) -> None:
        """Enter this run; without such a folder no run sees this one. `where` is what its figures go to."""
        self.seen: dict[int, str] = {}
        """What those found so far write to, by process."""
        self._device, self._file = device, None
        self._last_scan = self._last_seen = -math.inf
        with suppress(OSError):
            self._file = file = tempfile.NamedTemporaryFile("w", prefix=self.PREFIX)  # noqa: SIM115  # until the end
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(file.fileno(), 0o644)  # for other users too
            json.dump({"process": os.getpid(), "device": device, "where": where}, file)
            file.flush()
            atexit.register(self.close)

    def seen_since(self, moment: float) -> bool:
        """Return whether another run measured on this device at or after a moment of `bound.time.monotonic`."""
        self.scan()
        return self._last_seen >= moment

    def scan(self) -> bool:
        """Return whether another run measures on this device now; it is added to `seen`."""
        found, self._last_scan = False, bound.time.monotonic()
        for path in Path(tempfile.gettempdir()).glob(f"{self.PREFIX}*"):
            with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
                content = file.read(4096)
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    run = json.loads(content)
                    if int(run["process"]) != os.getpid() and run["device"] == self._device:
                        self.seen[int(run["process"])], found = str(run["where"])[:200], True
                        self._last_seen = self._last_scan
                    continue
                if content:  # else it is about to be locked
                    path.unlink()
        return found

    def scan_if_due(self) -> None:
        """Scan once a second at most, between rounds: a short run would come and go within a long case."""
        if bound.time.monotonic() - self._last_scan >= 1.0:
            self.scan()

    def close(self) -> None:
        """Measure no longer."""
        if self._file is not None:
            self._file.close()

    def sentences(self) -> list[str]:
        """Say which runs were seen, of all that this one looked for."""
        return [
            f"Process {process} measures on this machine at the same time, into {where}: each run makes the other's "
            "times too long; wait for its end, or measure again."
            for process, where in self.seen.items()
        ]


# The state of an NVIDIA GPU through NVML: clocks, temperature, power, energy, throttling.
#
# NVML is a library of the driver; the package nvidia-ml-py, module pynvml, calls it. It is imported only for a GPU.
# A figure that the card or driver does not report is None.


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
"""Modes by NVML's number (nvml.h, nvmlComputeMode_t)."""

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
            "sm_clock_mhz": self.sm_clock_mhz(),
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

    def throttle_reasons(self) -> list[str]:
        """Return which of power and heat hold the clocks down now, by their names in `REASONS`."""
        bits = self.clock_event_bits() or 0
        return [name for bit, name in REASONS.items() if bits & bit and bit in THROTTLING]

    def sm_clock_mhz(self) -> float | None:
        return self._ask(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)

    def driver_version(self) -> str | None:
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            return None
        return version.decode() if isinstance(version, bytes) else str(version)  # bytes until release 11.5

    def energy_joules(self) -> float | None:
        """Energy since the driver was loaded; None on cards older than Volta."""
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
    """Open the card's health. Raises NoHealthError where there is no package, no driver library or no such GPU.

    The card is found by UUID or bus, never by number: CUDA_VISIBLE_DEVICES renumbers GPUs for CUDA alone.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NoHealthError(
            "Clocks, temperature, power and throttling of the GPU are not recorded, because nvidia-ml-py is "
            "not installed; run `pip install nvidia-ml-py`."
        ) from error
    try:
        pynvml.nvmlInit()
        properties = torch.cuda.get_device_properties(device)
        if uuid := str(getattr(properties, "uuid", None) or ""):
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            return GpuHealth(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        if (bus := getattr(properties, "pci_bus_id", None)) is None:
            raise LookupError(f"torch {torch.__version__} reports neither the UUID nor the PCI bus of {device}")
        domain, number = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        return GpuHealth(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(f"{domain:08X}:{bus:02X}:{number:02X}.0"))
    except (pynvml.NVMLError, LookupError) as error:
        raise NoHealthError(
            f"Clocks, temperature, power and throttling of the GPU are not recorded: {error}; check that "
            "nvidia-smi lists the GPU."
        ) from error


@dataclass
class RoundHealth:
    """State of a GPU over the rounds of one case, asked between rounds; without `health` all facts are None."""

    health: GpuHealth | None
    throttled_rounds: list[int] = field(default_factory=list)
    """Measured rounds, counted from 1, at whose end power or heat held the clocks down."""
    throttle_reasons: Counter[str] = field(default_factory=Counter)
    """The number of them in which each reason held."""
    _sm_clocks_mhz: list[float] = field(default_factory=list)
    _rounds: int = 0
    _start_joules: float | None = None
    _start: float = 0.0

    def begin(self) -> None:
        """Note that the next round is the first measured one."""
        self.throttled_rounds, self.throttle_reasons, self._sm_clocks_mhz, self._rounds = [], Counter(), [], 0
        self._start_joules = None if self.health is None else self.health.energy_joules()
        self._start = bound.time.perf_counter()

    def end_of_round(self) -> None:
        """Call it when a measured round has just ended: the clocks are still those of the round."""
        self._rounds += 1
        if self.health is None:
            return
        if reasons := self.health.throttle_reasons():
            self.throttled_rounds.append(self._rounds)
            self.throttle_reasons.update(reasons)
        if (clock := self.health.sm_clock_mhz()) is not None:
            self._sm_clocks_mhz.append(clock)

    def of_rounds(self) -> "HealthOfRounds":
        """Return what was seen since `begin`; nothing is known without a GPU."""
        if self.health is None:
            return HealthOfRounds()
        start, stop = self._start_joules, self.health.energy_joules()
        seconds, joules = bound.time.perf_counter() - self._start, None
        if start is not None and stop is not None and self._rounds and seconds >= ENERGY_LEAST_SECONDS:
            joules = (stop - start) / self._rounds
        clock = median(self._sm_clocks_mhz) if self._sm_clocks_mhz else None
        return HealthOfRounds(self.throttled_rounds, joules, dict(self.throttle_reasons), clock)


@dataclass(frozen=True)
class HealthOfRounds:
    throttled_rounds: list[int] | None = None
    energy_joules_per_round: float | None = None
    """The set-up of a round included."""
    throttle_reasons: dict[str, int] | None = None
    median_sm_clock_mhz: float | None = None


# Environment variables that change a figure without changing a line of code.
_VARIABLES = (
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "MKL_NUM_THREADS", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX",
)  # fmt: skip
_OF_THE_COMPILER = "TORCHINDUCTOR_"
_WHERE_CODE_IS_KEPT = "TORCHINDUCTOR_CACHE_DIR"
"""Changes no code, and the compiler sets it itself."""


LEAST_CODE_BYTES = 2**20
"""What a compiled model of a few layers takes at least."""


def why_code_cannot_be_kept() -> str | None:
    """Say that torch cannot write to the folder of compiled code, without which it runs nothing; None where it can."""
    folder, cannot = os.environ.get(_WHERE_CODE_IS_KEPT), "cannot be made"
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            cannot = "takes no compiled code"
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(LEAST_CODE_BYTES))
    except OSError as error:
        why = error.strerror or str(error)
        return f"{_WHERE_CODE_IS_KEPT}={folder} {cannot}: {why}; name a folder of yours, or unset it."
    return None


def stable_facts(device: torch.device, threads: int) -> dict[str, Any]:
    """Hardware, build and flags: two runs are comparable only if all of this is equal."""
    return {
        "device": device.type,
        "gpu": _gpu_facts(device) if device.type == "cuda" else None,
        "memory_gib": round(total_bytes() / 2**30),
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "threads": threads,
        "keeps_freed_memory": is_kept() if device.type == "cpu" else None,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name in _VARIABLES or (name.startswith(_OF_THE_COMPILER) and name != _WHERE_CODE_IS_KEPT)
        },
    }


def _gpu_facts(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    driver = _driver_version()
    try:
        health = open_gpu_health(device)
        limits, driver = health.limits(), driver or health.driver_version()
    except NoHealthError:
        limits = {}
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": driver,
        "cudnn": torch.backends.cudnn.version(),
        **limits,
    }


def _driver_version() -> str | None:
    """The NVIDIA driver's version from its kernel module; None where a virtual machine hides that file."""
    try:
        with open("/proc/driver/nvidia/version") as lines:
            return next(lines).split("Kernel Module")[1].split()[0]
    except (OSError, StopIteration, IndexError):
        return None


def conditions() -> dict[str, Any]:
    """What torch computes by, as it is set now, and any code of this process can set."""
    return {
        "float32_matmul_precision": float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def drifting_facts(device: torch.device, health: GpuHealth | None = None) -> dict[str, Any]:
    """Clock rates and load now, or the state of a GPU, and what the host grants; None for what is not reported."""
    if device.type == "cuda":
        return {"sm_clock_mhz": None, **({} if health is None else health.facts()), **granted_by_host()}
    one_minute_load, _, _ = os.getloadavg()
    clocks = [float(value) for value in proc_values("cpuinfo", "cpu MHz")]
    return {"cpu_clock_mhz": max(clocks, default=None), "load_average_1min": one_minute_load, **granted_by_host()}


def granted_by_host() -> dict[str, Any]:
    """What nobody expects to change during a run: processors, limits of the control group, time itself.

    Suspension adds to CLOCK_BOOTTIME and not to CLOCK_MONOTONIC, the clock of the rounds. Setting the date moves
    CLOCK_REALTIME alone; the small corrections of a time server move all three.
    """
    date, boot, monotonic = map(time.clock_gettime, (time.CLOCK_REALTIME, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC))
    return {
        "usable_processors": len(os.sched_getaffinity(0)),
        "processor_quota": processor_quota(),
        "memory_limit_bytes": (control_group_bytes() or (None,))[0],
        "booted_unix_seconds": round(date - boot, 3),
        "suspended_seconds": round(boot - monotonic, 3),
    }


_IMPORTED = time.clock_gettime(time.CLOCK_BOOTTIME)


def seconds_since_process_start() -> float:
    """Age of this process, the interpreter's start included (proc(5), /proc/pid/stat, field 22); else since import."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - _IMPORTED
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
