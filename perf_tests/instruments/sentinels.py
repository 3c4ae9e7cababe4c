"""Frozen kernels that no change of the code under test can affect: if they change, the machine did."""

import time
from collections.abc import Callable
from statistics import median

import torch

from model.precision import PRECISIONS
from perf_tests.instruments.device import Device

_WIDTH = {"cpu": 384, "cuda": 4096}
"""Of the square product: milliseconds on either."""
_COPY_BYTES = {"cpu": 2**24, "cuda": 2**30}
"""Far more than any cache of a GPU."""
_STEPS = 60_000
_PRODUCTS = 7
"""Of which the median is taken: some milliseconds together."""


def sentinel_bytes(device: torch.device) -> int:
    """What the sentinels hold, with the product that one of them makes; nothing to speak of on a CPU."""
    if device.type == "cpu":
        return 0
    return 3 * 4 * _WIDTH[device.type] ** 2 + 2 * _COPY_BYTES[device.type]


def sentinels(device: torch.device) -> dict[str, Callable[[], object]]:
    """By their bound: arithmetic, memory, interpreter. Each takes a few milliseconds."""
    source = torch.zeros(_COPY_BYTES[device.type] // 4, device=device)
    target = torch.zeros_like(source)
    return {
        "arithmetic": _product(device), "memory": lambda: target.copy_(source), "interpreter": _count_in_python
    }  # fmt: skip


def _product(device: torch.device) -> Callable[[], object]:
    generator, width = torch.Generator().manual_seed(0), _WIDTH[device.type]
    left, right = (torch.randn(width, width, generator=generator).to(device) for _ in range(2))

    def product() -> None:
        PRECISIONS["fp32"].apply()  # the case before may have left TF32 on
        torch.mm(left, right)

    return product


def product_seconds(device: Device) -> float:
    """The arithmetic sentinel's product, which an ordinary run times around each case; its memory is given back."""
    product = _product(device.torch_device)
    product()
    seconds = []
    for _ in range(_PRODUCTS):
        device.synchronize()
        start = time.perf_counter()
        product()
        device.synchronize()
        seconds.append(time.perf_counter() - start)
    del product
    device.release_memory()
    return median(seconds)


def _count_in_python() -> int:
    total = 0
    for step in range(_STEPS):
        total += step & 7
    return total
