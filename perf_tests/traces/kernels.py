"""The kernels of one round: by name and shape, by kind, by region of the model, and the gaps between them; one layer of
attention by part; and what the first round of a process is spent on."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter
from statistics import fmean, median, pstdev

from perf_tests_suite.perf_tests.phases import LANGUAGE_MODEL, phase_named
from perf_tests_suite.perf_tests.records.record import FLAG, NUMBER, TEXT, Json, OrNull, grouped
from perf_tests_suite.perf_tests.traces import trace as traces
from perf_tests_suite.perf_tests.traces.trace import (
    PRODUCTS,
    ROUND,
    Region,
    Span,
    Trace,
    TracedKernel,
    layer_of,
    total_us,
)

Kernels = Sequence[TracedKernel]
START, END, KIND = map(attrgetter, ("start_us", "end_us", "kind"))

TOP_KERNELS = 12
TOP_SHAPES = 6

_SHARES = {"launches": NUMBER, "share_of_kernel_time": NUMBER, "share_of_wall": NUMBER}
_CALLS = {"calls": NUMBER, "total_seconds": NUMBER, "mean_seconds": NUMBER, "stddev_seconds": NUMBER}
_SPREAD = {"count": NUMBER, "median_seconds": NUMBER, "p95_seconds": NUMBER, "max_seconds": NUMBER}
_ATTENTION_PART = {
    "part": TEXT, "launches": NUMBER, "device_seconds": NUMBER, "host_seconds": OrNull(NUMBER), "flops": NUMBER,
    "bytes": NUMBER, "bound": OrNull(TEXT), "spread_over_layers": {"stddev_seconds": NUMBER},
}  # fmt: skip
_ATTENTION = {
    "layers": NUMBER, "parts": [_ATTENTION_PART], "softmax_over_products_time": OrNull(NUMBER),
    "softmax_over_products_flops": OrNull(NUMBER), "seconds": NUMBER, "saved_without_gaps_seconds": NUMBER,
    "saved_by_fusing_seconds": NUMBER,
}  # fmt: skip
_REGION = {
    "region": TEXT, "is_backward": FLAG, "seconds": NUMBER, "share_of_direction": NUMBER, "seconds_by_kind?": {},
    **_SHARES,
}  # fmt: skip
KERNEL_VALUES = {
    "rounds": NUMBER, "launches": NUMBER, "launches_of_rounds?": OrNull([NUMBER]), "kernel_seconds": NUMBER,
    "wall_seconds": NUMBER, "busy_share": NUMBER, "left_out?": OrNull(TEXT), "trace_reason?": OrNull(TEXT),
    "matrix_products": {"count": NUMBER, "expected_count?": OrNull(NUMBER), "share_of_kernel_time": NUMBER},
    "kinds": [{"kind": TEXT, "seconds": NUMBER, **_SHARES}],
    "kernels": [{"name": TEXT, "share": NUMBER, **_CALLS, "shapes": [{"shapes": TEXT, **_CALLS}]}],
    "other_kernels": {"names": NUMBER, "calls": NUMBER, "total_seconds": NUMBER, "share": NUMBER},
    "regions": [_REGION],
    "memory_operations": [
        {"kind": TEXT, "count": NUMBER, "bytes": NUMBER, "seconds": NUMBER, "share_of_wall": NUMBER}
    ],
    "idle_gaps?": OrNull(_SPREAD), "api_gaps?": OrNull(_SPREAD), "launch_to_start?": OrNull(_SPREAD),
    "attention": OrNull({"forward?": OrNull(_ATTENTION), "backward?": OrNull(_ATTENTION)}),
}  # fmt: skip
"""What a reader of a stored kernel pass takes for granted."""


def kernel_values(
    trace: Trace, identity: Json, plain_seconds: float | None = None, matmul_flops_per_second: float | None = None
) -> Json:
    """The values of a kernel pass, of one round each, in seconds. Raises ValueError where the rounds hold no kernel.

    `plain_seconds` is the same round without a profiler.
    """
    kernels = [kernel for kernel in trace.kernels if trace.round_at(kernel.issued_us) is not None]
    copies = [operation for operation in trace.memory_operations if trace.round_at(operation.issued_us) is not None]
    if not kernels:
        raise ValueError("no kernel ran inside a round")
    if not total_us(kernels) > 0 or not total_us(trace.rounds) > 0:
        raise ValueError("its kernels or its rounds take no time")
    count = len(trace.rounds)
    rounds = _Rounds(count, total_us(kernels) / count, total_us(trace.rounds) / count)
    busy = _merged([*kernels, *copies])
    calls = grouped(sorted(trace.calls, key=START), attrgetter("thread")).values()
    launches = Counter(trace.round_at(kernel.issued_us) for kernel in kernels)
    of_round = [launches[number] for number in range(count)]
    products = _products(kernels)
    is_compiled = "compiled" in (identity.get("attention"), identity.get("execution"))
    left_out = None
    if is_compiled and not trace.is_on_gpu:
        left_out = "code that torch.compile generates for a CPU appears in no kernel, so launches and shares exclude it"
    elif trace.unlaunched:
        left_out = f"{trace.unlaunched} kernels were launched before the trace began and are left out"
    return {
        "rounds": count,
        "on_gpu": trace.is_on_gpu,
        "left_out": left_out,
        "wall_seconds": rounds.wall_us / 1e6,
        "plain_wall_seconds": plain_seconds,
        "kernel_seconds": rounds.kernel_us / 1e6,
        "busy_share": total_us(busy) / count / rounds.wall_us,
        "launches": of_round[0],
        "launches_of_rounds": of_round,
        "matrix_products": {
            **rounds.shares(products),
            "count": _whole(sum(map(_is_a_product, products)) / count),
            "expected_count": expected_products(identity),
        },
        "kinds": [
            {"kind": kind, **rounds.shares(group)}
            for kind, group in sorted(grouped(kernels, KIND).items(), key=lambda item: traces.KINDS.index(item[0]))
        ],
        **_top_kernels(kernels, rounds),
        "regions": _regions(kernels, rounds),
        "memory_operations": [
            {
                "kind": kind,
                "count": len(group) / count,
                "bytes": sum(copy.bytes_moved for copy in group) // count,
                "seconds": rounds.seconds(group),
                "share_of_wall": rounds.seconds(group) * 1e6 / rounds.wall_us,
            }
            for kind, group in sorted(grouped(copies, KIND).items())
        ],
        "idle_gaps": _spread(_gaps(trace, [busy], END)),
        "api_gaps": _spread(_gaps(trace, calls, START)),
        # On a CPU each operation is its own call, and no kernel is launched.
        "launch_to_start": _spread([one.start_us - one.launch.start_us for one in kernels if one.launch]),
        "attention": attention_values(trace, kernels, matmul_flops_per_second),
    }


def expected_products(identity: Json) -> int | None:
    """Matrix products of one round of naive attention: 9 a layer and the head's going forward, twice that back."""
    naive = {"attention": "naive", "execution": "eager", "checkpoint": "none", "model": "ours"}
    is_naive = "attention" in identity and all(identity.get(name, value) == value for name, value in naive.items())
    phase = phase_named(str(identity.get("phase")))
    if phase is None or not is_naive:
        return None
    forward = 9 * identity["num_layers"] + 1 if phase.family == LANGUAGE_MODEL else 2
    return (phase.forward_multiple or 0) * forward


