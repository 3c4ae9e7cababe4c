"""Predicted times of every published source, with what is fitted taken from the other sources alone.

Fitted are the host's launches by kind and the share of the FP32 peak. What whole models do not decide is stated and the
same for all: the shares of the tensor cores' peak and of the bandwidth, strided kernels, the last wave of tiles, an
empty kernel, and how wide the ranges are.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, median_low

from claims.published_attention import LONG, PublishedAttention, predicted_attention, published_attention
from claims.published_times import (
    E2E,
    PublishedTime,
    everything,
    launches_of,
    launches_otherwise,
    optimizer_loops,
    predicted,
)
from claims.verdict import conclude
from perf_tests.hardware import limits as shipped
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.hardware.limits import (
    BACKWARD,
    BARE,
    COMPUTE,
    FORWARD,
    HELD,
    LAUNCH,
    LAUNCH_ON_A_TYPICAL_HOST,
    MEMORY,
    Ceilings,
    PredictedTime,
    has_64_lanes,
)
from perf_tests.phases import label_of
from perf_tests.records.format import table
from perf_tests.records.published import published_rows

LAUNCH_KINDS = {"forward": FORWARD, "backward": BACKWARD, "attention_forward": BARE}
"""By phase; a pass there and back has launches of two kinds and decides neither, and of loops over the parameters the
device bounds most."""

HELD_OF_THE_REFERENCE = {LAUNCH: (102, 116), LAUNCH_ON_A_TYPICAL_HOST: (86, 97), COMPUTE: (102, 102), MEMORY: (28, 30)}
"""As `HELD`, of sources whose models are not known to launch other kernels than the reference."""

CLEARLY = 1.35
"""A host decides the time of a case that takes this many times as long as its kernels."""

NEARLY = 0.85

DEVICE_ERROR_LIMIT, DEVICE_HELD_LIMIT = 0.1, 0.9
SHIPPED_TOLERANCE = 0.05
"""Of constants in whole microseconds and shares."""
LAUNCH_HELD_LIMIT, LOOP_ERROR_LIMIT, ATTENTION_ERROR_LIMIT = 0.8, 0.4, 0.2


@dataclass(frozen=True)
class Fit:
    """What some sources say."""

    fp32_shares: Mapping[bool, float]
    """Of the datasheet's peak, by whether a multiprocessor has 64 FP32 lanes."""
    launch_seconds: Mapping[str, float]
    """On a fast host, by kind."""

    def ceilings_of(self, gpu_name: str) -> Ceilings:
        gpu = gpu_named(gpu_name)
        ceilings = shipped.ceilings_of(gpu)
        rates = {**ceilings.matmul_flops_per_second, "fp32": gpu.rates["fp32"] * self.fp32_shares[has_64_lanes(gpu)]}
        return replace(
            ceilings,
            matmul_flops_per_second=rates,
            launch_seconds=self.launch_seconds[FORWARD],
            backward_launch_seconds=self.launch_seconds[BACKWARD],
            bare_launch_seconds=self.launch_seconds[BARE],
        )


SHIPPED = Fit(
    {False: shipped.FP32_EFFICIENCY, True: shipped.FP32_EFFICIENCY_WITH_64_LANES}, shipped.FAST_HOST_LAUNCH_SECONDS
)


@dataclass(frozen=True)
class Compared:
    """A published time beside its prediction."""

    cell: PublishedTime | PublishedAttention
    predicted: PredictedTime

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.cell.seconds - 1

    @property
    def is_held(self) -> bool:
        """Whether what was measured may lie in the range, as far as the digits printed say."""
        low, high = self.predicted.low_seconds, self.predicted.high_seconds
        return low - self.cell.rounding_seconds <= self.cell.seconds <= high + self.cell.rounding_seconds


