"""Frozen kernels that no change of the code under test can affect: if they change, the machine did."""

from collections.abc import Callable

import torch

_WIDTH = 384
_COPY_FLOATS = 4 << 20
_STEPS = 60_000


def sentinels(device: torch.device) -> dict[str, Callable[[], object]]:
    """By their bound: arithmetic, memory, interpreter. Each takes a few milliseconds on a CPU."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_WIDTH, _WIDTH, generator=generator).to(device) for _ in range(2))
    source = torch.zeros(_COPY_FLOATS, device=device)
    target = torch.zeros_like(source)
    return {
        "arithmetic": lambda: torch.mm(left, right),
        "memory": lambda: target.copy_(source),
        "interpreter": _count_in_python,
    }


def _count_in_python() -> int:
    total = 0
    for step in range(_STEPS):
        total += step & 7
    return total
