"""Arithmetic of a profiler's kernel table: calls, averages, totals and shares are four views of one time."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median

from perf_tests.audit.figures import Kernel
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding
from perf_tests.limits.datasheets import gpu_named
from perf_tests.limits.least_work import SIZES

TOTAL_TOLERANCE = 0.02
SHARE_TOLERANCE_POINTS = 1.0
SHARE_TOLERANCE = 0.15


def total_of(kernel: Kernel) -> float | None:
    """Seconds that the kernel took in all, as the table gives it or as calls x average."""
    if kernel.total_seconds is not None:
        return kernel.total_seconds
    if kernel.calls is None or kernel.average_seconds is None:
        return None
    return kernel.calls * kernel.average_seconds


def not_positive(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        shares = () if kernel.percent is None else (kernel.percent,)
        times = [time for time in (kernel.total_seconds, kernel.average_seconds) if time is not None]
        if any(time <= 0 for time in times) or any(not 0 <= share <= 100 for share in shares):
            why = "a kernel takes time, and a share lies between 0 and 100 %"
            yield _found(
                IMPOSSIBLE, "amount", [kernel], "a time or share out of range", "0", why, "a wrong sign or unit"
            )


def calls_times_average(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        if kernel.total_seconds and kernel.average_seconds and kernel.calls:
            product = kernel.calls * kernel.average_seconds
            if abs(product / kernel.total_seconds - 1) > TOTAL_TOLERANCE:
                shown = f"{kernel.calls} x {kernel.average_seconds * 1e6:.4g} us is {product * 1e3:.4g} ms"
                limit = f"{kernel.total_seconds * 1e3:.4g} ms"
                why = "calls times their average is the total"
                yield _found(INCONSISTENT, "calls x average", [kernel], shown, limit, why, "a cell of another row")


def profiles(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Rows of one profile."""
    groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[(kernel.series, kernel.gpu, kernel.size, kernel.context_length, kernel.scope)].append(kernel)
    return list(groups.values())


def shares_of_one_time(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Each row's total over its share is the GPU time of the profile; rows that imply another time are wrong."""
    for group in profiles(kernels):
        implied = {}
        for kernel in group:
            total = total_of(kernel)
            if total and kernel.percent and kernel.percent >= 1:
                implied[kernel] = total / kernel.percent * 100
        if len(implied) < 2:
            continue
        for kernel, whole in implied.items():
            # A share is rounded to a tenth of a point, so that small ones say less of the whole.
            slack = SHARE_TOLERANCE + SHARE_TOLERANCE_POINTS / (kernel.percent or 1) / 10
            if abs(whole / median(implied.values()) - 1) > slack:
                shown = f"{(total_of(kernel) or 0) * 1e3:.4g} ms called {kernel.percent:g} %"
                limit = f"{kernel.percent:g} % of {median(implied.values()) * 1e3:.4g} ms, which the other rows imply"
                why = "the rows of one profile share one GPU time"
                yield _found(INCONSISTENT, "share", [kernel], shown, limit, why, "a cell copied from another row")


def copied_cells(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Two rows with the same share whose times differ, or the same calls and share under other averages."""
    for group in profiles(kernels):
        for one, other in combinations(group, 2):
            times = (total_of(one), total_of(other))
            if one.percent is None or one.percent != other.percent or one.percent < 5 or None in times:
                continue
            first, second = times[0] or 0, times[1] or 0
            if min(first, second) > 0 and max(first, second) > 1.1 * min(first, second):
                shown = f"{one.percent:g} % for {first * 1e3:.4g} ms and for {second * 1e3:.4g} ms"
                why = "one share of one GPU time is one time"
                yield _found(
                    INCONSISTENT, "copied cell", [one, other], shown, "1.1", why, "a cell copied from the row above"
                )


def shares_add_up(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for group in profiles(kernels):
        # Copies run beside kernels; profilers give their share of another whole.
        shares = [kernel for kernel in group if kernel.percent is not None and "memory op" not in kernel.name]
        total = sum(kernel.percent or 0 for kernel in shares)
        if total > 100 + SHARE_TOLERANCE_POINTS:
            why = "shares of one time are no more than all of it"
            yield _found(
                INCONSISTENT, "sum of shares", shares, f"{total:.4g} %", "100 %", why, "rows of two profiles in one"
            )


MOSTLY = 80.0
"""Per cent of the GPU time from which the kernels listed are all that matter."""

USUAL_BATCH_SIZE = 4
"""The batch of the published tables, which have no column for it."""


def _products(group: Sequence[Kernel]) -> list[Kernel]:
    return [kernel for kernel in group if re.search("gemm|xmma|cutlass", kernel.name) and kernel.calls]


def missing_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A forward pass multiplies by seven matrices a layer and by the head; a full list of products has them all."""
    for group in profiles(kernels):
        products = _products(group)
        config = SIZES.get(group[0].size)
        if config is None or group[0].scope != "forward" or sum(one.percent or 0 for one in products) < MOSTLY:
            continue
        calls, expected = sum(one.calls or 0 for one in products), 7 * config.num_layers + 1
        if calls < expected:
            why = f"{config.num_layers} layers have {expected} products with weights"
            cause = "a capture that ended early, or another model"
            yield _found(SUSPICIOUS, "missing products", products, f"{calls} products", f"{expected}", why, cause)


def matrix_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A kernel with exactly the products of a forward pass, at a rate beyond the card's fp32 peak."""
    for kernel in kernels:
        config, total = SIZES.get(kernel.size), total_of(kernel)
        if config is None or not total or not kernel.context_length or "sgemm" not in kernel.name:
            continue
        if kernel.scope != "forward" or kernel.calls != 7 * config.num_layers + 1:
            continue
        try:
            peak = gpu_named(kernel.gpu).fp32_flops_per_second
        except ValueError:
            continue
        flops = config.forward_flops(USUAL_BATCH_SIZE, kernel.context_length)
        flops -= config.forward_attention_flops(USUAL_BATCH_SIZE, kernel.context_length)
        if flops / total > peak:
            shown = f"{kernel.calls} products in {total * 1e3:.4g} ms are {flops / total / 1e12:.3g} TFLOP/s"
            limit, why = f"{peak / 1e12:.4g} TFLOP/s", f"beyond the peak at a batch of {USUAL_BATCH_SIZE}"
            yield _found(SUSPICIOUS, "matrix products", [kernel], shown, limit, why, "a smaller batch than stated")


def _found(verdict: str, rule: str, rows: Sequence[Kernel], shown: str, limit: str, why: str, cause: str) -> Finding:
    places = tuple(row.place for row in rows)
    return Finding(verdict, rule, places, rows[0].describe(), shown, limit, why, cause)


RULES = (
    not_positive,
    calls_times_average,
    copied_cells,
    shares_of_one_time,
    shares_add_up,
    missing_products,
    matrix_products,
)
