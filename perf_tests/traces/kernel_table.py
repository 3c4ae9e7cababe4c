"""What the kernels of one round are and take: by name and shape, by kind, by region of the model, and the gaps."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from perf_tests.phases import LANGUAGE_MODEL, phase_named
from perf_tests.records.record import Json
from perf_tests.traces.attention_layer import attention_values
from perf_tests.traces.distribution import calls_of, spread_of
from perf_tests.traces.kernel_events import MemoryOperation, Span, Trace, TracedKernel, total_us
from perf_tests.traces.kernel_kinds import KINDS, PRODUCTS
from perf_tests.traces.region_names import label

TOP_KERNELS = 12
TOP_SHAPES = 6

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Span)


def kernel_values(
    trace: Trace, identity: Json, plain_seconds: float | None = None, matmul_flops_per_second: float | None = None
) -> Json:
    """The values of a kernel pass, of one round each, by seconds. Raises ValueError where the rounds hold no kernel.

    `plain_seconds` is the same round without a profiler.
    """
    count = len(trace.rounds)
    kernels = [kernel for kernel in trace.kernels if trace.round_at(kernel.issued_us) is not None]
    if not kernels:
        raise ValueError("no kernel ran inside a round")
    wall_us = total_us(trace.rounds) / count
    kernel_us = total_us(kernels) / count
    of_round = [sum(span.holds(kernel.issued_us) for kernel in kernels) for span in trace.rounds]
    busy_us = total_us(busy(kernels, trace)) / count
    of_kind = _grouped(kernels, lambda kernel: kernel.kind)
    return {
        "rounds": count,
        "on_gpu": trace.is_on_gpu,
        "left_out": _left_out(trace, identity),
        "wall_seconds": wall_us / 1e6,
        "plain_wall_seconds": plain_seconds,
        "kernel_seconds": kernel_us / 1e6,
        "busy_share": busy_us / wall_us,
        "launches": of_round[0],
        "launches_of_rounds": of_round,
        "matrix_products": _matrix_products(kernels, identity, count, kernel_us, wall_us),
        "kinds": [
            _share_row({"kind": kind}, group, count, kernel_us, wall_us)
            for kind, group in sorted(of_kind.items(), key=lambda item: KINDS.index(item[0]))
        ],
        **_top_kernels(kernels, count, kernel_us),
        "regions": _regions(kernels, count, kernel_us, wall_us),
        "memory_operations": _memory_operations(trace, wall_us),
        "idle_gaps": spread_of(_idle_gaps(kernels, trace)),
        "api_gaps": spread_of(_api_gaps(trace)),
        "launch_to_start": spread_of(
            [kernel.start_us - kernel.launch.start_us for kernel in kernels if kernel.launch is not None]
        ),
        "attention": attention_values(trace, kernels, matmul_flops_per_second),
    }


def expected_products(identity: Json) -> int | None:
    """Matrix products of one round of naive attention: 9 a layer and the head's going forward, twice that back."""
    if identity.get("attention") != "naive" or identity.get("execution", "eager") != "eager":
        return None
    if identity.get("checkpoint", "none") != "none" or identity.get("model", "ours") != "ours":
        return None
    phase = phase_named(str(identity.get("phase")))
    if phase is None:
        return None
    forward = 9 * identity["num_layers"] + 1 if phase.family == LANGUAGE_MODEL else 2
    return (phase.forward_multiple or 0) * forward


def _left_out(trace: Trace, identity: Json) -> str | None:
    """What the table cannot show, in words; None if nothing."""
    if trace.is_on_gpu or "compiled" not in (identity.get("attention"), identity.get("execution")):
        return None
    return "code that torch.compile generates for a CPU shows as no kernel; launches and shares are without it"


def _matrix_products(
    kernels: Sequence[TracedKernel], identity: Json, count: int, kernel_us: float, wall_us: float
) -> Json:
    """A product is counted once, however many kernels it is split into."""
    products = [kernel for kernel in kernels if kernel.kind == "matrix product"]
    counted = sum(_is_a_product(kernel) for kernel in products) / count
    return {
        **_share_row({}, products, count, kernel_us, wall_us),
        "count": int(counted) if counted.is_integer() else counted,
        "expected_count": expected_products(identity),
    }


def _is_a_product(kernel: TracedKernel) -> bool:
    if kernel.operator:
        return kernel.is_first_of_operation and kernel.operator in PRODUCTS
    return "splitk" not in kernel.name.lower() or "reduce" not in kernel.name.lower()


def _share_row(names: Json, kernels: Sequence[TracedKernel], count: int, kernel_us: float, wall_us: float) -> Json:
    of_round_us = total_us(kernels) / count
    return {
        **names,
        "launches": len(kernels) / count,
        "seconds": of_round_us / 1e6,
        "share_of_kernel_time": of_round_us / kernel_us if kernel_us else 0.0,
        "share_of_wall": of_round_us / wall_us if wall_us else 0.0,
    }


