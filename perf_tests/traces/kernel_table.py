"""The kernels of one round: by name and shape, by kind, by region of the model, and the gaps between them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from perf_tests.phases import LANGUAGE_MODEL, phase_named
from perf_tests.records.grouped import grouped
from perf_tests.records.record import Json
from perf_tests.records.shapes import FLAG, NUMBER, TEXT, OrNull
from perf_tests.traces.attention_layer import attention_values
from perf_tests.traces.kernel_events import MemoryOperation, Span, Trace, TracedKernel, label, total_us
from perf_tests.traces.kernel_kinds import KINDS, PRODUCTS

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


@dataclass(frozen=True)
class _Rounds:
    """How many rounds were traced, and the mean kernel and wall time of one."""

    count: int
    kernel_us: float
    wall_us: float

    def shares(self, kernels: Sequence[TracedKernel]) -> Json:
        of_round_us = total_us(kernels) / self.count
        return {
            "launches": len(kernels) / self.count,
            "seconds": of_round_us / 1e6,
            "share_of_kernel_time": of_round_us / self.kernel_us if self.kernel_us else 0.0,
            "share_of_wall": of_round_us / self.wall_us if self.wall_us else 0.0,
        }

    def calls(self, kernels: Sequence[TracedKernel]) -> Json:
        """Calls and total of one round, mean and standard deviation of one call; counts that differ give a fraction."""
        times_us = [kernel.us for kernel in kernels]
        return {
            "calls": _whole(len(times_us) / self.count),
            "total_seconds": sum(times_us) / self.count / 1e6,
            "mean_seconds": fmean(times_us) / 1e6,
            "stddev_seconds": pstdev(times_us) / 1e6,
        }


def kernel_values(
    trace: Trace, identity: Json, plain_seconds: float | None = None, matmul_flops_per_second: float | None = None
) -> Json:
    """The values of a kernel pass, of one round each, in seconds. Raises ValueError where the rounds hold no kernel.

    `plain_seconds` is the same round without a profiler.
    """
    kernels = [kernel for kernel in trace.kernels if trace.round_at(kernel.issued_us) is not None]
    if not kernels:
        raise ValueError("no kernel ran inside a round")
    if not total_us(kernels) > 0 or not total_us(trace.rounds) > 0:
        raise ValueError("its kernels or its rounds take no time")
    count = len(trace.rounds)
    rounds = _Rounds(count, total_us(kernels) / count, total_us(trace.rounds) / count)
    busy_spans = busy(kernels, trace)
    of_round = [sum(span.holds(kernel.issued_us) for kernel in kernels) for span in trace.rounds]
    of_kind = grouped(kernels, lambda kernel: kernel.kind)
    launches = [(kernel.launch, kernel) for kernel in kernels]
    return {
        "rounds": count,
        "on_gpu": trace.is_on_gpu,
        "left_out": _left_out(trace, identity),
        "wall_seconds": rounds.wall_us / 1e6,
        "plain_wall_seconds": plain_seconds,
        "kernel_seconds": rounds.kernel_us / 1e6,
        "busy_share": total_us(busy_spans) / count / rounds.wall_us,
        "launches": of_round[0],
        "launches_of_rounds": of_round,
        "matrix_products": _matrix_products(kernels, identity, rounds),
        "kinds": [
            {"kind": kind, **rounds.shares(group)}
            for kind, group in sorted(of_kind.items(), key=lambda item: KINDS.index(item[0]))
        ],
        **_top_kernels(kernels, rounds),
        "regions": _regions(kernels, rounds),
        "memory_operations": _memory_operations(trace, rounds),
        "idle_gaps": _spread(_gaps(busy_spans, trace)),
        "api_gaps": _spread(_api_gaps(trace)),
        "launch_to_start": _spread([kernel.start_us - call.start_us for call, kernel in launches if call is not None]),
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


def _left_out(trace: Trace, identity: Json) -> str | None:
    if trace.is_on_gpu or "compiled" not in (identity.get("attention"), identity.get("execution")):
        return None
    return "code that torch.compile generates for a CPU appears in no kernel, so launches and shares exclude it"


def _matrix_products(kernels: Sequence[TracedKernel], identity: Json, rounds: _Rounds) -> Json:
    """A product counts once, however many kernels it is split into."""
    products = [kernel for kernel in kernels if kernel.kind == "matrix product"]
    return {
        **rounds.shares(products),
        "count": _whole(sum(map(_is_a_product, products)) / rounds.count),
        "expected_count": expected_products(identity),
    }


def _whole(count: float) -> float:
    return int(count) if count.is_integer() else count


def _is_a_product(kernel: TracedKernel) -> bool:
    if kernel.operator:
        return kernel.is_first_of_operation and kernel.operator in PRODUCTS
    return "splitk" not in kernel.name.lower() or "reduce" not in kernel.name.lower()


def _top_kernels(kernels: Sequence[TracedKernel], rounds: _Rounds) -> Json:
    groups = _longest_first(kernels, lambda kernel: kernel.name)
    left = [kernel for _, group in groups[TOP_KERNELS:] for kernel in group]
    return {
        "kernels": [_kernel_row(name, group, rounds) for name, group in groups[:TOP_KERNELS]],
        "other_kernels": {
            "names": len(groups[TOP_KERNELS:]),
            "calls": len(left) / rounds.count,
            "total_seconds": total_us(left) / rounds.count / 1e6,
            "share": total_us(left) / rounds.count / rounds.kernel_us,
        },
    }


def _kernel_row(name: str, kernels: Sequence[TracedKernel], rounds: _Rounds) -> Json:
    shapes = _longest_first(kernels, lambda kernel: kernel.shapes)
    return {
        "name": name,
        "kind": kernels[0].kind,
        **rounds.calls(kernels),
        "share": total_us(kernels) / rounds.count / rounds.kernel_us,
        "shapes": [{"shapes": shape, **rounds.calls(group)} for shape, group in shapes[:TOP_SHAPES]],
    }


def _regions(kernels: Sequence[TracedKernel], rounds: _Rounds) -> list[Json]:
    """A row for each region and direction, with everything inside it; shares are of the round and of its direction."""
    groups: dict[tuple[bool, str], list[TracedKernel]] = defaultdict(list)
    for kernel in kernels:
        for name in label(kernel.regions):
            groups[kernel.is_backward, name].append(kernel)
    count = rounds.count
    direction_us = {back: sum(k.us for k in kernels if k.is_backward is back) / count for back in (False, True)}
    return [
        {
            "region": name,
            "is_backward": back,
            **rounds.shares(group),
            "share_of_direction": total_us(group) / count / direction_us[back] if direction_us[back] else 0.0,
            "seconds_by_kind": {
                kind: total_us(alike) / count / 1e6
                for kind, alike in sorted(grouped(group, lambda kernel: kernel.kind).items())
            },
        }
        for (back, name), group in sorted(groups.items())
    ]


def _memory_operations(trace: Trace, rounds: _Rounds) -> list[Json]:
    return [
        {
            "kind": kind,
            "count": len(group) / rounds.count,
            "bytes": sum(operation.bytes_moved for operation in group) // rounds.count,
            "seconds": total_us(group) / rounds.count / 1e6,
            "share_of_wall": total_us(group) / rounds.count / rounds.wall_us,
        }
        for kind, group in sorted(grouped(_copies(trace), lambda operation: operation.kind).items())
    ]


def _copies(trace: Trace) -> list[MemoryOperation]:
    return [operation for operation in trace.memory_operations if trace.round_at(operation.issued_us) is not None]


def busy(kernels: Iterable[Span], trace: Trace) -> list[Span]:
    """When the device was busy in the rounds: kernels and copies, overlaps counted once."""
    merged: list[Span] = []
    for span in sorted((*kernels, *_copies(trace)), key=lambda span: span.start_us):
        if merged and span.start_us <= merged[-1].end_us:
            merged[-1] = Span(merged[-1].start_us, max(merged[-1].end_us, span.end_us))
        else:
            merged.append(Span(span.start_us, span.end_us))
    return merged


def _gaps(spans: Sequence[Span], trace: Trace) -> list[float]:
    """Microseconds between the end of each span and the start of the next, within a round."""
    return [
        later.start_us - earlier.end_us
        for earlier, later in pairwise(spans)
        if trace.round_at(earlier.end_us, later.start_us) is not None
    ]


def _api_gaps(trace: Trace) -> list[float]:
    """Microseconds between two calls of a host thread to the device's runtime."""
    inside = [call for call in trace.calls if trace.round_at(call.start_us) is not None]
    return [
        max(later.start_us - earlier.end_us, 0.0)
        for calls in grouped(inside, lambda call: call.thread).values()
        for earlier, later in pairwise(sorted(calls, key=lambda call: call.start_us))
        if trace.round_at(earlier.start_us, later.start_us) is not None
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


def _longest_first(
    spans: Iterable[TracedKernel], key: Callable[[TracedKernel], str]
) -> list[tuple[str, list[TracedKernel]]]:
    return sorted(grouped(spans, key).items(), key=lambda item: -total_us(item[1]))
