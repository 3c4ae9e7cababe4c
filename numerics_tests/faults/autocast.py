"""Faults in the region: its casts, its cache, the state that it leaves."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from numerics_tests.claims import Fault


def never_disabled(device: str, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=dtype)


def always_bfloat16(device: str, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)


def without_cache(device: str, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)


def switched_off(device: str, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=dtype, enabled=False)


@contextmanager
def without_cleaning_up(device: str, dtype: torch.dtype, enabled: bool = True) -> Iterator[None]:
    """Restores the earlier state only without an error."""
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, enabled)
    yield
    torch.set_autocast_enabled(device, before)


def casts_every_op(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    return call(*(operand.to(low) for operand in operands))


def casts_nothing(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    return call(*operands)


def casts_the_result(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    return call(*operands).to(low)


def casts_twice(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    """Through the other 16-bit format on the way."""
    other = torch.float16 if low == torch.bfloat16 else torch.bfloat16
    return call(*(operand.to(other).to(low) for operand in operands))


def detached_weight(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    """The cached cast was made under no_grad: the weight's gradient is lost to zeros."""
    first, *rest = operands
    with torch.autocast(first.device.type, dtype=low):
        return call(first, *(other.detach() + 0 * other for other in rest))


def loss_in_16_bits(logits: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(logits, targets).float()


FAULTS = (
    Fault("region that enabled=False does not stop", "innermost_region_decides_the_dtype", never_disabled),
    Fault("region that is always bfloat16", "innermost_region_decides_the_dtype", always_bfloat16),
    Fault("region without its cache", "weight_is_cast_once_in_a_region", without_cache),
    Fault("region that leaks after an error", "error_inside_leaves_no_region_behind", without_cleaning_up),
    Fault("region that does nothing", "gradient_has_the_range_of_the_autocast_dtype", switched_off),
    Fault("region that casts every op", "autocast_is_casting_by_hand", casts_every_op),
    Fault("region that casts nothing", "autocast_is_casting_by_hand", casts_nothing),
    Fault("region that casts results", "product_in_a_region_is_that_of_cast_operands", casts_the_result),
    Fault("region that casts twice", "product_in_a_region_is_that_of_cast_operands", casts_twice),
    Fault("weight cut off from its gradient", "product_in_a_region_is_that_of_cast_operands", detached_weight),
    Fault("loss left in 16 bits", "cross_entropy_in_a_region_is_that_of_float32_logits", loss_in_16_bits),
)
