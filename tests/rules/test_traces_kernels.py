"""The figures of a kernel pass and of a first round, from hand-written traces of which every number is known."""

import json
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces.kernels import (
    TOP_KERNELS,
    TracedRound,
    expected_products,
    first_round_parts,
    kernel_values,
    largest_growth,
)  # fmt: skip
from perf_tests_suite.perf_tests.traces.trace import read_chrome_trace
from tests.support.synthetic import identity
from tests.support.synthetic_trace import DIV, SGEMM, HandWritten, forward_and_backward, row


def values_of(trace: HandWritten, flops_per_second: float | None = 1e12, larger: int = 1, **known: Any) -> Json:
    """The values of a trace, of kernels that move so many times the bytes of their inputs."""
    read = read_chrome_trace(trace.text())
    kernels = [replace(kernel, bytes_touched=larger * (kernel.bytes_touched or 0)) for kernel in read.kernels]
    return kernel_values(replace(read, kernels=kernels), known, 700e-6, flops_per_second)


@pytest.fixture(scope="module")
def values() -> Json:
    return values_of(forward_and_backward(), phase="forward_backward")


def at(values: Any, path: tuple[Any, ...]) -> Any:
    """What lies there: names, places in a list, and values of the one row that has them."""
    return reduce(lambda found, step: row(found, **step) if isinstance(step, dict) else found[step], path, values)


FORWARD = ("attention", "forward")
FIGURES: list[tuple[tuple[Any, ...], object]] = [
    (("launches",), 9), (("on_gpu",), True), (("wall_seconds",), 900e-6), (("kernel_seconds",), 170e-6),
    (("busy_share",), 175 / 900),  # with copies, and no overlap twice
    # A product that runs as two kernels is one product.
    (("matrix_products", "count"), 4), (("matrix_products", "launches"), 5),
    (("matrix_products", "share_of_kernel_time"), 100 / 170), (("matrix_products", "share_of_wall"), 100 / 900),
    (("kernels", {"name": SGEMM}, "calls"), 4), (("kernels", {"name": SGEMM}, "total_seconds"), 95e-6),
    (("kernels", {"name": SGEMM}, "mean_seconds"), 23.75e-6),
    (("kernels", {"name": SGEMM}, "stddev_seconds"), 4.14578e-6), (("kernels", {"name": SGEMM}, "share"), 95 / 170),
    (("kernels", {"name": SGEMM}, "shapes", 0, "shapes"), "4x8x16 4x16x8"), (("other_kernels", "names"), 0),
    (("kinds", 0, "kind"), "matrix product"), (("kinds", 1, "kind"), "elementwise"), (("kinds", 2, "kind"), "cast"),
    (("kinds", 2, "share_of_kernel_time"), 10 / 170), (("kinds", 2, "share_of_wall"), 10 / 900),
    (("regions", {"region": "attention", "is_backward": False}, "launches"), 5),
    (("regions", {"region": "attention", "is_backward": False}, "seconds"), 85e-6),
    (("regions", {"region": "attention", "is_backward": False}, "seconds_by_kind", "matrix product"), 45e-6),
    (("regions", {"region": "attention / softmax", "is_backward": True}, "share_of_direction"), 20 / 75),
    (("regions", {"region": "elsewhere", "is_backward": False}, "launches"), 1),
    (("memory_operations", {"kind": "memset"}, "bytes"), 512), (("memory_operations", 0, "seconds"), 5e-6),
    (("memory_operations", 0, "share_of_wall"), 5 / 900), (("memory_operations", 0, "count"), 1),
    (("launch_to_start", "count"), 9), (("launch_to_start", "median_seconds"), 10e-6),
    # 170-180, 190-230, 260-290, 315-520, 545-620, 640-670, 700-815, 825-850; what touches leaves no gap.
    (("idle_gaps", "count"), 8), (("idle_gaps", "max_seconds"), 205e-6), (("idle_gaps", "median_seconds"), 35e-6),
    (("idle_gaps", "p95_seconds"), 205e-6), (("idle_gaps", "total_seconds"), 530e-6),
    # Each thread by itself: the host's next call after the split product is 501 us later.
    (("api_gaps", "count"), 9), (("api_gaps", "max_seconds"), 501e-6),
    ((*FORWARD, "layers"), 1), ((*FORWARD, "parts", {"part": "scores"}, "launches"), 2),
    ((*FORWARD, "parts", 0, "device_seconds"), 30e-6), ((*FORWARD, "parts", 0, "host_seconds"), 80e-6),
    ((*FORWARD, "parts", 0, "flops"), 2 * 4 * 8 * 16 * 8 + 4 * 8 * 8), ((*FORWARD, "parts", 1, "part"), "softmax"),
    ((*FORWARD, "parts", 0, "bytes"), 4 * (4 * (2 * 8 * 16 + 8 * 8) + 2 * 4 * 8 * 8) + 8),  # and a number
    ((*FORWARD, "parts", 2, "part"), "value_product"), ((*FORWARD, "seconds"), 85e-6),
    ((*FORWARD, "softmax_over_products_time"), 30 / 45), ((*FORWARD, "saved_by_fusing_seconds"), 40e-6),
    ((*FORWARD, "saved_without_gaps_seconds"), 80e-6), ((*FORWARD, "lanes", 0, "start_seconds"), 30e-6),
]  # fmt: skip


