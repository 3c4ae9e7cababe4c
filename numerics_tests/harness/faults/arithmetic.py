"""Faults in casting, adding and multiplying, and in autocast: its casts, its cache, the state that it leaves."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from numerics_tests.harness.claims import Fault
from numerics_tests.machine.sums import BLOCK, Total, Tree, sequential, tree_of
from numerics_tests.test_accumulation import add_one_by_one
from numerics_tests.test_accumulation_order import running


def truncated_to_bfloat16(x: Tensor) -> Tensor:
    # -0x10000 is the int32 0xFFFF0000: it keeps the 16 bits that bfloat16 has.
    return (x.view(torch.int32) & -0x10000).view(torch.float32).to(torch.bfloat16)


def half_up_to_bfloat16(x: Tensor) -> Tensor:
    """Add half a unit in integers, as a kernel without the tie rule does; infinities and NaN are left alone."""
    rounded = ((x.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)


def float16_without_subnormals(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 2.0**-14, x * 0, x).to(torch.float16)


def saturated_float16(x: Tensor) -> Tensor:
    return x.clamp(-65504, 65504).to(torch.float16)


def float16_by_way_of_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float16)


def sum_in_the_addends_format(addends: Tensor, count: int, accumulator: torch.dtype) -> Tensor:
    return add_one_by_one(addends, count, addends.dtype).to(accumulator)


def sum_with_a_hidden_float32(addends: Tensor, count: int, accumulator: torch.dtype) -> Tensor:
    return add_one_by_one(addends, count, torch.float32).to(accumulator)


def probe_of_the_reversed_vector(total: Total, length: int, dtype: torch.dtype) -> Tree:
    return tree_of(lambda x: total(x.flip(0)), length, dtype)


def probe_that_guesses(total: Total, length: int, dtype: torch.dtype) -> Tree:
    return running(list(range(length)))


def in_random_order(x: Tensor) -> Tensor:
    return sequential(x[torch.randperm(len(x), device=x.device)])


def pairwise_without_the_odd_one(x: Tensor) -> Tensor:
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        x = x[..., 0:even:2] + x[..., 1:even:2]
    return x[..., 0]


def blocked_without_the_last_block(x: Tensor) -> Tensor:
    whole = max(x.shape[-1] // BLOCK * BLOCK, 1)
    return sequential(x[..., :whole])


def sequential_in_bfloat16(x: Tensor) -> Tensor:
    return sequential(x.to(torch.bfloat16)).to(x.dtype)


def kahan_with_the_wrong_sign(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    correction = torch.zeros_like(total)
    for term in x.unbind(-1):
        corrected = term + correction
        larger = total + corrected
        correction = (larger - total) - corrected
        total = larger
    return total


def products_rounded_first(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


def operands_in_ten_bits(x: Tensor, y: Tensor) -> Tensor:
    """Silent TF32: the last 13 bits of float32 are cut off."""
    cut_x, cut_y = ((z.float().view(torch.int32) & -0x2000).view(torch.float32) for z in (x, y))
    return torch.dot(cut_x, cut_y).to(x.dtype)


def partial_sums_rounded(x: Tensor, y: Tensor) -> Tensor:
    """Split along K, each part rounded to the output's format, as reduced-precision reduction does."""
    parts = [torch.dot(a, b) for a, b in zip(x.chunk(4), y.chunk(4), strict=True)]
    return sequential(torch.stack(parts))


def dot_in_its_own_format(x: Tensor, y: Tensor) -> Tensor:
    return sequential(x * y)


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
    """Restore the earlier state only without an error."""
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
    """Cast through the other 16-bit format on the way."""
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


PRODUCT = "product_is_within_the_bound_of_float32_accumulation"
FAULTS = (
    Fault("bfloat16 by cutting bits off", "cast_to_bfloat16_is_the_integer_rule", truncated_to_bfloat16),
    Fault("bfloat16 with ties away from zero", "cast_to_bfloat16_is_the_integer_rule", half_up_to_bfloat16),
    Fault("float16 without subnormals", "cast_to_float16_is_numpys", float16_without_subnormals),
    Fault("float16 that saturates", "cast_to_float16_is_numpys", saturated_float16),
    Fault("float16 by way of bfloat16", "cast_to_float16_is_numpys", float16_by_way_of_bfloat16),
    Fault(
        "running sum in the addend's format", "float32_sums_of_one_16_bit_value_are_exact", sum_in_the_addends_format
    ),
    Fault("float32 behind a 16-bit sum", "sums_in_the_format_stop_growing", sum_with_a_hidden_float32),
    Fault("probe of the reversed vector", "order_of_a_known_algorithm_is_recovered", probe_of_the_reversed_vector),
    Fault("probe that guesses", "order_of_a_known_algorithm_is_recovered", probe_that_guesses),
    Fault("sum that drops its last term", "order_of_a_kernel_is_a_tree_that_never_changes", lambda x: x[:-1].sum()),
    Fault("sum in random order", "order_of_a_kernel_is_a_tree_that_never_changes", in_random_order),
    Fault("sequential sum in bfloat16", "sequential_sum_is_within_its_bound", sequential_in_bfloat16),
    Fault("pairwise sum without the odd one", "pairwise_sum_is_within_its_bound", pairwise_without_the_odd_one),
    Fault("blocked sum without the last block", "blocked_sum_is_within_its_bound", blocked_without_the_last_block),
    Fault("Kahan with the wrong sign", "kahan_sum_is_within_its_bound", kahan_with_the_wrong_sign),
    Fault("Kahan without correction", "kahan_sum_is_within_its_bound", sequential),
    Fault("sequential sum in a kernel", "error_of_a_good_sum_does_not_grow_with_length", sequential),
    Fault("products rounded before adding", PRODUCT, products_rounded_first),
    Fault("TF32 without saying so", PRODUCT, operands_in_ten_bits),
    Fault("partial sums rounded to 16 bits", PRODUCT, partial_sums_rounded),
    Fault("sum in 16 bits", "sum_is_within_the_bound_of_its_accumulator", sequential),
    Fault("dot product in 16 bits", "product_of_ones_counts", dot_in_its_own_format),
    Fault(
        "sum of float16 halves",
        "sum_of_small_integers_is_exact_in_any_order",
        lambda x: x[::2].half().sum().float() + x[1::2].half().sum().float(),
    ),
    Fault("product with an offset", "powers_of_two_pass_through_products", lambda x, y: torch.dot(x, y) + 2.0**-8),
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
