"""Predicted times against published ones: on hosts whose launches are known, and of each source fitted without it.

`known_hosts` calibrates a host's launches on one cell for each source, phase and precision, which validates nothing.
`left_out` fits from the other sources alone: the host's launches by kind and the share of the FP32 peak. What whole
models do not decide is stated and the same for all: the shares of the tensor cores' peak and of the bandwidth, strided
kernels, the last wave of tiles, an empty kernel, and how wide the ranges are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, median_low

from claims.published_times import (
    E2E,
    LONG,
    Compared,
    PublishedAttention,
    PublishedTime,
    calibrated,
    comparable_cells,
    everything,
    launches_of,
    launches_otherwise,
    optimizer_loops,
    predicted,
    predicted_attention,
    published_attention,
)
from perf_tests.hardware import limits as shipped
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.hardware.limits import (
    ALONE,
    BACKWARD,
    BARE,
    COMPUTE,
    FORWARD,
    HELD,
    LAUNCH,
    LAUNCH_ON_A_TYPICAL_HOST,
    MEMORY,
    UPDATES,
    WHOLE_MODELS,
    Ceilings,
    has_64_lanes,
)
from perf_tests.records.format import table
from perf_tests.records.published import published_rows

LAUNCH_KINDS = {"forward": FORWARD, "backward": BACKWARD, "attention_forward": BARE}
"""The kind of launches by phase. A pass there and back has launches of two kinds and decides neither, and the device
bounds most of a loop over the parameters."""

HELD_OF_THE_REFERENCE = {LAUNCH: (81, 82), LAUNCH_ON_A_TYPICAL_HOST: (142, 148), COMPUTE: (93, 93), MEMORY: (22, 22)}
"""`HELD` of sources whose models are not known to launch other kernels than the reference."""

CLEARLY = 1.35
"""A host decides the time of a case that takes this many times as long as its kernels."""

NEARLY = 0.9

# The whole table of one source. It names no GPU; 31.8 TFLOP/s in fp32 are beyond every card of its time but the H100.
TABLE_OF_48, GPU_OF_TABLE = "charliesabino/cs336-assignment2", "H100-SXM"


@dataclass(frozen=True)
class Fit:
    """What some sources say."""

    fp32_shares: Mapping[bool, float]
    """Shares of the datasheet's peak, by whether a multiprocessor has 64 FP32 lanes."""
    launch_seconds: Mapping[str, float]
    """Seconds on a fast host, by kind."""

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


def known_hosts() -> dict[str, float]:
    """Print the table of 48 and every other synchronised eager source; their errors, and the share in range."""
    rows = published_rows(E2E)
    cells = comparable_cells((row for row in rows if TABLE_OF_48 in row["source"]), GPU_OF_TABLE)
    of_48 = calibrated(cells)
    print_groups((TABLE_OF_48, "GPU", "phase", "precision"), of_48[1], lambda one: one.cell.host)
    _, validated = calibrated(comparable_cells(row for row in rows if TABLE_OF_48 not in row["source"]))
    print_groups(("source", "GPU", "phase", "precision"), validated, lambda one: one.cell.host)
    return {
        "mean error of the table of 48": mean(abs(one.error) for found in of_48 for one in found),
        "median error of the others": median_error(validated),
        "others in their range": mean(one.is_held for one in validated),
    }


