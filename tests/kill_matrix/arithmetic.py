"""Faults in casting, adding and multiplying, down to 8 and 4 bits, and in autocast: its casts, cache and state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.numerics_tests.machine.narrow import E4M3, E4M3_MAX, Blocked, mxfp8, nvfp4
from perf_tests_suite.numerics_tests.machine.sums import sequential, tree_of
from perf_tests_suite.numerics_tests.test_accumulation import add_one_by_one
from perf_tests_suite.numerics_tests.test_formats import cast, emulated
from perf_tests_suite.numerics_tests.test_reductions import running
from tests.kill_matrix.judging import Fault


def half_up_to_bfloat16(x: Tensor) -> Tensor:
    """Add half a unit in integers, as a kernel without the tie rule does; infinities and NaN are left alone."""
    rounded = ((x.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)


def operands_in_ten_bits(x: Tensor, y: Tensor) -> Tensor:
    """Silent TF32: the last 13 bits of float32 are cut off."""
    cut_x, cut_y = ((z.float().view(torch.int32) & -0x2000).view(torch.float32) for z in (x, y))
    return torch.dot(cut_x, cut_y).to(x.dtype)


def partial_sums_rounded(x: Tensor, y: Tensor) -> Tensor:
    """Split along K, each part rounded to the output's format, as reduced-precision reduction does."""
    parts = [torch.dot(a, b) for a, b in zip(x.chunk(4), y.chunk(4), strict=True)]
    return sequential(torch.stack(parts))


@contextmanager
def without_cleaning_up(device: str, dtype: torch.dtype, enabled: bool = True) -> Iterator[None]:
    """Restore the earlier state only without an error."""
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, enabled)
    yield
    torch.set_autocast_enabled(device, before)


