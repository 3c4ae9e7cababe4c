"""One attention layer by part: scores, mask, softmax, value product; the time of each and what bounds it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from perf_tests.records.record import Json
from perf_tests.traces.kernel_events import Region, Span, Trace, TracedKernel, layer_of, total_us

PARTS = ("scores", "mask", "softmax", "value_product")
PRODUCTS = ("scores", "value_product")

WORTH_A_RATE_BYTES = 2**16
"""Kernels that move less show the cost of a launch rather than the memory's rate."""

Cell = tuple[int, str]
"""One layer in one round."""
Layers = dict[Cell, list[TracedKernel]]


def attention_values(
    trace: Trace, kernels: Sequence[TracedKernel], matmul_flops_per_second: float | None
) -> Json | None:
    """One typical layer of one round, in both directions: times are medians over layers and rounds.

    None where attention is not made of these parts.
    """
    rates = Rates(matmul_flops_per_second, _best_bytes_per_second(kernels))
    directions = {
        name: _direction(trace, [kernel for kernel in kernels if kernel.is_backward is back], rates, back)
        for name, back in (("forward", False), ("backward", True))
    }
    return directions if any(directions.values()) else None


@dataclass(frozen=True)
class Rates:
    """The machine's best: FLOP/s of a square product, bytes/s of the fastest kernel of this trace."""

    flops_per_second: float | None
    bytes_per_second: float | None

    def bound(self, product_flops: float, bytes_touched: float, busy_us: float, idle_us: float) -> str | None:
        """`launch` where the device waits longer than it works, else the slower of arithmetic and memory.

        Arithmetic is that of matrix products; what has none is bound by memory.
        """
        if idle_us > busy_us:
            return "launch"
        if not product_flops:
            return "memory"
        if not self.flops_per_second or not self.bytes_per_second:
            return None
        return "compute" if product_flops / self.flops_per_second > bytes_touched / self.bytes_per_second else "memory"


def _best_bytes_per_second(kernels: Sequence[TracedKernel]) -> float | None:
    rates = [
        touched / kernel.us * 1e6
        for kernel in kernels
        if kernel.kind != "matrix product"
        and kernel.us
        and (touched := kernel.bytes_touched or 0) >= WORTH_A_RATE_BYTES
    ]
    return max(rates, default=None)


def _direction(trace: Trace, kernels: Sequence[TracedKernel], rates: Rates, is_backward: bool) -> Json | None:
    cells: dict[str, Layers] = {part: defaultdict(list) for part in PARTS}
    for kernel in kernels:
        part = _part_of(kernel.regions)
        if part is not None:
            cells[part][_cell(kernel.regions, kernel.issued_us, trace)].append(kernel)
    if not all(cells[part] for part in PRODUCTS):
        return None
    layers: Layers = defaultdict(list)
    for groups in cells.values():
        for cell, group in groups.items():
            layers[cell] += group
    spans = {} if is_backward else _host_spans(trace)
    others = [sum(kernel.us for kernel in group if kernel.kind != "matrix product") for group in layers.values()]
    return {
        "layers": len({layer for _, layer in layers}),
        "parts": [_part_row(part, cells[part], spans.get(part, {}), rates) for part in PARTS if cells[part]],
        "lanes": _lanes(cells, layers, spans),
        **_softmax_over_products(cells),
        "seconds": _typical_us(layers.values()) / 1e6,
        "saved_without_gaps_seconds": median(map(_idle_us, layers.values())) / 1e6,
        "saved_by_fusing_seconds": median(others) / 1e6,
    }


def _part_of(path: tuple[str, ...]) -> str | None:
    return path[-1] if path and path[-1] in PARTS else None


def _cell(path: tuple[str, ...], moment_us: float, trace: Trace) -> Cell:
    number = trace.round_at(moment_us)
    assert number is not None
    return number, layer_of(path) or "alone"


