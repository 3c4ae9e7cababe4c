"""Arithmetic of a profiler's kernel table: calls, averages, totals and shares are four views of one time."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median

from perf_tests.audit.figures import Kernel
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, found
from perf_tests.audit.plausibility import gpu_of
from perf_tests.limits.least_work import SIZES
from perf_tests.records.grouped import grouped

SHARE_TOLERANCE_POINTS = 1.0

USUAL_BATCH_SIZE = 4
"""The batch of the published tables, which have no column for it."""


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
        implied = {kernel: (total_of(kernel) or 0) / (kernel.percent or 1) * 100 for kernel in large}
        for kernel, whole in implied.items():  # of a single one, the median is its own
            # A share is rounded to a tenth of a point, so small ones tell less about the whole.
            slack = 0.15 + SHARE_TOLERANCE_POINTS / (kernel.percent or 1) / 10
            if abs(whole / median(implied.values()) - 1) > slack:
                shown = f"{(total_of(kernel) or 0) * 1e3:.4g} ms called {kernel.percent:g} %"
                limit = f"{kernel.percent:g} % of {median(implied.values()) * 1e3:.4g} ms, which the other rows imply"
                why = "the rows of one profile share one GPU time"
                yield found(INCONSISTENT, "share", [kernel], shown, limit, why, "a cell copied from another row")


def copied_cells(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Two rows with the same share whose times differ, or the same calls and share under other averages."""
    for group in profiles(kernels):
        for one, other in combinations(group, 2):
            first, second = total_of(one) or 0, total_of(other) or 0
            if one.percent is None or one.percent != other.percent or one.percent < 5:
                continue
            if min(first, second) > 0 and max(first, second) > 1.1 * min(first, second):
                shown = f"{one.percent:g} % for {first * 1e3:.4g} ms and for {second * 1e3:.4g} ms"
                why, cause = "equal shares of one total are equal times", "a cell copied from the row above"
                yield found(INCONSISTENT, "copied cell", [one, other], shown, "1.1", why, cause)


def shares_add_up(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for group in profiles(kernels):
        # Copies run beside kernels; profilers give their share of another total.
        shares = [kernel for kernel in group if kernel.percent is not None and "memory op" not in kernel.name]
        total = sum(kernel.percent or 0 for kernel in shares)
        if total > 100 + SHARE_TOLERANCE_POINTS:
            why, cause = "shares of one total cannot exceed 100 %", "rows of two profiles in one"
            yield found(INCONSISTENT, "sum of shares", shares, f"{total:.4g} %", "100 %", why, cause)


def missing_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A forward pass multiplies by seven matrices per layer and the head; at 80 % of the time the list is complete."""
    for group in profiles(kernels):
        products = [kernel for kernel in group if re.search("gemm|xmma|cutlass", kernel.name) and kernel.calls]
        config = SIZES.get(group[0].size)
        if config is None or group[0].scope != "forward" or sum(one.percent or 0 for one in products) < 80:
            continue
        calls, expected = sum(one.calls or 0 for one in products), 7 * config.num_layers + 1
        if calls < expected:
            why = f"{config.num_layers} layers have {expected} products with weights"
            cause = "a capture that ended early, or another model"
            yield found(SUSPICIOUS, "missing products", products, f"{calls} products", f"{expected}", why, cause)


def matrix_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A kernel with exactly the products of a forward pass, above the card's fp32 peak."""
    for kernel in kernels:
        config, total = SIZES.get(kernel.size), total_of(kernel)
        if config is None or not total or not kernel.context_length or "sgemm" not in kernel.name:
            continue
        if kernel.scope != "forward" or kernel.calls != 7 * config.num_layers + 1:
            continue
        gpu = gpu_of(kernel)
        flops = config.forward_flops(USUAL_BATCH_SIZE, kernel.context_length)
        flops -= config.forward_attention_flops(USUAL_BATCH_SIZE, kernel.context_length)
        if gpu is not None and flops / total > gpu.rates["fp32"]:
            shown = f"{kernel.calls} products in {total * 1e3:.4g} ms are {flops / total / 1e12:.3g} TFLOP/s"
            limit, why = f"{gpu.rates['fp32'] / 1e12:.4g} TFLOP/s", f"beyond the peak at a batch of {USUAL_BATCH_SIZE}"
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
