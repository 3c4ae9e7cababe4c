"""One interface to a CPU and a GPU: synchronisation, events, memory."""

import ctypes
import gc
import math
import mmap
import os
import resource
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.torch_private import (
    clear_cublas_workspaces,
    compiler_counters,
    cuda_graphs_may_be_recorded,
    generated_kernels,
    spin_cuda,
)

# What the error of a device says: memory ran out, or a kernel needs more than the device has.


_OUT_OF_MEMORY = (
    "can't allocate memory",  # PyTorch on a CPU
    "std::bad_alloc",
    "CUDA out of memory",  # PyTorch's allocator
    "NVML_SUCCESS == ",  # the same, where NVML refuses to list processes, as in a MIG slice (pytorch/pytorch#112377)
    "CUDA error: out of memory",  # the rest need memory beside it: the runtime for kernels that it loads late
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",  # since cuDNN 9, and in its frontend's errors
)

_BEYOND_DEVICE = ("out of resource: ",)
"""Triton's; what follows is, for example, "shared memory, Required: 327680, Hardware limit: 232448"."""

_NEEDS_GPU = (
    "0 active drivers",  # Triton's, without a GPU
    "(cpu tensor?)",  # Triton's, of tensors on the host
    "not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on the GPU or, through the limited address space, on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _telling_line(error, _OUT_OF_MEMORY) is not None


def is_beyond_device(error: BaseException) -> bool:
    """Whether a kernel needs more of a fixed resource, such as shared memory, than any launch on this device gets."""
    return _telling_line(error, _BEYOND_DEVICE) is not None


def needs_gpu(error: BaseException) -> bool:
    """Whether a kernel was called on a CPU that runs on GPUs alone."""
    return _telling_line(error, _NEEDS_GPU) is not None


def error_text(error: BaseException) -> str:
    """The line that says what happened: errors of a compiler begin with others."""
    lines = str(error).splitlines()
    return _telling_line(error, (*_OUT_OF_MEMORY, *_BEYOND_DEVICE)) or (lines[0] if lines else type(error).__name__)


def _telling_line(error: BaseException, texts: tuple[str, ...]) -> str | None:
    return next((line for line in str(error).splitlines() if any(text in line for text in texts)), None)


# The memory of the host: how much is free, and a cap that makes running out an error instead of a kill.


def available_bytes() -> int:
    """What this process could still take: the free memory of the machine or its control group, whichever is less."""
    free, group = _meminfo_bytes("MemAvailable"), control_group_bytes()
    return free if group is None else min(free, group[0] - group[1])


def total_bytes() -> int:
    return _meminfo_bytes("MemTotal")


def cap_address_space(budget_bytes: int) -> None:
    """Let this process grow by at most `budget_bytes`; a larger allocation raises instead of getting it killed."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # no /proc, as `why_less_is_known` says
        return
    limit = pages * resource.getpagesize() + budget_bytes
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def uncap_address_space() -> None:
    """Let this process grow again as far as the system lets it."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


def proc_values(file: str, name: str) -> list[str]:
    """The value of each line `name: value` in a file of /proc; empty where there is none."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for found, _, value in pairs if found.strip() == name]


def _meminfo_bytes(name: str) -> int:
    for value in proc_values("meminfo", name):
        return int(value.split()[0]) * 1024
    # The C library asks the kernel itself, which counts what caches hold as taken (sysconf(3)).
    pages = os.sysconf("SC_AVPHYS_PAGES" if name == "MemAvailable" else "SC_PHYS_PAGES")
    return pages * resource.getpagesize()


def why_less_is_known() -> str | None:
    """Say what a machine without /proc does not tell; None where it is there."""
    if os.path.exists("/proc/self/stat"):
        return None
    return (
        "There is no /proc here: other_cores and clock rates are null, CPU times of several threads are as of the "
        "kernel's last tick, and a case that needs more memory than there is may be killed instead of ending in time."
    )


def control_group_bytes() -> tuple[int, int] | None:
    """The control group's limit and what is used of it (version 2, then 1); None where there is no limit."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = Path("/sys/fs/cgroup", limit_name).read_text().strip()
            used = Path("/sys/fs/cgroup", used_name).read_text().strip()
        except OSError:
            continue
        if limit.isdecimal():
            return int(limit), int(used)
    return None


# The heap of this process, made to keep freed memory as a GPU's caching allocator does.
#
# Each round then finds the memory of the round before, and no figure depends on what ran earlier. This needs glibc;
# under another C library the heap stays as it is, and records say so.


# malloc.h; the numbers are part of glibc's binary interface.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_NEVER = -1
_LARGEST_ARGUMENT = 2**31 - 1

KEPT_BLOCKS_IN_BUDGET = 64
"""The budget holds this many of the largest kept blocks, so that a few free gaps cost no case its memory."""

_largest_kept_bytes = 0
_heap_bytes_with_room = 0


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def keep_freed_memory(budget_bytes: int) -> None:
    """Let large blocks come from the heap like small ones from here on; the heap never shrinks by itself.

    By default glibc maps each block above 32 MiB anew, at the cost of thousands of page faults, and gives back the free
    end of the heap (mallopt(3)). It still maps blocks above a 64th of the budget, rounded down to a power of 2.
    """
    global _largest_kept_bytes
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Shifts bind from the left: (1 << bits) >> 1 is the power of 2 at or below.
    largest = min(1 << (budget_bytes // KEPT_BLOCKS_IN_BUDGET).bit_length() >> 1, _LARGEST_ARGUMENT)
    if mallopt and mallopt(_M_MMAP_THRESHOLD, largest) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        _largest_kept_bytes = largest


def is_kept() -> bool:
    """Whether this process keeps freed memory."""
    return _largest_kept_bytes > 0


def make_room() -> None:
    """Take as many pages ahead as the heap has grown since the last call, up to the largest kept block.

    Before 2.39, the place of a freed aligned block can be a few bytes short of the next one of its size
    (sourceware.org/bugzilla, 30723), so that the heap sometimes grows in the middle of a later round.
    """
    global _heap_bytes_with_room
    libc = ctypes.CDLL(None)
    mallinfo2 = getattr(libc, "mallinfo2", None)
    if mallinfo2 is None or not is_kept():
        return
    mallinfo2.restype = _Mallinfo2
    heap = mallinfo2()
    grown_bytes = heap.arena - _heap_bytes_with_room
    if grown_bytes <= 0:
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    # Raised for this one block, so that it comes from the heap and not from a map of its own.
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_ARGUMENT)
    # Beyond the free end of the heap, or the block would be cut from existing pages.
    size = heap.keepcost + min(grown_bytes, _largest_kept_bytes)
    block = libc.malloc(size)
    if block is not None:  # else the memory budget is spent
        ctypes.memset(block, 0, size)
        libc.free(block)
    libc.mallopt(_M_MMAP_THRESHOLD, _largest_kept_bytes)
    _heap_bytes_with_room = mallinfo2().arena


def give_back() -> None:
    """Return all unused pages to the kernel (malloc_trim(3))."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


# ruff: noqa: B027 -- Device's empty methods are defaults, right where there is no queue of work


HIGHEST_HERTZ = 3e9
"""The highest clock of a multiprocessor, so that a count of cycles takes at least its time on any GPU."""

ELEMENTS_PER_THREAD = 32768
"""The fewest that PyTorch gives a thread of an elementwise operator (`GRAIN_SIZE` in ATen/TensorIterator.h)."""


class Event(Protocol):
    """A point in the device's queue of work."""

    def seconds_until(self, later: "Event") -> float: ...

    def is_done(self) -> bool: ...


class Device(ABC):
    """What the clock and the suite ask of the machine that computes; the defaults suit one without a queue of work."""

    kept_free_bytes = 0
    """Memory that `available_bytes` leaves to libraries."""
    warm_up_seconds = 0.0
    """How long it must work before its clock rates are those under load."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    def synchronize(self) -> None:
        """Return when all work issued so far is done."""

    def record_event(self) -> Event | None:
        """Mark this point of the queue; None where the device has no clock of its own."""
        return None

    def hold(self, seconds: float) -> None:
        """Make work issued from here on wait in the queue for at least this long, while the host goes on issuing."""

    def is_alive(self) -> bool:
        """False once an error has left the device unusable for this process."""
        return True

    @abstractmethod
    def available_bytes(self) -> int:
        """Memory that this process could still take."""

    def memory_state(self) -> str:
        """What is free and used now; empty where error messages and the system tell it."""
        return ""

    @abstractmethod
    def limit_memory(self, budget_bytes: int) -> None:
        """Make an allocation beyond the budget fail as an error that can be caught."""

    def release_memory(self) -> None:
        """Give back cached memory and what libraries keep."""

    def make_room(self) -> None:
        """Make sure, after the warm-up, that no later round waits for memory."""

    def start_peaks(self) -> None:
        """Count peaks from here on."""

    def allocated_bytes(self) -> int | None:
        return None

    def peaks(self) -> tuple[int | None, int | None, int | None]:
        """Return allocated bytes, those asked for, which the allocator's blocks are larger than, and reserved ones."""
        return None, None, None


def open_device(torch_device: torch.device) -> Device:
    return CudaDevice(torch_device) if torch_device.type == "cuda" else CpuDevice(torch_device)


class CpuDevice(Device):
    """Work is done when the call returns, so there is nothing to wait for and no second clock.

    Memory is never released: the next case must find its pages as warm as this one did.
    """

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        keep_freed_memory(self.available_bytes())

    def available_bytes(self) -> int:
        return available_bytes()

    def limit_memory(self, budget_bytes: int) -> None:
        # OpenMP's threads now: it ends the process where the limit leaves no room for the stack of one.
        torch.zeros(torch.get_num_threads() * ELEMENTS_PER_THREAD, dtype=torch.int8).add_(1)
        cap_address_space(budget_bytes)
        keep_freed_memory(budget_bytes)

    def make_room(self) -> None:
        make_room()


class CudaEvent:
    """A timing event on the current stream."""

    def __init__(self, kind: type[torch.cuda.Event]) -> None:
        self.event = kind(enable_timing=True)
        self.event.record()

    def seconds_until(self, later: Event) -> float:
        assert isinstance(later, CudaEvent)
        return float(self.event.elapsed_time(later.event)) / 1e3

    def is_done(self) -> bool:
        return self.event.query()


class CudaDevice(Device):
    """An NVIDIA GPU under PyTorch's caching allocator, which finds its freed blocks again and needs no room made."""

    kept_free_bytes = 2 * 2**30
    """Libraries allocate handles, workspaces and kernels that they load late beside the caching allocator."""
    warm_up_seconds = 0.3
    """Idle, an H200 runs at 345 MHz, under load at 1980, and the ramp takes some tenths of a second."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        torch.cuda.set_device(torch_device)
        # Bound here, before code of the user's is imported, which may replace them.
        self._wait, self._kind_of_event = torch.cuda.synchronize, torch.cuda.Event

    def synchronize(self) -> None:
        self._wait(self.torch_device)

    def record_event(self) -> Event | None:
        return CudaEvent(self._kind_of_event)

    def hold(self, seconds: float) -> None:
        spin_cuda(round(seconds * HIGHEST_HERTZ))

    def is_alive(self) -> bool:
        try:
            torch.zeros(1, device=self.torch_device).add_(1).item()
        except RuntimeError as error:
            return is_out_of_memory(error)
        return True

    def available_bytes(self) -> int:
        free_bytes, _ = torch.cuda.mem_get_info(self.torch_device)
        return max(0, free_bytes - self.kept_free_bytes)

    def memory_state(self) -> str:
        free, total = (count / 2**30 for count in torch.cuda.mem_get_info(self.torch_device))
        name = torch.cuda.get_device_name(self.torch_device)
        return f"{name} has {total:.1f} GiB: {free:.1f} GiB free, {total - free:.1f} GiB used"

    def limit_memory(self, budget_bytes: int) -> None:
        total_bytes = torch.cuda.get_device_properties(self.torch_device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(budget_bytes / total_bytes, 1.0), self.torch_device)

    def release_memory(self) -> None:
        clear_cublas_workspaces()
        torch.cuda.empty_cache()

    def start_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def allocated_bytes(self) -> int | None:
        return torch.cuda.memory_allocated(self.torch_device)

    def peaks(self) -> tuple[int | None, int | None, int | None]:
        asked_for = int(torch.cuda.memory_stats(self.torch_device)["requested_bytes.all.peak"])
        reserved = torch.cuda.max_memory_reserved(self.torch_device)
        return torch.cuda.max_memory_allocated(self.torch_device), asked_for, reserved


# How float32 products are computed, which torch can be told in two ways.


MIXED_PRECISION = "set in two ways"


def float32_matmul_precision() -> str:
    """Return torch's setting; MIXED_PRECISION where code set `torch.backends.cuda.matmul.fp32_precision` beside it.

    Torch then refuses to tell, and products run in TF32 under whatever name.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return MIXED_PRECISION


# Flushing the last-level cache, so that what is timed next reads its inputs from memory.


TIMES_THE_CACHE = 2
"""A cache replaces its oldest lines only approximately."""

UNKNOWN_CACHE_BYTES = 256 * 2**20
"""Assumed where Linux does not list a CPU's caches."""

SEGMENT_BYTES = 2 * 2**20
"""CUDA's caching allocator takes large blocks from the driver in multiples of this."""


class CacheFlush:
    """A writer of a buffer of `bytes`, twice the last-level cache, which it holds while it lives."""

    def __init__(self, device: torch.device) -> None:
        segments = -(-TIMES_THE_CACHE * last_level_cache_bytes(device) // SEGMENT_BYTES)
        self.bytes = segments * SEGMENT_BYTES
        self._buffer = torch.zeros(self.bytes, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Call it without a wait for the device."""
        self._buffer.add_(1)  # reads too, because a CPU's stores of this size may bypass its caches


def last_level_cache_bytes(device: torch.device) -> int:
    """A GPU's L2; of a CPU all last-level caches of the processors that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return listed_cache_bytes(Path("/sys/devices/system/cpu")) or UNKNOWN_CACHE_BYTES


def listed_cache_bytes(processors: Path) -> int:
    """The sum over the caches of the highest level that Linux lists in this folder; 0 where it lists none."""
    levels: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for number in os.sched_getaffinity(0):
        for cache in processors.glob(f"cpu{number}/cache/index*"):
            with suppress(OSError, ValueError):
                level, size, shared_by = ((cache / name).read_text() for name in ("level", "size", "shared_cpu_list"))
                levels[int(level)][shared_by] = int(size.strip().removesuffix("K")) * 1024
    return sum(levels[max(levels)].values()) if levels else 0


# Page faults of this process: how many so far, and the cost of one on this machine.


CALIBRATION_BYTES = 8 << 20
CALIBRATIONS = 5


def page_faults() -> int:
    """Minor page faults since the process began (getrusage(2), ru_minflt)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def system_seconds() -> float:
    """CPU time of the kernel for all threads of this process since it began (getrusage(2), ru_stime)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def seconds_per_page_fault() -> float:
    """CPU time of one fault, clearing the page included: first touch of fresh pages minus a second touch.

    The minimum of a few runs, so that a neighbour on the core does not count.
    """
    least, ones = math.inf, b"\x01" * (CALIBRATION_BYTES // mmap.PAGESIZE)
    for _ in range(CALIBRATIONS):
        with mmap.mmap(-1, CALIBRATION_BYTES) as memory:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            before, start = page_faults(), time.process_time()
            memory[:: mmap.PAGESIZE] = ones
            faults, touched = page_faults() - before, time.process_time()
            memory[:: mmap.PAGESIZE] = ones
            again_seconds = time.process_time() - touched
        least = min(least, max(0.0, touched - start - again_seconds) / max(1, faults))
    return least


# What torch.compile did in this process so far, and where a round of its CUDA graphs begins.


def begin_round() -> None:
    """Call it before each round: CUDA graphs may now overwrite what they returned in the last one.

    Without it a forward pass whose backward pass never runs would record another graph in every round.
    """
    if cuda_graphs_may_be_recorded():
        torch.compiler.cudagraph_mark_step_begin()


def count_compilations() -> Counter[str]:
    """Count what was compiled since the process began; subtract two of them.

    `graphs`, `generated_kernels` by Inductor, its `library_calls`, which are products and what fell back to PyTorch's
    own kernels, `cache_hits`, `cache_misses` and `cudagraph_skips`. A graph from the cache counts as a new one.
    """
    counters = compiler_counters()
    if counters is None:
        return Counter()
    return Counter(
        graphs=counters["stats"]["unique_graphs"],
        generated_kernels=generated_kernels(),
        library_calls=counters["inductor"]["extern_calls"],
        cache_hits=counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        cache_misses=counters["inductor"]["fxgraph_cache_miss"],
        cudagraph_skips=counters["inductor"]["cudagraph_skips"],
    )


def cache_state(compilations: Counter[str]) -> str | None:
    """`cold` if anything was generated, `warm` if the disk cache had it all, None if nothing was compiled."""
    if compilations["cache_misses"]:
        return "cold"
    return "warm" if compilations["cache_hits"] else None


# Which kernel torch.nn.functional.scaled_dot_product_attention uses for given inputs; PyTorch does not report it.


# From the kernel's name in the dispatcher to the backend's in torch.nn.attention.SDPBackend.
_BACKEND_OF_OPERATOR = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_scaled_dot_product_attention_math": "math",
}


def sdpa_backend(
    attention: AttentionFunction, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, records_graph: bool
) -> str | None:
    """The backend of `attention` for inputs of one shape and dtype, found by calling it; None if no known one ran.

    `records_graph` matters, because some kernels have no backward pass.
    """
    q, k, v = (torch.zeros(shape, dtype=dtype, device=device, requires_grad=records_graph) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(q, k, v)
    seen = (_BACKEND_OF_OPERATOR.get(event.key) for event in profiler.key_averages())
    return next(filter(None, seen), None)


# Python's garbage collector, kept out of what is measured: when it runs depends on what ran before.


@contextmanager
def no_collections() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