def test_each_figure_of_a_round_is_as_the_trace_has_it(values: Json) -> None:
    for path, expected in FIGURES:
        assert at(values, path) == (pytest.approx(expected) if isinstance(expected, float) else expected), path


def test_kernels_beyond_the_longest_are_summed_up_by_the_round() -> None:
    """Of 2 rounds: 30 kernels of names of their own, the n-th of n microseconds."""
    read = read_chrome_trace(forward_and_backward().twice().text())
    kernels = [
        replace(kernel, name=str(n), end_us=kernel.start_us + n)
        for kernel in (read.kernels[0], read.kernels[-1]) for n in range(1, 31)
    ]  # fmt: skip
    left = sum(range(1, 31 - TOP_KERNELS))
    found = kernel_values(replace(read, kernels=kernels), {}, 700e-6, None)
    assert {key: pytest.approx(value) for key, value in found["other_kernels"].items()} == {
        "names": 30 - TOP_KERNELS, "calls": 30 - TOP_KERNELS, "total_seconds": left * 1e-6, "share": left / 465,
    }  # fmt: skip


def test_figures_are_those_of_one_round_however_many_were_traced(values: Json) -> None:
    def rounded(found: Json) -> Any:
        left_out = ("rounds", "launches_of_rounds", "idle_gaps", "api_gaps", "launch_to_start")
        kept = {name: value for name, value in found.items() if name not in left_out}
        return json.loads(json.dumps(kept), parse_float=lambda text: f"{float(text):.9g}")

    both = values_of(forward_and_backward().twice(), phase="forward_backward")
    assert rounded(both) == rounded(values)
    assert (both["rounds"], both["launches_of_rounds"], both["idle_gaps"]["count"]) == (2, [9, 9], 16)
    odd = forward_and_backward().twice()
    odd.kernel("gemm", 2900, 2910, 2920)
    assert values_of(odd)["matrix_products"]["count"] == 4.5


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_lanes_of_a_layer_hold_its_kernels_and_what_the_host_did(values: Json, way: str) -> None:
    direction = values["attention"][way]
    host, device = ([row for row in direction["lanes"] if row["side"] == side] for side in ("host", "device"))
    of_parts = sum(part["device_seconds"] for part in direction["parts"])
    assert sum(row["seconds"] for row in device) == pytest.approx(of_parts)
    assert {row["part"] for row in host} == {row["part"] for row in device}
    assert min(row["start_seconds"] for row in direction["lanes"]) == 0
    assert all(call["seconds"] == pytest.approx(4e-6) for call in host) == (way == "backward"), "calls going back"