@dataclass(frozen=True)
class _Rounds:
    """How many rounds were traced, and the mean kernel and wall time of one."""

    count: int
    kernel_us: float
    wall_us: float

    def seconds(self, spans: Iterable[Span]) -> float:
        return total_us(spans) / self.count / 1e6

    def shares(self, kernels: Kernels) -> Json:
        of_round_us = total_us(kernels) / self.count
        return {
            "launches": len(kernels) / self.count,
            "seconds": of_round_us / 1e6,
            "share_of_kernel_time": of_round_us / self.kernel_us if self.kernel_us else 0.0,
            "share_of_wall": of_round_us / self.wall_us if self.wall_us else 0.0,
        }

    def calls(self, kernels: Kernels) -> Json:
        """Calls and total of one round, mean and standard deviation of one call; counts that differ give a fraction."""
        times_us = [kernel.us for kernel in kernels]
        return {
            "calls": _whole(len(times_us) / self.count),
            "total_seconds": sum(times_us) / self.count / 1e6,
            "mean_seconds": fmean(times_us) / 1e6,
            "stddev_seconds": pstdev(times_us) / 1e6,
        }


def _whole(count: float) -> float:
    return int(count) if count.is_integer() else count


def _longest_first(attribute: str, kernels: Kernels) -> list[tuple[str, list[TracedKernel]]]:
    return sorted(grouped(kernels, attrgetter(attribute)).items(), key=lambda item: -total_us(item[1]))


