"""The machine's ceiling for matrix products, measured, so that a figure can be said to be some share of it."""

import time

import torch

from model.precision import Precision
from perf_tests.instruments.device import Device

# Large enough to be bound by arithmetic: 0.1 s on a 0.2 TFLOP/s CPU, 20 ms on a 50 TFLOP/s GPU.
_WIDTH = {"cpu": 2048, "cuda": 8192}
_ROUNDS = 10


def matmul_flops_per_second(precision: Precision, device: Device) -> float:
    """The best of a few square products in the dtype that `precision` multiplies in.

    The best, since everything that disturbs a product makes it slower. Leaves the process's TF32 mode as `precision`
    sets it.
    """
    precision.apply()
    width = _WIDTH[device.torch_device.type]
    dtype = precision.autocast_dtype or torch.float32
    left, right = (torch.randn(width, width, device=device.torch_device).to(dtype) for _ in range(2))
    best_seconds = float("inf")
    for _ in range(_ROUNDS):
        device.synchronize()
        start = time.perf_counter()
        torch.mm(left, right)
        device.synchronize()
        best_seconds = min(best_seconds, time.perf_counter() - start)
    return 2 * width**3 / best_seconds