def _host_spans(trace: Trace) -> dict[str, dict[Cell, Region]]:
    """When the host ran each part of each layer, in the rounds."""
    spans: dict[str, dict[Cell, Region]] = {part: {} for part in PARTS}
    for region in trace.regions:
        part = _part_of(region.path)
        if part is not None and trace.round_at(region.start_us) is not None:
            spans[part].setdefault(_cell(region.path, region.start_us, trace), region)
    return spans


def _part_row(part: str, cells: Layers, spans: dict[Cell, Region], rates: Rates) -> Json:
    busy_us, idle_us = _typical_us(cells.values()), median(map(_idle_us, cells.values()))
    flops = fmean(sum(kernel.flops for kernel in group) for group in cells.values())
    product_flops = fmean(sum(kernel.flops for kernel in _products(group)) for group in cells.values())
    known = fmean(sum(kernel.bytes_touched or 0 for kernel in group) for group in cells.values())
    layers: dict[str, list[float]] = defaultdict(list)
    for (_, layer), group in cells.items():
        layers[layer].append(total_us(group))
    of_layer = [fmean(times) / 1e6 for times in layers.values()]
    return {
        "part": part,
        "launches": fmean(len(group) for group in cells.values()),
        "device_seconds": busy_us / 1e6,
        "host_seconds": median(region.us for region in spans.values()) / 1e6 if spans else None,
        "flops": flops,
        "bytes": known,
        "bound": rates.bound(product_flops, known, busy_us, idle_us),
        "spread_over_layers": {
            "stddev_seconds": pstdev(of_layer), "min_seconds": min(of_layer), "max_seconds": max(of_layer)
        },
    }  # fmt: skip


def _idle_us(kernels: Sequence[TracedKernel]) -> float:
    """From the first start to the last end, less what was busy; kernels of one part run one after the other."""
    span_us = max(kernel.end_us for kernel in kernels) - min(kernel.start_us for kernel in kernels)
    return max(span_us - total_us(kernels), 0.0)


def _lanes(cells: dict[str, Layers], layers: Layers, spans: dict[str, dict[Cell, Region]]) -> list[Json]:
    """When the host and the device worked on the layer of median time, from its first moment on.

    Host: each part's region; in the backward pass, which has none, the calls that launch. On a CPU both are one.
    """
    chosen = sorted(layers, key=lambda cell: (total_us(layers[cell]), cell))[len(layers) // 2]
    lanes: list[tuple[str, str, Span]] = []
    for part, groups in cells.items():
        kernels = groups.get(chosen, [])
        region = spans.get(part, {}).get(chosen)
        launches = [kernel.launch for kernel in kernels if kernel.launch is not None]
        lanes += [("host", part, span) for span in ([region] if region else launches)]
        lanes += [("device", part, kernel) for kernel in kernels]
    start_us = min(span.start_us for _, _, span in lanes)
    return [
        {"side": side, "part": part, "start_seconds": (span.start_us - start_us) / 1e6, "seconds": span.us / 1e6}
        for side, part, span in sorted(lanes, key=lambda lane: (lane[0], lane[2].start_us))
    ]


def _softmax_over_products(cells: dict[str, Layers]) -> Json:
    softmax = cells["softmax"].values()
    products = [_products(group) for part in PRODUCTS for group in cells[part].values()]
    flops = sum(kernel.flops for group in products for kernel in group)
    softmax_flops = sum(kernel.flops for group in softmax for kernel in group)
    return {
        # Both products together take as long as two typical ones.
        "softmax_over_products_time": _typical_us(softmax) / (len(PRODUCTS) * _typical_us(products))
        if softmax and any(products)
        else None,
        "softmax_over_products_flops": softmax_flops / flops if softmax and flops else None,
    }


def _products(kernels: Sequence[TracedKernel]) -> list[TracedKernel]:
    return [kernel for kernel in kernels if kernel.kind == "matrix product"]


def _typical_us(groups: Iterable[Sequence[TracedKernel]]) -> float:
    return median(map(total_us, groups))
