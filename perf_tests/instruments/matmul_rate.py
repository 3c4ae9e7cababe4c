"""The machine's ceilings, measured: rates of matrix products and of memory traffic."""

import math
import time
from collections.abc import Callable
from statistics import median

import torch

from model.precision import Precision
from perf_tests.instruments.device import Device
from perf_tests.limits.ceilings import Rate

# Large enough to be compute-bound: 0.1 s on a 0.2 TFLOP/s CPU, 20 ms on a 50 TFLOP/s GPU.
_WIDTH = {"cpu": 2048, "cuda": 8192}
_ROUNDS = 10

# Each of three arrays; larger than any last-level cache that one process has for itself.
_ARRAY_BYTES = {"cpu": 2**28, "cuda": 2**30}

_CALLS_PER_BATCH = 4
"""Between two events, because the first one is recorded before the first call is launched."""

LOAD_SECONDS = 0.3
"""Of work before the sustained rate: until then a GPU may run above the clocks that its power allows."""


def matmul_rate(precision: Precision, device: Device, enough: float = math.inf) -> Rate:
    """FLOP/s of large square products in the dtype that `precision` multiplies in.

    Leaves the process in the TF32 mode of `precision`. A CPU stops at the first product that reaches `enough`.
    """
    precision.apply()
    width = _WIDTH[device.torch_device.type]
    dtype = precision.autocast_dtype or torch.float32
    left, right = (torch.randn(width, width, device=device.torch_device).to(dtype) for _ in range(2))
    return rate_of(lambda: torch.mm(left, right), 2 * width**3, device, enough)


def memory_rate(device: Device) -> Rate:
    """Bytes/s of sums of two arrays into a third: two reads and a write, as STREAM counts."""
    elements = _ARRAY_BYTES[device.torch_device.type] // 4
    left, right, out = (torch.ones(elements, device=device.torch_device) for _ in range(3))
    return rate_of(lambda: torch.add(left, right, out=out), 3 * 4 * elements, device)


def strided_rate(device: Device) -> Rate:
    """Elements/s of the difference of a matrix and a column, which is broadcast."""
    elements = _ARRAY_BYTES[device.torch_device.type] // 4
    matrix, out = (torch.ones(elements // 4096, 4096, device=device.torch_device) for _ in range(2))
    column = matrix[:, :1].clone()
    return rate_of(lambda: torch.sub(matrix, column, out=out), elements, device)


def rate_of(work: Callable[[], object], amount: int, device: Device, enough: float = math.inf) -> Rate:
    """`amount` over the seconds of one call; on a device without events both rates are that of the fastest call."""
    if device.record_event() is None:
        best = amount / _fastest_call_seconds(work, device, amount / enough)
        return Rate(best, best)
    first = [_batch_seconds(work, device) for _ in range(_ROUNDS)]
    loaded = _CALLS_PER_BATCH * sum(first)
    while loaded < LOAD_SECONDS:
        loaded += _CALLS_PER_BATCH * _batch_seconds(work, device)
    later = [_batch_seconds(work, device) for _ in range(_ROUNDS)]
    return Rate(burst=amount / min(*first, *later), sustained=amount / median(later))


def _batch_seconds(work: Callable[[], object], device: Device) -> float:
    """Device seconds of one call among several."""
    start = device.record_event()
    for _ in range(_CALLS_PER_BATCH):
        work()
    end = device.record_event()
    device.synchronize()
    assert start is not None
    assert end is not None
    return start.seconds_until(end) / _CALLS_PER_BATCH


def _fastest_call_seconds(work: Callable[[], object], device: Device, fast_enough_seconds: float) -> float:
    """Of a few synchronised calls; the first warms up. Disturbances only slow them down."""
    best = float("inf")
    for _ in range(_ROUNDS + 1):
        device.synchronize()
        start = time.perf_counter()
        work()
        device.synchronize()
        best = min(best, time.perf_counter() - start)
        if best <= fast_enough_seconds:
            break
    return best
