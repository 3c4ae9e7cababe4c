"""Facts of the machine: stable ones belong to a record, drifting ones to each of its rows."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from perf_tests.instruments import heap, host_memory
from perf_tests.instruments.cores import processor_quota
from perf_tests.instruments.gpu_health import GpuHealth, NoHealthError, open_gpu_health

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


def stable_facts(device: torch.device, threads: int) -> dict[str, Any]:
    """Hardware, build and flags: two runs are comparable only if all of this is equal."""
    return {
        "device": device.type,
        "gpu": _gpu_facts(device) if device.type == "cuda" else None,
        "memory_gib": round(host_memory.total_bytes() / 2**30),
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "threads": threads,
        "keeps_freed_memory": heap.is_kept() if device.type == "cpu" else None,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: value for name, value in os.environ.items() if _changes_figures(name)},
    }


def _changes_figures(variable: str) -> bool:
    return variable in _VARIABLES or (variable.startswith(_OF_THE_COMPILER) and variable != _WHERE_CODE_IS_KEPT)


def _gpu_facts(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    try:
        limits = open_gpu_health(device).limits()
    except NoHealthError:
        limits = {}
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver_version(),
        "cudnn": torch.backends.cudnn.version(),
        **limits,
    }


def _driver_version() -> str | None:
    """The NVIDIA driver's version from its kernel module; None where it has none."""
    try:
        with open("/proc/driver/nvidia/version") as lines:
            return next(lines).split("Kernel Module")[1].split()[0]
    except (OSError, StopIteration, IndexError):
        return None


def drifting_facts(device: torch.device, health: GpuHealth | None = None) -> dict[str, Any]:
    """Clock rates and load now, or the state of a GPU, and what the host grants; None for what is not reported."""
    if device.type == "cuda":
        return {"sm_clock_mhz": None, **({} if health is None else health.facts()), **granted_by_host()}
    one_minute_load, _, _ = os.getloadavg()
    clocks = [float(value) for value in host_memory.proc_values("cpuinfo", "cpu MHz")]
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
        "memory_limit_bytes": host_memory.control_group_limit_bytes(),
        "booted_unix_seconds": round(date - boot, 3),
        "suspended_seconds": round(boot - monotonic, 3),
    }


def seconds_since_process_start() -> float:
    """Age of this process, the interpreter's start included (proc(5), /proc/pid/stat, field 22)."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
