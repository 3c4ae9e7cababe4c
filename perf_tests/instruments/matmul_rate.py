"""The machine's ceilings, measured: rates of matrix products and of memory traffic."""

import time
from collections.abc import Callable

import torch

from model.precision import Precision
from perf_tests.instruments.device import Device

# Large enough to be compute-bound: 0.1 s on a 0.2 TFLOP/s CPU, 20 ms on a 50 TFLOP/s GPU.
_WIDTH = {"cpu": 2048, "cuda": 8192}
_ROUNDS = 10

# Each of three arrays; larger than any last-level cache that one process has for itself.
_ARRAY_BYTES = {"cpu": 2**28, "cuda": 2**30}


def matmul_flops_per_second(precision: Precision, device: Device) -> float:
    """The best of a few square products in the dtype that `precision` multiplies in; disturbances only slow them down.

    Leaves the process in the TF32 mode of `precision`.
    """
    precision.apply()
    width = _WIDTH[device.torch_device.type]
    dtype = precision.autocast_dtype or torch.float32
    left, right = (torch.randn(width, width, device=device.torch_device).to(dtype) for _ in range(2))
    return 2 * width**3 / best_seconds(lambda: torch.mm(left, right), device)


def memory_bytes_per_second(device: Device) -> float:
    """The best of a few sums of two arrays into a third: two reads and a write, as STREAM counts."""
    elements = _ARRAY_BYTES[device.torch_device.type] // 4
    left, right, out = (torch.ones(elements, device=device.torch_device) for _ in range(3))
    return 3 * 4 * elements / best_seconds(lambda: torch.add(left, right, out=out), device)


def best_seconds(work: Callable[[], object], device: Device) -> float:
    """The fastest of a few synchronised calls; the first warms up."""
    best = float("inf")
    for _ in range(_ROUNDS + 1):
        device.synchronize()
        start = time.perf_counter()
        work()
        device.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