def main() -> int:
    rows = published_rows(E2E)
    models, why_not = everything(rows)
    loops, (alone, why_no_attention) = optimizer_loops(rows), published_attention()
    for reason, count in (why_not + why_no_attention).items():
        print(f"not compared: {count} cells, {reason}")
    fits = _print_fits([*models, *loops, *alone])
    print("\nfitted to all sources, which validates nothing")
    print_by_bound([predicted_by(fits[""], cell) for cell in models])
    print("\neach source left out")
    left_out = [predicted_by(fits[cell.author], cell) for cell in models]
    print_by_author(left_out)
    held = print_by_bound(left_out)
    print("\nof these, without models known to launch other kernels than the reference")
    of_the_reference = [one for one, cell in zip(left_out, models, strict=True) if not launches_otherwise(cell.source)]
    are_stated = held == HELD and print_by_bound(of_the_reference) == HELD_OF_THE_REFERENCE
    codes = [conclude_shipped(fits[""])]
    codes += [conclude("the stated numbers of left-out times in their range are these", are_stated)]
    codes += [*conclude_device(left_out), conclude_host(left_out)]
    codes += [conclude_loops([predicted_by(fits[cell.author], cell) for cell in loops])]
    codes += conclude_attention([predicted_by(fits[cell.author], cell) for cell in alone])
    return max(codes)


def _print_fits(cells: Sequence[PublishedTime | PublishedAttention]) -> dict[str, Fit]:
    """By the author left out; "" is nobody."""
    authors = sorted({cell.author for cell in cells})
    fits = {out: fitted([cell for cell in cells if cell.author != out]) for out in ("", *authors)}
    rows = [
        (
            out or "nobody",
            *(f"{share:.2f}" for share in fit.fp32_shares.values()),
            *(f"{fit.launch_seconds[kind] * 1e6:.0f} us" for kind in LAUNCH_KINDS.values()),
        )
        for out, fit in fits.items()
    ]
    print("\n".join(table(("left out", "FP32 share", "of 64 lanes", *LAUNCH_KINDS.values()), rows)))
    return fits


def fitted(cells: Sequence[PublishedTime | PublishedAttention]) -> Fit:
    first = [predicted_by(SHIPPED, cell) for cell in cells]
    return Fit(
        {lanes: _fp32_share(first, lanes) for lanes in (False, True)},
        fast_launches(first),
    )


def _fp32_share(found: Iterable[Compared], with_64_lanes: bool) -> float:
    """The median over authors, of each the median over the cells that arithmetic bounds."""
    ratios = defaultdict(list)
    for one in found:
        is_of_kind = has_64_lanes(gpu_named(one.cell.gpu)) is with_64_lanes and one.cell.case.precision == "fp32"
        if is_of_kind and one.predicted.bound == COMPUTE:
            ratios[one.cell.author].append(one.predicted.seconds / one.cell.seconds)
    return SHIPPED.fp32_shares[with_64_lanes] * median(median(of_author) for of_author in ratios.values())


def fast_launches(found: Iterable[Compared]) -> dict[str, float]:
    """Of a forward pass as `start_of_range` says; of the other kinds as much less as where one author shows both."""
    launches: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in LAUNCH_KINDS.values()}
    for one in found:
        kind = LAUNCH_KINDS.get(one.cell.case.phase)
        if kind is not None and one.cell.seconds > CLEARLY * one.predicted.kernel_seconds:
            launches[kind][one.cell.author].append(one.cell.seconds / launches_of(one.cell.case))
    ahead = launches[FORWARD]
    start = start_of_range(list(ahead.values()))
    shares = {
        kind: median_low(min(group) / min(ahead[author]) for author, group in by_author.items() if author in ahead)
        for kind, by_author in launches.items()
    }
    return {kind: start * share for kind, share in shares.items()}


def start_of_range(groups: Sequence[Sequence[float]]) -> float:
    """The fastest start, in whole microseconds, of a range that holds nearly the most launches, each group counting
    once: the best start would hang on the fastest launch of one group."""
    held = {
        us: sum(mean(us * 1e-6 <= one <= us * 1e-6 * shipped.HOST_SPREAD for one in group) for group in groups)
        for us in range(1, 100)
    }
    return min(us for us, count in held.items() if count >= NEARLY * max(held.values())) * 1e-6


def predicted_by(fit: Fit, cell: PublishedTime | PublishedAttention) -> Compared:
    ceilings = fit.ceilings_of(cell.gpu)
    if isinstance(cell, PublishedAttention):
        return Compared(cell, predicted_attention(cell, ceilings))
    return Compared(cell, predicted(cell.case, ceilings))


def print_by_author(found: Sequence[Compared]) -> None:
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in found:
        groups[one.cell.author, one.predicted.bound].append(one)
    rows = [
        (author, bound, *_row(group)) for (author, bound), group in sorted(groups.items(), key=lambda item: item[0])
    ]
    print("\n".join(table(("left out", "bound by", "cells", "median error", "in range"), rows, left=("bound by",))))