def _top_kernels(kernels: Sequence[TracedKernel], count: int, kernel_us: float) -> Json:
    """The kernels that take most, and in one row all that are left."""
    groups = sorted(_grouped(kernels, lambda kernel: kernel.name).items(), key=lambda item: -total_us(item[1]))
    left = [kernel for _, group in groups[TOP_KERNELS:] for kernel in group]
    return {
        "kernels": [_kernel_row(name, group, count, kernel_us) for name, group in groups[:TOP_KERNELS]],
        "other_kernels": {
            "names": len(groups[TOP_KERNELS:]),
            "calls": len(left) / count,
            "total_seconds": total_us(left) / count / 1e6,
            "share": total_us(left) / count / kernel_us,
        },
    }


def _kernel_row(name: str, kernels: Sequence[TracedKernel], count: int, kernel_us: float) -> Json:
    shapes = sorted(_grouped(kernels, lambda kernel: kernel.shapes).items(), key=lambda item: -total_us(item[1]))
    return {
        "name": name,
        "kind": kernels[0].kind,
        **calls_of([kernel.us for kernel in kernels], count),
        "share": total_us(kernels) / count / kernel_us,
        "shapes": [
            {"shapes": shape, **calls_of([kernel.us for kernel in group], count)}
            for shape, group in shapes[:TOP_SHAPES]
        ],
    }


def _regions(kernels: Sequence[TracedKernel], count: int, kernel_us: float, wall_us: float) -> list[Json]:
    """A row for each region and direction, what lies inside it included; shares are of the whole round and of its
    direction."""
    groups: dict[tuple[bool, str], list[TracedKernel]] = defaultdict(list)
    for kernel in kernels:
        for name in label(kernel.regions):
            groups[kernel.is_backward, name].append(kernel)
    direction_us = {back: sum(k.us for k in kernels if k.is_backward is back) / count for back in (False, True)}
    return [
        {
            **_share_row({"region": name, "is_backward": back}, group, count, kernel_us, wall_us),
            "share_of_direction": total_us(group) / count / direction_us[back] if direction_us[back] else 0.0,
        }
        for (back, name), group in sorted(groups.items())
    ]


def _memory_operations(trace: Trace, wall_us: float) -> list[Json]:
    count = len(trace.rounds)
    return [
        {
            "kind": kind,
            "count": len(group) / count,
            "bytes": sum(operation.bytes_moved for operation in group) // count,
            "seconds": total_us(group) / count / 1e6,
            "share_of_wall": total_us(group) / count / wall_us,
        }
        for kind, group in sorted(_grouped(_copies(trace), lambda operation: operation.kind).items())
    ]


def _copies(trace: Trace) -> list[MemoryOperation]:
    return [operation for operation in trace.memory_operations if trace.round_at(operation.issued_us) is not None]


def busy(kernels: Iterable[Span], trace: Trace) -> list[Span]:
    """When the device had something to do in the rounds: kernels and copies, overlaps counted once."""
    copies = _copies(trace)
    merged: list[Span] = []
    for span in sorted((*kernels, *copies), key=lambda span: span.start_us):
        if merged and span.start_us <= merged[-1].end_us:
            merged[-1] = Span(merged[-1].start_us, max(merged[-1].end_us, span.end_us))
        else:
            merged.append(Span(span.start_us, span.end_us))
    return merged


def _idle_gaps(kernels: Sequence[TracedKernel], trace: Trace) -> list[float]:
    """Microseconds between one thing and the next on the device, within a round."""
    spans = busy(kernels, trace)
    return [
        later.start_us - earlier.end_us
        for earlier, later in pairwise(spans)
        if trace.round_at(earlier.end_us, later.start_us) is not None
    ]


def _api_gaps(trace: Trace) -> list[float]:
    """Microseconds in which a thread of the host, between two calls to the device's runtime, was in none."""
    inside = [call for call in trace.calls if trace.round_at(call.start_us) is not None]
    gaps = []
    for calls in _grouped(inside, lambda call: call.thread).values():
        ordered = sorted(calls, key=lambda call: call.start_us)
        gaps += [
            max(later.start_us - earlier.end_us, 0.0)
            for earlier, later in pairwise(ordered)
            if trace.round_at(earlier.start_us, later.start_us) is not None
        ]
    return gaps


def _grouped(spans: Iterable[S], key: Callable[[S], K]) -> dict[K, list[S]]:
    groups: dict[K, list[S]] = defaultdict(list)
    for span in spans:
        groups[key(span)].append(span)
    return groups