def left_out() -> dict[str, float]:
    """Print each source beside predictions fitted without it; how far off these are, by what bounds the time."""
    rows = published_rows(E2E)
    models, why_not = everything(rows)
    loops, (alone, why_no_attention) = optimizer_loops(rows), published_attention()
    for reason, count in (why_not + why_no_attention).items():
        print(f"not compared: {count} cells, {reason}")
    fits = _print_fits([*models, *loops, *alone])
    print("\nfitted to all sources, which validates nothing")
    print_by_bound([predicted_by(fits[""], cell) for cell in models])
    print("\neach source left out")
    found = [predicted_by(fits[cell.author], cell) for cell in models]
    print_groups(("left out", "bound by"), found, lambda one: (one.cell.author, one.predicted.bound))
    held = print_by_bound(found)
    print("\nof these, without models known to launch other kernels than the reference")
    of_the_reference = [one for one, cell in zip(found, models, strict=True) if not launches_otherwise(cell.source)]
    of_the_reference_held = print_by_bound(of_the_reference)
    updates = [predicted_by(fits[cell.author], cell) for cell in loops]
    attention = [predicted_by(fits[cell.author], cell) for cell in alone]
    print_groups(("left out", "GPU", "attention alone", "tokens"), attention, lambda one: one.cell.host)
    print("\nattention alone, then updates by a loop")
    by_class = {WHOLE_MODELS: held, ALONE: print_by_bound(attention), UPDATES: print_by_bound(updates)}
    stated = [
        *((by_class[name], counts) for name, counts in HELD.items()),
        (of_the_reference_held, HELD_OF_THE_REFERENCE),
    ]
    device = [one for one in found if one.predicted.bound in (COMPUTE, MEMORY)]
    host = [one for one in found if one.predicted.bound in (LAUNCH, LAUNCH_ON_A_TYPICAL_HOST)]
    return {
        "constants in use, furthest from their fit": furthest_constant(fits[""]),
        "counts in range other than stated": sum(there != here for there, here in stated),
        "bound by arithmetic, median error": median_error(one for one in device if one.predicted.bound == COMPUTE),
        "bound by bandwidth, median error": median_error(one for one in device if one.predicted.bound == MEMORY),
        "bound by the device, in range": mean(one.is_held for one in device),
        "bound by launches, in range": mean(one.is_held for one in host),
        "attention alone, in range": mean(one.is_held for one in attention),
        "updates by a loop, in range": mean(one.is_held for one in updates),
        "widest range": max(one.predicted.high_seconds / one.predicted.low_seconds for one in host),
        "updates by a loop, median error": median_error(updates),
        **{
            f"attention alone {part} from {LONG} tokens, median error": median_error(
                one for one in attention if one.cell.host[2:] == (part, f"from {LONG} tokens")
            )
            for part in ("forward", "backward")
        },
    }


def median_error(found: Iterable[Compared]) -> float:
    return median(abs(one.error) for one in found)


def furthest_constant(fit: Fit) -> float:
    """How far the constants that the suite predicts with are from what all sources give, as a share."""
    in_use, of_all = ([*one.fp32_shares.values(), *one.launch_seconds.values()] for one in (SHIPPED, fit))
    return max(abs(one / other - 1) for one, other in zip(in_use, of_all, strict=True))


def _print_fits(cells: Sequence[PublishedTime | PublishedAttention]) -> dict[str, Fit]:
    """Fits by the author left out; "" is nobody."""
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
    """Seconds of a forward pass by `start_of_range`; other kinds are as much less as where one author shows both."""
    launches: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in LAUNCH_KINDS.values()}
    for one in found:
        kind = LAUNCH_KINDS.get(one.cell.case.phase)
        if kind is not None and one.cell.seconds > CLEARLY * one.predicted.kernel_seconds:
            launches[kind][one.cell.author].append(one.cell.seconds / launches_of(one.cell))
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


def print_groups(names: Sequence[str], found: Iterable[Compared], key: Callable[[Compared], tuple[str, ...]]) -> None:
    """Print a line for each key: its cells, their median error, and how many lie in their range."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for one in found:
        groups[key(one)].append(one)
    rows = [(*group, *_row(groups[group])) for group in sorted(groups)]
    print("\n".join(table((*names, "cells", "median error", "in range"), rows, left=names[1:])))


def print_by_bound(found: Sequence[Compared]) -> dict[str, tuple[int, int]]:
    """How many of how many lie in their range, by bound."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        groups[one.predicted.bound].append(one)
    print(
        "\n".join(table(("bound by", "cells", "median error", "in range"), [(b, *_row(g)) for b, g in groups.items()]))
    )
    return {bound: (sum(one.is_held for one in group), len(group)) for bound, group in groups.items()}


def _row(group: Sequence[Compared]) -> tuple[str, str, str]:
    held = sum(one.is_held for one in group)
    return str(len(group)), f"{median(abs(one.error) for one in group):.0%}", f"{held} of {len(group)}"