def casts_twice(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    """Cast through the other 16-bit format on the way."""
    other = torch.float16 if low == torch.bfloat16 else torch.bfloat16
    return call(*(operand.to(other).to(low) for operand in operands))


def detached_weight(call: Callable[..., Tensor], low: torch.dtype, *operands: Tensor) -> Tensor:
    """A cached cast made under no_grad: the weight's gradient is lost to zeros."""
    first, *rest = operands
    with torch.autocast(first.device.type, dtype=low):
        return call(first, *(other.detach() + 0 * other for other in rest))


def loss_in_16_bits(logits: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(logits, targets).float()


def scaled_too_high(x: Tensor, w: Tensor, x_scale: float, w_scale: float) -> Tensor:
    return (
        (x / x_scale * 2).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).float()
        @ (w / w_scale).to(E4M3).float().T
        * (x_scale * w_scale / 2)
    )


def to_nearest(weights: Tensor, change: float, steps: int, generator: torch.Generator) -> Tensor:
    for _ in range(steps):
        weights = (weights.float() - change).bfloat16()
    return weights


def mxfp8_rounded_up(x: Tensor) -> Blocked:
    """The scale's exponent by ceil, as some recipes have it: no saturation, but another format."""
    made = mxfp8(x * 2)
    return replace(made, elements=mxfp8(x).elements / 2, scales=made.scales)


PRODUCT, REGION = "product_is_within_the_bound_of_float32_accumulation", "innermost_region_decides_the_dtype"
KNOWN_ORDER, ORDER = "order_of_a_known_algorithm_is_recovered", "order_of_a_kernel_is_a_tree_that_never_changes"
IN_A_REGION = "product_in_a_region_is_that_of_cast_operands"
FP8, MX = "cast_to_fp8_is_to_the_nearest", "mxfp8_is_the_nearest_with_the_scale_of_its_block"
NV = "nvfp4_errs_by_half_a_step_of_its_block"
FAULTS = (
    # -0x10000 is the int32 0xFFFF0000: it keeps the 16 bits that bfloat16 has.
    Fault("bfloat16 by cutting bits off", "cast_to_bfloat16_is_the_integer_rule",
          lambda x: (x.view(torch.int32) & -0x10000).view(torch.float32).bfloat16()),
    Fault("bfloat16 with ties away from zero", "cast_to_bfloat16_is_the_integer_rule", half_up_to_bfloat16),
    Fault("float16 without subnormals", "cast_to_float16_is_numpys",
          lambda x: torch.where(x.abs() < 2.0**-14, x * 0, x).half()),
    Fault("float16 that saturates", "cast_to_float16_is_numpys", lambda x: x.clamp(-65504, 65504).half()),
    Fault("float16 by way of bfloat16", "cast_to_float16_is_numpys", lambda x: x.bfloat16().half()),
    Fault("running sum in the addend's format", "float32_sums_of_one_16_bit_value_are_exact",
          lambda addends, count, accumulator: add_one_by_one(addends, count, addends.dtype).to(accumulator)),
    Fault("float32 behind a 16-bit sum", "sums_in_the_format_stop_growing",
          lambda addends, count, accumulator: add_one_by_one(addends, count, torch.float32).to(accumulator)),
    Fault("probe of the reversed vector", KNOWN_ORDER,
          lambda total, length, dtype: tree_of(lambda x: total(x.flip(0)), length, dtype)),
    Fault("probe that guesses", KNOWN_ORDER, lambda total, length, dtype: running(list(range(length)))),
    Fault("sum that drops its last term", ORDER, lambda x: x[:-1].sum()),
    Fault("sum in random order", ORDER, lambda x: sequential(x[torch.randperm(len(x), device=x.device)])),
    Fault("sequential sum in bfloat16", "sequential_sum_is_within_its_bound",
          lambda x: sequential(x.bfloat16()).to(x.dtype)),
    Fault("sequential sum in a kernel", "error_of_a_good_sum_does_not_grow_with_length", sequential),
    Fault("products rounded before adding", PRODUCT, lambda x, y: (x * y).sum()),
    Fault("TF32 without saying so", PRODUCT, operands_in_ten_bits),
    Fault("partial sums rounded to 16 bits", PRODUCT, partial_sums_rounded),
    Fault("sum in 16 bits", "sum_is_within_the_bound_of_its_accumulator", sequential),
    Fault("dot product in 16 bits", PRODUCT, lambda x, y: sequential(x * y)),
    Fault("sum of float16 halves", "sum_is_within_the_bound_of_its_accumulator",
          lambda x: x[::2].half().sum().float() + x[1::2].half().sum().float()),
    Fault("product with an offset", PRODUCT, lambda x, y: torch.dot(x, y) + 2.0**-8),
    Fault("region that enabled=False does not stop", REGION,
          lambda kind, dtype, enabled=True: torch.autocast(kind, dtype=dtype)),
    Fault("region that is always bfloat16", REGION,
          lambda kind, dtype, enabled=True: torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled)),
    Fault("region without its cache", "weight_is_cast_once_in_a_region",
          lambda kind, dtype: torch.autocast(kind, dtype=dtype, cache_enabled=False)),
    Fault("region that leaks after an error", "error_inside_leaves_no_region_behind", without_cleaning_up),
    Fault("region that does nothing", "gradient_has_the_range_of_the_autocast_dtype",
          lambda kind, dtype: torch.autocast(kind, dtype=dtype, enabled=False)),
    Fault("region that casts every op", "autocast_is_casting_by_hand",
          lambda call, low, *operands: call(*(operand.to(low) for operand in operands))),
    Fault("region that casts nothing", "autocast_is_casting_by_hand", lambda call, low, *operands: call(*operands)),
    Fault("region that casts results", IN_A_REGION, lambda call, low, *operands: call(*operands).to(low)),
    Fault("region that casts twice", IN_A_REGION, casts_twice),
    Fault("weight cut off from its gradient", IN_A_REGION, detached_weight),
    Fault("loss left in 16 bits", "cross_entropy_in_a_region_is_that_of_float32_logits", loss_in_16_bits),
    Fault("FP8 by truncation", FP8, lambda x, dtype: torch.where(
        cast(x, dtype).abs() > x.abs(), cast(x * (1 - 2.0**-3), dtype), cast(x, dtype))),
    Fault("FP8 without subnormals", FP8, lambda x, dtype: torch.where(
        cast(x, dtype).abs() < torch.finfo(dtype).smallest_normal, x * 0, cast(x, dtype))),
    Fault("FP8 by way of bfloat16", FP8, lambda x, dtype: cast(x.bfloat16().float(), dtype)),
    Fault("FP8 product that saturates", "scaled_product_is_within_its_bound", scaled_too_high),
    Fault("FP8 product of unscaled factors", "scaled_product_is_within_its_bound",
          lambda x, w, x_scale, w_scale: emulated(x, w, 1.0, 1.0)),
    Fault("MXFP8 scale one too high", MX, mxfp8_rounded_up),
    Fault("NVFP4 without the tensor's scale", NV, lambda x: replace(nvfp4(x), tensor_scale=1.0)),
    Fault("NVFP4 without halves", NV, lambda x: replace(nvfp4(x), elements=nvfp4(x).elements.round())),
    Fault("bfloat16 weights rounded to nearest", "weights_rounded_by_chance_train_without_bias", to_nearest),
)  # fmt: skip