def test_times_of_attention_are_medians_over_its_layers() -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 1000)
    for start, us in ((100, 10), (300, 30), (500, 11)):
        trace.annotation(f"block {start}", start, start + 190)
        for at, part in zip(range(start, start + 190, 50), ("scores", "softmax", "value_product"), strict=False):
            trace.annotation(part, at + 1, at + 41 + us)
            trace.operation("aten::exp" if part == "softmax" else "aten::bmm", at + 2, at + 30)
            trace.kernel(SGEMM, at + 3, at + 10, at + 10 + us)
    forward = values_of(trace)["attention"]["forward"]
    scores = forward["parts"][0]
    assert (forward["layers"], scores["launches"]) == (3, 1)
    found = [forward["seconds"], scores["device_seconds"], scores["host_seconds"]]
    found += [scores["spread_over_layers"][f"{which}_seconds"] for which in ("min", "max", "stddev")]
    assert found == pytest.approx([33e-6, 11e-6, 51e-6, 10e-6, 30e-6, 9.2014e-6], rel=1e-4)


@pytest.mark.parametrize("flops_per_second, larger, late_us, bounds", [
    # The division moves 2 kB in 10 us; the scores' product does 32768 FLOPs and moves 5 kB.
    (1e9, 64, 0, ["memory", "memory", "memory"]), (1e6, 64, 0, ["compute", "memory", "compute"]),
    (None, 1, 0, [None, "memory", None]), (1e9, 1, 0, [None, "memory", None]),
    (None, 1, 100, ["launch", "memory", None]),
])  # fmt: skip
def test_a_part_is_bound_by_launches_where_its_device_waits_else_by_the_slower_of_arithmetic_and_memory(
    flops_per_second: float | None, larger: int, late_us: float, bounds: list[str | None]
) -> None:
    """A part without products is bound by memory."""
    trace = forward_and_backward()
    next(event for event in trace.events if event["name"] == DIV)["ts"] += late_us
    parts = values_of(trace, flops_per_second, larger)["attention"]["forward"]["parts"]
    assert [part["bound"] for part in parts] == bounds


def test_overlapping_work_is_busy_once() -> None:
    trace = forward_and_backward()
    trace.kernel("beside", 510, 525, 540)  # while another runs from 520 to 545
    values = values_of(trace)
    assert (values["kernel_seconds"], values["busy_share"]) == pytest.approx((185e-6, 175 / 900))


PRODUCTS: list[tuple[Json, int | None]] = [
    ({"phase": "forward", "num_layers": 36}, 325), ({"phase": "backward", "num_layers": 36}, 650),
    ({"phase": "full_step"}, 57), ({"phase": "optimizer"}, 0), ({"phase": "inference", "num_layers": 12}, 109),
    ({"phase": "attention_forward"}, 2), ({"attention": "sdpa"}, None), ({"checkpoint": "block"}, None),
    ({"model": "a:b"}, None),
]  # fmt: skip


def test_naive_attention_has_nine_products_a_layer_and_other_models_no_count() -> None:
    assert [(changes, expected_products(identity(**changes))) for changes, _ in PRODUCTS] == PRODUCTS


def test_generated_code_that_no_cpu_profiler_sees_is_left_out_and_a_round_without_kernels_no_table_of_zeros() -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    with pytest.raises(ValueError, match="no kernel ran inside a round"):
        values_of(trace)
    trace.operation("aten::mm", 10, 20)
    axes: tuple[Json, ...] = ({"attention": "compiled"}, {"execution": "compiled"}, {})
    said = [values_of(trace, **axis)["left_out"] for axis in axes]
    assert said[0] == said[1]
    assert "generates for a CPU appears in no kernel" in said[0]
    assert said[2] is None


# The first round; Kineto counts in microseconds.


def event(name: str, start_ms: float, ms: float, cat: str = "cpu_op", tid: int = 1) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_ms * 1e3, "dur": ms * 1e3, "tid": tid}


def round_of(ms: float, *events: Json, faults: int = 0, system_seconds: float = 100.0) -> TracedRound:
    return TracedRound([event("round", 0, ms, "user_annotation"), *events], faults, system_seconds)