def _products(kernels: Kernels) -> list[TracedKernel]:
    return [kernel for kernel in kernels if kernel.kind == "matrix product"]


def _is_a_product(kernel: TracedKernel) -> bool:
    """Whether it counts as one: a product counts once, however many kernels it is split into."""
    if kernel.operator:
        return kernel.is_first_of_operation and kernel.operator in PRODUCTS
    return "splitk" not in kernel.name.lower() or "reduce" not in kernel.name.lower()


def _top_kernels(kernels: Kernels, rounds: _Rounds) -> Json:
    groups = _longest_first("name", kernels)
    left = [kernel for _, group in groups[TOP_KERNELS:] for kernel in group]
    return {
        "kernels": [
            {
                "name": name,
                "kind": group[0].kind,
                **rounds.calls(group),
                "share": total_us(group) / rounds.count / rounds.kernel_us,
                "shapes": [
                    {"shapes": shapes, **rounds.calls(alike)}
                    for shapes, alike in _longest_first("shapes", group)[:TOP_SHAPES]
                ],
            }
            for name, group in groups[:TOP_KERNELS]
        ],
        "other_kernels": {
            "names": len(groups[TOP_KERNELS:]),
            "calls": len(left) / rounds.count,
            "total_seconds": rounds.seconds(left),
            "share": total_us(left) / rounds.count / rounds.kernel_us,
        },
    }


