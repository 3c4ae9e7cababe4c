"""One interface to a CPU and a GPU: synchronisation, events, memory."""
# ruff: noqa: B027 -- Device's empty methods are defaults, right where there is no queue of work

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from perf_tests.instruments import heap, host_memory
from perf_tests.instruments.device_errors import is_out_of_memory
from perf_tests.instruments.torch_private import clear_cublas_workspaces, spin_cuda

HIGHEST_HERTZ = 3e9
"""Of a multiprocessor, so that a count of cycles takes at least its time on any GPU."""

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

    def memory_in_words(self) -> str:
        """What is free and used now; empty where error messages and the system tell it."""
        return ""

    @abstractmethod
    def limit_memory(self, budget_bytes: int) -> None:
        """Make an allocation beyond the budget fail as an error that can be caught."""

    def release_memory(self) -> None:
        """Give back cached memory and what libraries keep."""

    def make_room(self) -> None:
        """After the warm-up: make sure that no later round waits for memory."""

    def start_peaks(self) -> None:
        """Count peaks from here on."""

    def allocated_bytes(self) -> int | None:
        return None

    def peak_allocated_bytes(self) -> int | None:
        return None

    def peak_reserved_bytes(self) -> int | None:
        return None


def open_device(torch_device: torch.device) -> Device:
    return CudaDevice(torch_device) if torch_device.type == "cuda" else CpuDevice(torch_device)


class CpuDevice(Device):
    """Work is done when the call returns, so there is nothing to wait for and no second clock.

    Memory is never released: the next case must find its pages as warm as this one did.
    """

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        heap.keep_freed_memory(self.available_bytes())

    def available_bytes(self) -> int:
        return host_memory.available_bytes()

    def limit_memory(self, budget_bytes: int) -> None:
        _start_threads()
        host_memory.cap_address_space(budget_bytes)
        heap.keep_freed_memory(budget_bytes)

    def make_room(self) -> None:
        heap.make_room()


def _start_threads() -> None:
    """Of OpenMP, which ends the process where the limit leaves no room for the stack of one."""
    torch.zeros(torch.get_num_threads() * ELEMENTS_PER_THREAD, dtype=torch.int8).add_(1)


class CudaEvent:
    """A timing event on the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
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

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def record_event(self) -> Event | None:
        return CudaEvent()

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

    def memory_in_words(self) -> str:
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

    def peak_allocated_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.torch_device)

    def peak_reserved_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.torch_device)
