"""Arithmetic of a profiler's kernel table: calls, averages, totals and shares are four views of one time."""

import re
from collections.abc import Iterator, Sequence
from statistics import median

from perf_tests.audit.figures import Kernel
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, found
from perf_tests.audit.plausibility import gpu_of
from perf_tests.limits.least_work import SIZES
from perf_tests.records.grouped import grouped

SHARE_TOLERANCE_POINTS = 1.0

USUAL_BATCH_SIZE = 4
"""The batch of tables that have no column for it."""


def total_of(kernel: Kernel) -> float | None:
    """Seconds of all calls, as the table gives them or as calls x average."""
    if kernel.total_seconds is not None:
        return kernel.total_seconds
    if kernel.calls is None or kernel.average_seconds is None:
        return None
    return kernel.calls * kernel.average_seconds


def not_positive(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        times = [time for time in (kernel.total_seconds, kernel.average_seconds) if time is not None]
        if any(time <= 0 for time in times) or not 0 <= (kernel.percent or 0) <= 100:
            shown, why = "a time or share out of range", "a kernel takes time, and a share lies between 0 and 100 %"
            yield found(IMPOSSIBLE, "amount", [kernel], shown, "0", why, "a wrong sign or unit")


def calls_times_average(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        if kernel.total_seconds and kernel.average_seconds and kernel.calls:
            product = kernel.calls * kernel.average_seconds
            if abs(product / kernel.total_seconds - 1) > 0.02:
                shown = f"{kernel.calls} x {kernel.average_seconds * 1e6:.4g} us is {product * 1e3:.4g} ms"
                limit = f"{kernel.total_seconds * 1e3:.4g} ms"
                why = "calls times their average is the total"
                yield found(INCONSISTENT, "calls x average", [kernel], shown, limit, why, "a cell of another row")


def profiles(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    return list(grouped(kernels, lambda k: (k.series, k.gpu, k.size, k.context_length, k.scope)).values())


def shares_of_one_time(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Each row's total over its share is the profile's GPU time; rows that imply another time are wrong."""
    for group in profiles(kernels):
        large = [kernel for kernel in group if kernel.percent and kernel.percent >= 1 and total_of(kernel)]
        implied = [_implied_seconds(kernel) for kernel in large]
        usual = median(implied) if implied else 0.0  # of a single one, its own
        for kernel, whole in zip(large, implied, strict=True):
            # A share is rounded to a tenth of a point, so small ones tell less about the whole.
            slack = 0.15 + SHARE_TOLERANCE_POINTS / (kernel.percent or 1) / 10
            if usual > 0 and abs(whole / usual - 1) > slack:
                shown = f"{(total_of(kernel) or 0) * 1e3:.4g} ms called {kernel.percent:g} %"
                limit = f"{kernel.percent:g} % of {usual * 1e3:.4g} ms, which the other rows imply"
                why = "the rows of one profile share one GPU time"
                yield found(INCONSISTENT, "share", [kernel], shown, limit, why, "a cell copied from another row")


def copied_cells(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Two rows with the same share whose times differ; where a third row tells which is wrong, only that one."""
    for group in profiles(kernels):
        timed = [kernel for kernel in group if (kernel.percent or 0) >= 5 and (total_of(kernel) or 0) > 0]
        for same in grouped(timed, lambda kernel: kernel.percent).values():
            one, other = (pick(same, key=lambda kernel: total_of(kernel) or 0) for pick in (min, max))
            first, second = total_of(one) or 0, total_of(other) or 0
            if second > 1.1 * first:
                shown = f"{one.percent:g} % for {first * 1e3:.4g} ms and for {second * 1e3:.4g} ms"
                why, cause = "equal shares of one total are equal times", "a cell copied from the row above"
                pair = sorted((one, other), key=same.index)
                usual = median(map(_implied_seconds, timed))
                accused = [kernel for kernel in pair if abs(_implied_seconds(kernel) - usual) > 0.1 * usual] or pair
                yield found(INCONSISTENT, "copied cell", accused, shown, "1.1", why, cause, second / first)


def _implied_seconds(kernel: Kernel) -> float:
    """Of the whole profile, by this row's time and share."""
    return (total_of(kernel) or 0) / (kernel.percent or 1) * 100


def shares_add_up(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for group in profiles(kernels):
        # Copies run beside kernels; profilers give their share of another total.
        shares = [kernel for kernel in group if kernel.percent is not None and "memory op" not in kernel.name]
        total = sum(kernel.percent or 0 for kernel in shares)
        if total > 100 + SHARE_TOLERANCE_POINTS:
            why, cause = "shares of one total cannot exceed 100 %", "rows of two profiles in one"
            yield found(INCONSISTENT, "sum of shares", shares, f"{total:.4g} %", "100 %", why, cause)


def missing_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A forward pass multiplies by seven matrices per layer and the head: those not listed need time of their own.

    A list of the largest kernels leaves out others. What it leaves out must fit into the share of the time that it
    leaves out, at the card's peak and if only the smallest products, those of attention, are missing.
    """
    for group in profiles(kernels):
        products = [kernel for kernel in group if _is_product(kernel) and kernel.calls]
        config, gpu, length = SIZES.get(group[0].size), gpu_of(group[0]), group[0].context_length
        missing = 0 if config is None else 7 * config.num_layers + 1 - sum(one.calls or 0 for one in products)
        rest = _unlisted_seconds(group)
        if config is None or group[0].scope != "forward" or not products or missing <= 0:
            continue
        if gpu is None or rest is None or not length:
            continue
        peak = gpu.rates["fp32"] if all(map(_is_fp32, products)) else max(gpu.rates.values())
        tokens = (group[0].batch_size or USUAL_BATCH_SIZE) * length
        needed = missing * 2 * tokens * config.d_model**2 / (peak * gpu.clock_margin)
        if needed > rest:
            why = f"{missing} of {7 * config.num_layers + 1} products are not listed, and need {needed * 1e3:.4g} ms"
            cause = "a capture that ended early, or another model"
            shown, limit = f"{rest * 1e3:.4g} ms for all that is not listed", f"{needed * 1e3:.4g} ms"
            excess = needed / rest if rest > 0 else needed / (total_of(products[0]) or needed)
            yield found(SUSPICIOUS, "missing products", products, shown, limit, why, cause, excess)


def _is_product(kernel: Kernel) -> bool:
    return re.search("gemm|xmma|cutlass", kernel.name) is not None


def _is_fp32(kernel: Kernel) -> bool:
    return re.search("sgemm|simt|ffma", kernel.name) is not None


def _unlisted_seconds(profile: Sequence[Kernel]) -> float | None:
    """Time of the profile outside of its rows; None where its total is not known."""
    shared = [kernel for kernel in profile if kernel.percent and total_of(kernel)]
    if not shared:
        return None
    whole = median(map(_implied_seconds, shared))
    rounding = 0.05 * len(shared)  # of shares to a tenth of a point
    return whole * (100 + rounding - sum(kernel.percent or 0 for kernel in shared)) / 100


def matrix_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A kernel with exactly the products of a forward pass, above the card's fp32 peak."""
    for kernel in kernels:
        config, total = SIZES.get(kernel.size), total_of(kernel)
        if config is None or not total or not kernel.context_length or "sgemm" not in kernel.name:
            continue
        if kernel.scope != "forward" or kernel.calls != 7 * config.num_layers + 1:
            continue
        gpu = gpu_of(kernel)
        batch_size = kernel.batch_size or USUAL_BATCH_SIZE
        flops = config.forward_flops(batch_size, kernel.context_length)
        flops -= config.forward_attention_flops(batch_size, kernel.context_length)
        if gpu is not None and flops / total > gpu.rates["fp32"]:
            shown = f"{kernel.calls} products in {total * 1e3:.4g} ms are {flops / total / 1e12:.3g} TFLOP/s"
            limit, why = f"{gpu.rates['fp32'] / 1e12:.4g} TFLOP/s", f"beyond the peak at a batch of {batch_size}"
            yield found(SUSPICIOUS, "matrix products", [kernel], shown, limit, why, "a smaller batch than stated")


RULES = (
    not_positive,
    calls_times_average,
    copied_cells,
    shares_of_one_time,
    shares_add_up,
    missing_products,
    matrix_products,
)
