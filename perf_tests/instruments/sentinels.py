"""Frozen kernels that no change of the code under test can affect: if they change, the machine did."""

from collections.abc import Callable

import torch

from model.precision import PRECISIONS

_WIDTH = {"cpu": 384, "cuda": 4096}
"""Of the square product: milliseconds on either."""
_COPY_BYTES = {"cpu": 2**24, "cuda": 2**30}
"""Far more than any cache of a GPU."""
_STEPS = 60_000


def sentinel_bytes(device: torch.device) -> int:
    """What the sentinels hold, with the product that one of them makes; nothing to speak of on a CPU."""
    if device.type == "cpu":
        return 0
    return 3 * 4 * _WIDTH[device.type] ** 2 + 2 * _COPY_BYTES[device.type]


def sentinels(device: torch.device) -> dict[str, Callable[[], object]]:
    """By their bound: arithmetic, memory, interpreter. Each takes a few milliseconds."""
    generator, width = torch.Generator().manual_seed(0), _WIDTH[device.type]
    left, right = (torch.randn(width, width, generator=generator).to(device) for _ in range(2))
    source = torch.zeros(_COPY_BYTES[device.type] // 4, device=device)
    target = torch.zeros_like(source)

    def product() -> None:
        PRECISIONS["fp32"].apply()  # the case before may have left TF32 on
        torch.mm(left, right)

    return {"arithmetic": product, "memory": lambda: target.copy_(source), "interpreter": _count_in_python}


def _count_in_python() -> int:
    total = 0
    for step in range(_STEPS):
        total += step & 7
    return total