def print_by_bound(found: Sequence[Compared]) -> dict[str, tuple[int, int]]:
    """How many of how many lie in their range, by bound."""
    groups: dict[str, list[Compared]] = {bound: [] for bound in HELD}
    for one in found:
        groups[one.predicted.bound].append(one)
    print(
        "\n".join(table(("bound by", "cells", "median error", "in range"), [(b, *_row(g)) for b, g in groups.items()]))
    )
    return {bound: (sum(one.is_held for one in group), len(group)) for bound, group in groups.items()}


def _row(group: Sequence[Compared]) -> tuple[str, str, str]:
    held = sum(one.is_held for one in group)
    return str(len(group)), f"{median(abs(one.error) for one in group):.0%}", f"{held} of {len(group)}"


def conclude_shipped(fit: Fit) -> int:
    """What the suite predicts with is what the range was tried with."""
    in_use, of_all = ([*one.fp32_shares.values(), *one.launch_seconds.values()] for one in (SHIPPED, fit))
    ratios = [one / other for one, other in zip(in_use, of_all, strict=True)]
    claim = f"each constant in use is within {SHIPPED_TOLERANCE:.0%} of what all sources give"
    return conclude(claim, all(abs(ratio - 1) <= SHIPPED_TOLERANCE for ratio in ratios))


def conclude_device(found: Sequence[Compared]) -> list[int]:
    codes = []
    for bound in (COMPUTE, MEMORY):
        errors = [abs(one.error) for one in found if one.predicted.bound == bound]
        claim = f"left-out times bound by {bound} are predicted within {DEVICE_ERROR_LIMIT:.0%} in the median"
        codes.append(conclude(claim, median(errors) <= DEVICE_ERROR_LIMIT))
    held = [one.is_held for one in found if one.predicted.bound in (COMPUTE, MEMORY)]
    return [*codes, conclude(f"{DEVICE_HELD_LIMIT:.0%} of both lie in their range", mean(held) >= DEVICE_HELD_LIMIT)]


def conclude_host(found: Sequence[Compared]) -> int:
    """Of every time that a fast or a typical host bounds."""
    launched = [one for one in found if one.predicted.bound in (LAUNCH, LAUNCH_ON_A_TYPICAL_HOST)]
    widest = max(one.predicted.high_seconds / one.predicted.low_seconds for one in launched)
    held = [one.is_held for one in launched]
    claim = f"{LAUNCH_HELD_LIMIT:.0%} of {len(held)} left-out times bound by launches lie in their range ({sum(held)})"
    is_held = mean(held) >= LAUNCH_HELD_LIMIT and widest <= shipped.HOST_SPREAD * 1.001
    return conclude(f"{claim}, {widest:.2f} x wide at most", is_held)


def conclude_loops(found: Sequence[Compared]) -> int:
    error = median(abs(one.error) for one in found)
    claim = f"{len(found)} left-out updates by a loop are predicted within {LOOP_ERROR_LIMIT:.0%} in the median"
    return conclude(f"{claim} ({error:.0%})", error <= LOOP_ERROR_LIMIT)


def conclude_attention(found: Sequence[Compared]) -> list[int]:
    """Forward and backward at long sequences, whose time is traffic."""
    print("\nattention alone")
    groups: dict[tuple[str, str, str, str], list[Compared]] = defaultdict(list)
    long: dict[str, list[float]] = defaultdict(list)
    for one in found:
        assert isinstance(one.cell, PublishedAttention)
        name = f"from {LONG}" if one.cell.is_long else f"below {LONG}"
        groups[one.cell.author, one.cell.gpu, label_of(one.cell.case.phase), name].append(one)
        if one.cell.is_long:
            long[label_of(one.cell.case.phase)].append(abs(one.error))
    rows = [(*group, *_row(of_group)) for group, of_group in groups.items()]
    print("\n".join(table(("left out", "GPU", "pass", "tokens", "cells", "median error", "in range"), rows)))
    return [
        conclude(
            f"{len(errors)} left-out times of attention alone {phase} from {LONG} tokens are predicted within "
            f"{ATTENTION_ERROR_LIMIT:.0%} in the median ({median(errors):.0%})",
            median(errors) <= ATTENTION_ERROR_LIMIT,
        )
        for phase, errors in long.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