def _regions(kernels: Kernels, rounds: _Rounds) -> list[Json]:
    """A row for each region and direction, with everything inside it; shares are of the round and of its direction."""
    groups: dict[tuple[bool, str], list[TracedKernel]] = defaultdict(list)
    for kernel in kernels:
        for name in traces.label(kernel.regions):
            groups[kernel.is_backward, name].append(kernel)
    count = rounds.count
    direction_us = {back: sum(k.us for k in kernels if k.is_backward is back) / count for back in (False, True)}
    return [
        {
            "region": name,
            "is_backward": back,
            **rounds.shares(group),
            "share_of_direction": total_us(group) / count / direction_us[back] if direction_us[back] else 0.0,
            "seconds_by_kind": {kind: rounds.seconds(alike) for kind, alike in sorted(grouped(group, KIND).items())},
        }
        for (back, name), group in sorted(groups.items())
    ]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The same time with overlaps counted once, in order."""
    merged: list[Span] = []
    for span in sorted(spans, key=START):
        if merged and span.start_us <= merged[-1].end_us:
            merged[-1] = Span(merged[-1].start_us, max(merged[-1].end_us, span.end_us))
        else:
            merged.append(Span(span.start_us, span.end_us))
    return merged


def _gaps(trace: Trace, lanes: Iterable[Sequence[Span]], since: Callable[[Span], float]) -> list[float]:
    """Microseconds between two spans of a lane, such as a thread's calls, that are in one round `since` the first's."""
    return [
        max(later.start_us - earlier.end_us, 0.0)
        for lane in lanes
        for earlier, later in pairwise(lane)
        if trace.round_at(since(earlier), later.start_us) is not None
    ]


def _spread(times_us: Sequence[float]) -> Json | None:
    """Count, total, median, 95th percentile (the smallest that 95 % do not exceed) and maximum; None without any."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    return {
        "count": len(ordered),
        "total_seconds": sum(ordered) / 1e6,
        "median_seconds": median(ordered) / 1e6,
        "p95_seconds": ordered[-(-95 * len(ordered) // 100) - 1] / 1e6,
        "max_seconds": ordered[-1] / 1e6,
    }


# One attention layer by part: scores, mask, softmax, value product; the time of each and what bounds it.


PARTS = ("scores", "mask", "softmax", "value_product")
LAYER_PRODUCTS = ("scores", "value_product")

WORTH_A_RATE_BYTES = 2**16
"""Kernels that move less show the cost of a launch rather than the memory's rate."""

Cell = tuple[int, str]
"""One layer in one round."""
Layers = dict[Cell, list[TracedKernel]]
Bound = Callable[[float, float, float, float], str | None]


def attention_values(trace: Trace, kernels: Kernels, matmul_flops_per_second: float | None) -> Json | None:
    """One typical layer of one round, in both directions: times are medians over layers and rounds.

    None where attention is not made of these parts.
    """
    bytes_per_second = [
        touched / kernel.us * 1e6
        for kernel in kernels
        if kernel.kind != "matrix product" and kernel.us
        if (touched := kernel.bytes_touched or 0) >= WORTH_A_RATE_BYTES
    ]
    best_bytes_per_second = max(bytes_per_second, default=None)

    def bound(product_flops: float, bytes_touched: float, busy_us: float, idle_us: float) -> str | None:
        """`launch` where the device waits longer than it works, else the slower of arithmetic and memory.

        Arithmetic is that of matrix products, at the rate of a square one; what has none is bound by memory, at the
        rate of this trace's fastest kernel.
        """
        if idle_us > busy_us:
            return "launch"
        if not product_flops:
            return "memory"
        if not matmul_flops_per_second or not best_bytes_per_second:
            return None
        is_arithmetic = product_flops / matmul_flops_per_second > bytes_touched / best_bytes_per_second
        return "compute" if is_arithmetic else "memory"

    directions = {name: _direction(trace, kernels, bound, name == "backward") for name in ("forward", "backward")}
    return directions if any(directions.values()) else None


def _direction(trace: Trace, kernels: Kernels, bound: Bound, is_backward: bool) -> Json | None:
    cells: dict[str, Layers] = {part: defaultdict(list) for part in PARTS}
    layers: Layers = defaultdict(list)
    for kernel in kernels:
        if kernel.is_backward is is_backward and (place := _place(kernel.regions, kernel.issued_us, trace)):
            part, cell = place
            cells[part][cell].append(kernel)
            layers[cell].append(kernel)
    if not all(cells[part] for part in LAYER_PRODUCTS):
        return None
    # When the host ran each part of each layer, in the rounds; the backward pass has no regions of its own.
    spans: dict[str, dict[Cell, Region]] = {part: {} for part in PARTS}
    for region in () if is_backward else trace.regions:
        if place := _place(region.path, region.start_us, trace):
            part, cell = place
            spans[part].setdefault(cell, region)
    softmax = cells["softmax"].values()
    products = [_products(group) for part in LAYER_PRODUCTS for group in cells[part].values()]
    flops, softmax_flops = (sum(kernel.flops for group in groups for kernel in group) for groups in (products, softmax))
    # Both products together take as long as two typical ones.
    is_timed = softmax and any(products)
    others = [sum(kernel.us for kernel in group if kernel.kind != "matrix product") for group in layers.values()]
    return {
        "layers": len({layer for _, layer in layers}),
        "parts": [_part_row(part, cells[part], spans[part], bound) for part in PARTS if cells[part]],
        "lanes": _lanes(cells, layers, spans),
        "softmax_over_products_time": _typical_us(softmax) / (2 * _typical_us(products)) if is_timed else None,
        "softmax_over_products_flops": softmax_flops / flops if softmax and flops else None,
        "seconds": _typical_us(layers.values()) / 1e6,
        "saved_without_gaps_seconds": median(map(_idle_us, layers.values())) / 1e6,
        "saved_by_fusing_seconds": median(others) / 1e6,
    }


def _place(path: tuple[str, ...], moment_us: float, trace: Trace) -> tuple[str, Cell] | None:
    """The part and the layer that the region is in at the moment; None for other regions and outside of the rounds."""
    if not path or path[-1] not in PARTS or (number := trace.round_at(moment_us)) is None:
        return None
    return path[-1], (number, layer_of(path) or "alone")


def _part_row(part: str, cells: Layers, spans: dict[Cell, Region], bound: Bound) -> Json:
    groups = cells.values()
    busy_us, idle_us = _typical_us(groups), median(map(_idle_us, groups))
    product_flops = fmean(sum(kernel.flops for kernel in _products(group)) for group in groups)
    touched = fmean(sum(kernel.bytes_touched or 0 for kernel in group) for group in groups)
    layers = grouped(cells, itemgetter(1)).values()
    of_layer = [fmean(total_us(cells[cell]) for cell in layer) / 1e6 for layer in layers]
    return {
        "part": part,
        "launches": fmean(len(group) for group in groups),
        "device_seconds": busy_us / 1e6,
        "host_seconds": median(region.us for region in spans.values()) / 1e6 if spans else None,
        "flops": fmean(sum(kernel.flops for kernel in group) for group in groups),
        "bytes": touched,
        "bound": bound(product_flops, touched, busy_us, idle_us),
        "spread_over_layers": {
            "stddev_seconds": pstdev(of_layer), "min_seconds": min(of_layer), "max_seconds": max(of_layer)
        },
    }  # fmt: skip


def _typical_us(groups: Iterable[Kernels]) -> float:
    return median(map(total_us, groups))


def _idle_us(kernels: Kernels) -> float:
    """Time from the first start to the last end, less what was busy; kernels of one part run one after the other."""
    span_us = max(kernel.end_us for kernel in kernels) - min(kernel.start_us for kernel in kernels)
    return max(span_us - total_us(kernels), 0.0)


def _lanes(cells: dict[str, Layers], layers: Layers, spans: dict[str, dict[Cell, Region]]) -> list[Json]:
    """Return when the host and the device worked on the layer of median time, from its first moment on.

    Host: each part's region; in the backward pass, which has none, the calls that launch. On a CPU both are one.
    """
    chosen = sorted(layers, key=lambda cell: (total_us(layers[cell]), cell))[len(layers) // 2]
    lanes: list[tuple[str, str, Span]] = []
    for part, groups in cells.items():
        kernels, region = groups.get(chosen, []), spans[part].get(chosen)
        launches = [kernel.launch for kernel in kernels if kernel.launch is not None]
        lanes += [("host", part, span) for span in ([region] if region else launches)]
        lanes += [("device", part, kernel) for kernel in kernels]
    start_us = min(span.start_us for _, _, span in lanes)
    return [
        {"side": side, "part": part, "start_seconds": (span.start_us - start_us) / 1e6, "seconds": span.us / 1e6}
        for side, part, span in sorted(lanes, key=lambda lane: (lane[0], lane[2].start_us))
    ]


# What the first round of a process is spent on: its trace compared with that of a later round, by part.
#
# In: two Chrome traces as torch.profiler exports them (Kineto's schema). Out: seconds by part, which sum to the first
# round. Only the page faults of a CPU are estimated, from their number and cost, which are measured apart.


MODULE_LOADING, COMPILATION, ALLOCATOR, LIBRARY, LAUNCHES, OPERATORS = (
    "module_loading_seconds", "compilation_seconds", "allocator_growth_seconds", "library_handles_seconds",
    "first_launches_seconds", "other_operators_seconds",
)  # fmt: skip
FIRST_ROUND_PARTS = (MODULE_LOADING, COMPILATION, ALLOCATOR, LIBRARY, LAUNCHES, OPERATORS)
"""Python modules and the driver's own; torch.compile; memory from the driver or the kernel; first matrix products,
which make their library's handles and choose its kernels; launches, which load a kernel lazily; other operators."""
STEADY, UNEXPLAINED = "steady_round_seconds", "unexplained_seconds"

PRODUCTS_OF_LIBRARIES = re.compile(r"^aten::_?(scaled_dot_product|flash_attention|efficient_attention|fused_sdp)")
LOADING = re.compile(r"^import of |^cu(da)?(Module|Library)(Load|Get)|^cuda(FuncGetAttributes|GetFuncBySymbol)")
COMPILING = re.compile(r"\(dynamo_timed\)$")
CALLS = {
    re.compile(
        r"^cuda(Malloc|HostAlloc|Free|HostRegister)|^cuMem(Alloc|Create|Map|SetAccess|AddressReserve)"
    ): ALLOCATOR,
    re.compile(r"^cu(da)?(Launch|GraphLaunch|OccupancyMax)"): LAUNCHES,
    re.compile(r"^cu(da)?(Device|Ctx|Stream|Event)Synchronize"): None,
}
LARGEST = 5
TICK_SECONDS = 0.01
"""Tick of the clock that tells the kernel's share of CPU time (proc(5), sysconf(_SC_CLK_TCK) on Linux)."""


@dataclass(frozen=True)
class TracedRound:
    """One round: the events of its trace, its page faults, and the operating system's CPU time for it."""

    events: Sequence[Json]
    page_faults: int
    system_seconds: float


def first_round_parts(first: TracedRound, steady: TracedRound, seconds_per_fault: float | None) -> dict[str, float]:
    """Seconds by part: a steady round first, the unexplained rest last; the sum is the first round as traced.

    Each part is its growth over the steady round, at least 0. `seconds_per_fault` is None where memory does not come by
    page faults. Faults take at most the operating system's own time, known to a tick of its clock. If a compiler ran,
    its faults cannot be told from the operators', so all stay where they happened. The rest may be negative, because
    host and device work at the same time. Raises ValueError for a trace without its round.
    """
    (seconds, spent, _), (usual_seconds, usual, _) = _spent(first), _spent(steady)
    parts = {part: max(0.0, spent[part] - usual[part]) for part in FIRST_ROUND_PARTS}
    # Page faults happen inside the operators that first write to new pages: they are taken from these.
    inside = parts[LIBRARY] + parts[OPERATORS]
    if seconds_per_fault is not None and not parts[COMPILATION] and inside:
        fault_seconds = (first.page_faults - steady.page_faults) * seconds_per_fault
        kernel_seconds = first.system_seconds - steady.system_seconds + TICK_SECONDS
        share = min(1.0, max(0.0, min(fault_seconds, kernel_seconds)) / inside)
        parts[ALLOCATOR] += share * inside
        for part in (LIBRARY, OPERATORS):
            parts[part] *= 1 - share
    return {STEADY: usual_seconds, **parts, UNEXPLAINED: seconds - usual_seconds - sum(parts.values())}


def largest_growth(first: TracedRound, steady: TracedRound) -> list[Json]:
    """The events whose own time, without the events inside them, grew most; at most five."""
    (_, _, spent), (_, _, usual) = _spent(first), _spent(steady)
    growth = {name: seconds - usual[name] for name, seconds in spent.items() if seconds > usual[name]}
    largest = sorted(growth, key=lambda name: -growth[name])[:LARGEST]
    return [{"name": name, "seconds": growth[name]} for name in largest]


def _spent(traced: TracedRound) -> tuple[float, Mapping[str, float], Mapping[str, float]]:
    """Seconds of the round, and of each event without the events inside it: by part, and by name."""
    events = [event for event in traced.events if event.get("ph") == "X" and event.get("cat") in traces.HOST_EVENTS]
    found = next((event for event in events if event["name"] == ROUND), None)
    if found is None:
        raise ValueError("the trace has no round in it: nothing was traced, or the profiler dropped it.")
    start, stop = found["ts"], found["ts"] + found["dur"]
    inside = [event for event in events if start <= event["ts"] < stop and event is not found]
    by_part, by_name = defaultdict[str, float](float), defaultdict[str, float](float)
    open_events: dict[object, list[tuple[float, str | None, str]]] = defaultdict(list)
    for event in sorted(inside, key=lambda event: (event["ts"], -event["dur"])):
        stack = open_events[event["tid"]]
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        around = stack[-1] if stack else (0.0, None, "")
        part, seconds = _first_round_part_of(event, around[1]), event["dur"] / 1e6
        for of, name, own in ((part, event["name"], seconds), (*around[1:], -seconds)):
            if of is not None:
                by_part[of] += own
                by_name[name] += own
        stack.append((event["ts"] + event["dur"], part, event["name"]))
    return found["dur"] / 1e6, by_part, by_name


def _first_round_part_of(event: Json, around: str | None) -> str | None:
    """The part of an event's own time; None for none. Everything inside a load or a compilation is part of it."""
    name = event["name"]
    if around == MODULE_LOADING or LOADING.match(name):
        return MODULE_LOADING
    if around == COMPILATION or COMPILING.search(name):
        return COMPILATION
    for pattern, part in CALLS.items():
        if pattern.match(name):
            return part
    if event["cat"] != "cpu_op":
        return around
    return LIBRARY if name in PRODUCTS or PRODUCTS_OF_LIBRARIES.match(name) else OPERATORS