STEADY = round_of(10, event("aten::mm", 1, 6), event("aten::exp", 7, 2), faults=2_000, system_seconds=0.0)
FAULTY = round_of(30, event("aten::mm", 0, 16), event("aten::exp", 16, 12), faults=12_000)

SPENT: dict[str, tuple[TracedRound, float | None, Json]] = {
    "each part by its growth": (
        round_of(100, event("import of torch._dynamo", 1, 20, "user_annotation"),
                 event("compile_inner (dynamo_timed)", 21, 30), event("aten::mm", 51, 16), event("aten::exp", 67, 5)),
        None, {"module_loading": 20, "compilation": 30, "library_handles": 10, "other_operators": 3,
               "unexplained": 27},
    ),
    "what a load or a compilation calls, once": (  # a constant of the module, and constants that the compiler folded
        round_of(60, event("backend_compile (dynamo_timed)", 0, 40), event("import of sympy", 5, 10, "user_annotation"),
                 event("aten::exp", 6, 3), event("aten::mm", 16, 4), event("aten::mm", 41, 6),
                 event("aten::exp", 47, 2)),
        None, {"module_loading": 10, "compilation": 30, "unexplained": 10},
    ),
    "calls of the driver inside operators": (
        round_of(90, event("aten::mm", 0, 60), event("cudaMalloc", 1, 7, "cuda_runtime"),
                 event("cuLibraryLoadData", 10, 20, "cuda_driver"), event("cudaLaunchKernel", 40, 5, "cuda_runtime"),
                 event("aten::exp", 60, 2), event("cudaDeviceSynchronize", 70, 15, "cuda_runtime")), None,
        {"module_loading": 20, "allocator_growth": 7, "library_handles": 22, "first_launches": 5, "unexplained": 26},
    ),
    "page faults": (FAULTY, 1e-6, {"allocator_growth": 10, "library_handles": 5, "other_operators": 5}),
    "at most what the operators grew by": (FAULTY, 1e-3, {"allocator_growth": 20}),
    "at most the kernel's own time and a tick": (
        round_of(210, event("aten::mm", 0, 106), event("aten::exp", 106, 102), faults=202_000, system_seconds=0.04),
        1e-6, {"allocator_growth": 50, "library_handles": 75, "other_operators": 75},
    ),
    "page faults of a compiler": (
        round_of(40, event("inner (dynamo_timed)", 0, 20), event("aten::mm", 20, 16), faults=12_000), 1e-6,
        {"compilation": 20, "library_handles": 10},
    ),
    "a backward pass on another thread": (
        round_of(30, event("aten::mm", 2, 16, tid=7), event("aten::exp", 18, 2, tid=7)), None,
        {"library_handles": 10, "unexplained": 10},
    ),
    "a round that is no slower": (STEADY, 1e-6, {}),
}  # fmt: skip


@pytest.mark.parametrize("what", SPENT)
def test_a_first_round_is_spent_on_what_its_parts_grew_by(what: str) -> None:
    """With the steady round they sum to the first one."""
    first, seconds_per_fault, expected = SPENT[what]
    parts = first_round_parts(first, STEADY, seconds_per_fault)
    assert sum(parts.values()) == pytest.approx(first.events[0]["dur"] / 1e6)
    assert parts.pop("steady_round_seconds") == 0.01
    grown = {name.removesuffix("_seconds"): 1e3 * value for name, value in parts.items() if abs(value) > 1e-9}
    assert grown == pytest.approx(expected)


def test_what_grew_most_is_named_and_a_trace_without_its_round_refused() -> None:
    first = round_of(60, event("aten::mm", 0, 26), event("aten::exp", 26, 7), event("aten::add", 40, 1))
    assert [row["name"] for row in largest_growth(first, STEADY)] == ["aten::mm", "aten::exp", "aten::add"]
    with pytest.raises(ValueError, match="no round in it"):
        first_round_parts(replace(first, events=first.events[1:]), STEADY, None)
