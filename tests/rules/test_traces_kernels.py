"""The figures of a kernel pass and of a first round, from hand-written traces of which every number is known."""

from dataclasses import replace

import pytest

from perf_tests.records.record import Json
from perf_tests.traces.kernels import (
    TracedRound,
    expected_products,
    first_round_parts,
    kernel_values,
    largest_growth,
)
from perf_tests.traces.trace import read_chrome_trace
from tests.support.synthetic import identity
from tests.support.synthetic_trace import DIV, SGEMM, HandWritten, forward_and_backward, row


@pytest.fixture(scope="module")
def values() -> Json:
    trace = read_chrome_trace(forward_and_backward().text())
    return kernel_values(trace, {"phase": "forward_backward"}, 700e-6, matmul_flops_per_second=1e12)


def test_launches_and_times_are_those_of_one_round(values: Json) -> None:
    """The busy share counts copies too, and no overlap twice."""
    assert (values["launches"], values["on_gpu"]) == (9, True)
    assert (values["wall_seconds"], values["kernel_seconds"]) == pytest.approx((900e-6, 170e-6))
    assert values["busy_share"] == pytest.approx(175 / 900)


def test_a_product_that_runs_as_two_kernels_is_one_product(values: Json) -> None:
    products = values["matrix_products"]
    assert (products["count"], products["launches"]) == (4, 5)
    assert (products["share_of_kernel_time"], products["share_of_wall"]) == pytest.approx((100 / 170, 100 / 900))


def test_the_calls_of_one_kernel_are_summed_up_and_split_by_shape(values: Json) -> None:
    sgemm = row(values["kernels"], name=SGEMM)
    assert (sgemm["calls"], sgemm["total_seconds"]) == (4, pytest.approx(95e-6))
    assert sgemm["stddev_seconds"] == pytest.approx(4.146e-6, rel=1e-3)
    assert [shape["shapes"] for shape in sgemm["shapes"]] == ["4x8x16 4x16x8"]


def test_kinds_are_shares_of_kernel_time_and_of_wall(values: Json) -> None:
    assert [kind["kind"] for kind in values["kinds"]] == ["matrix product", "elementwise", "cast"]
    cast = row(values["kinds"], kind="cast")
    assert (cast["share_of_kernel_time"], cast["share_of_wall"]) == pytest.approx((10 / 170, 10 / 900))


def test_a_region_holds_what_lies_inside_it_in_each_direction(values: Json) -> None:
    attention = row(values["regions"], region="attention", is_backward=False)
    softmax = row(values["regions"], region="attention / softmax", is_backward=True)
    assert (attention["launches"], attention["seconds"]) == (5, pytest.approx(85e-6))
    assert (softmax["launches"], softmax["share_of_direction"]) == (1, pytest.approx(20 / 75))
    for region in values["regions"]:
        assert sum(region["seconds_by_kind"].values()) == pytest.approx(region["seconds"])
    assert row(values["regions"], region="elsewhere", is_backward=False)["launches"] == 1


def test_only_the_memory_operations_of_the_round_are_counted(values: Json) -> None:
    (memset,) = values["memory_operations"]
    assert (memset["kind"], memset["count"], memset["bytes"]) == ("memset", 1, 512)
    assert memset["seconds"] == pytest.approx(5e-6)


def test_gaps_are_summed_up_as_median_p95_and_greatest(values: Json) -> None:
    delays, idle, calls = values["launch_to_start"], values["idle_gaps"], values["api_gaps"]
    assert (delays["count"], delays["median_seconds"]) == (9, pytest.approx(10e-6))
    # 170-180, 190-230, 260-290, 315-520, 545-620, 640-670, 700-815, 825-850; what touches leaves no gap.
    assert (idle["count"], idle["max_seconds"]) == (8, pytest.approx(205e-6))
    assert (idle["median_seconds"], idle["p95_seconds"]) == pytest.approx((35e-6, 205e-6))
    # Each thread by itself: the host's next call after the split product is 501 us later.
    assert (calls["count"], calls["max_seconds"]) == (9, pytest.approx(501e-6))


def test_one_attention_layer_is_taken_apart(values: Json) -> None:
    forward = values["attention"]["forward"]
    scores = forward["parts"][0]
    assert [part["part"] for part in forward["parts"]] == ["scores", "softmax", "value_product"]
    assert (scores["launches"], scores["device_seconds"]) == (2, pytest.approx(30e-6))
    assert scores["host_seconds"] == pytest.approx(80e-6)
    assert scores["flops"] == 2 * 4 * 8 * 16 * 8 + 4 * 8 * 8
    assert forward["softmax_over_products_time"] == pytest.approx(30 / 45)
    assert forward["saved_by_fusing_seconds"] == pytest.approx(40e-6)
    assert forward["saved_without_gaps_seconds"] == pytest.approx(80e-6)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_lanes_of_a_layer_hold_its_kernels_and_what_the_host_did(values: Json, way: str) -> None:
    direction = values["attention"][way]
    host, device = ([row for row in direction["lanes"] if row["side"] == side] for side in ("host", "device"))
    of_parts = sum(part["device_seconds"] for part in direction["parts"])
    assert sum(row["seconds"] for row in device) == pytest.approx(of_parts)
    assert {row["part"] for row in host} == {row["part"] for row in device}
    assert min(row["start_seconds"] for row in direction["lanes"]) == 0
    assert all(call["seconds"] == pytest.approx(4e-6) for call in host) == (way == "backward"), "calls going back"


def test_a_part_without_products_is_bound_by_memory_and_one_with_them_by_the_slower_of_both() -> None:
    """The division moves 2 kB in 10 us; the scores' product does 32768 FLOPs and moves 5 kB."""
    trace = forward_and_backward()
    bounds = []
    for flops_per_second in (1e9, 1e6):
        read = read_chrome_trace(trace.text())
        large = [replace(kernel, bytes_touched=64 * (kernel.bytes_touched or 0)) for kernel in read.kernels]
        values = kernel_values(replace(read, kernels=large), {}, None, flops_per_second)
        bounds.append([part["bound"] for part in values["attention"]["forward"]["parts"]])
    assert bounds == [["memory", "memory", "memory"], ["compute", "memory", "compute"]]


@pytest.mark.parametrize("late_us, bound", [(0, None), (100, "launch")])
def test_a_part_whose_device_waits_longer_than_it_works_is_bound_by_launches(late_us: float, bound: str | None) -> None:
    trace = forward_and_backward()
    next(event for event in trace.events if event["name"] == DIV)["ts"] += late_us
    parts = kernel_values(read_chrome_trace(trace.text()), {})["attention"]["forward"]["parts"]
    assert parts[0]["bound"] == bound


def test_overlapping_work_is_busy_once() -> None:
    trace = forward_and_backward()
    trace.kernel("beside", 510, 525, 540)  # while another runs from 520 to 545
    values = kernel_values(read_chrome_trace(trace.text()), {})
    assert (values["kernel_seconds"], values["busy_share"]) == pytest.approx((185e-6, 175 / 900))


def test_a_round_without_kernels_is_an_error_and_no_table_of_zeros() -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    with pytest.raises(ValueError, match="no kernel ran inside a round"):
        kernel_values(read_chrome_trace(trace.text()), {})


@pytest.mark.parametrize(
    "phase, layers, count",
    [("forward", 36, 325), ("backward", 36, 650), ("full_step", 2, 57), ("optimizer", 2, 0), ("inference", 12, 109)],
)
def test_naive_attention_has_nine_products_a_layer_and_the_head(phase: str, layers: int, count: int) -> None:
    assert expected_products(identity(phase=phase, num_layers=layers)) == count


@pytest.mark.parametrize("change", [{"attention": "sdpa"}, {"checkpoint": "block"}, {"model": "a:b"}])
def test_other_models_are_held_to_no_count(change: Json) -> None:
    assert expected_products(identity(**change)) is None


@pytest.mark.parametrize("change", [{"attention": "compiled"}, {"execution": "compiled"}])
def test_generated_code_that_no_cpu_profiler_sees_is_said_to_be_left_out(change: Json) -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    trace.operation("aten::mm", 10, 20)
    read = read_chrome_trace(trace.text())
    values = kernel_values(read, {**identity(), **change})
    assert "generates for a CPU appears in no kernel" in values["left_out"]
    assert kernel_values(read, identity())["left_out"] is None


# The first round.


MS = 1000.0
"""Kineto counts in microseconds."""


def event(name: str, start_ms: float, ms: float, cat: str = "cpu_op", tid: int = 1) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_ms * MS, "dur": ms * MS, "tid": tid}


def round_of(ms: float, *events: Json, page_faults: int = 0, system_seconds: float = 100.0) -> TracedRound:
    return TracedRound([event("round", 0, ms, "user_annotation"), *events], page_faults, system_seconds)


STEADY = round_of(10, event("aten::mm", 1, 6), event("aten::exp", 7, 2), system_seconds=0.0)


def spent(first: TracedRound, seconds_per_page_fault: float | None = None, steady: TracedRound = STEADY) -> Json:
    """Milliseconds of each part but the steady round, with which they sum to the first one."""
    parts = first_round_parts(first, steady, seconds_per_page_fault)
    assert sum(parts.values()) == pytest.approx(first.events[0]["dur"] / MS / 1e3)
    assert parts.pop("steady_round_seconds") == 0.01
    return {name.removesuffix("_seconds"): round(1e3 * value, 6) for name, value in parts.items() if abs(value) > 1e-9}


def test_each_part_is_what_it_grew_by() -> None:
    first = round_of(
        100,
        event("import of torch._dynamo", 1, 20, "user_annotation"),
        event("compile_inner (dynamo_timed)", 21, 30),
        event("aten::mm", 51, 16),
        event("aten::exp", 67, 5),
    )
    grown = {"module_loading": 20, "compilation": 30, "library_handles": 10, "other_operators": 3, "unexplained": 27}
    assert spent(first) == grown


def test_what_a_load_or_a_compilation_calls_is_counted_once() -> None:
    first = round_of(
        60,
        event("backend_compile (dynamo_timed)", 0, 40),
        event("import of sympy", 5, 10, "user_annotation"),
        event("aten::exp", 6, 3),  # a constant of the module
        event("aten::mm", 16, 4),  # constants folded by the compiler
        event("aten::mm", 41, 6),
        event("aten::exp", 47, 2),
    )
    assert spent(first) == {"module_loading": 10, "compilation": 30, "unexplained": 10}


def test_calls_of_the_driver_are_told_apart_inside_the_operators_that_make_them() -> None:
    first = round_of(
        90,
        event("aten::mm", 0, 60),
        event("cudaMalloc", 1, 7, "cuda_runtime"),
        event("cuLibraryLoadData", 10, 20, "cuda_driver"),
        event("cudaLaunchKernel", 40, 5, "cuda_runtime"),
        event("aten::exp", 60, 2),
        event("cudaDeviceSynchronize", 70, 15, "cuda_runtime"),
    )
    in_operators = {"module_loading": 20, "allocator_growth": 7, "library_handles": 22, "first_launches": 5}
    assert spent(first) == {**in_operators, "unexplained": 26}


def test_page_faults_are_taken_out_of_the_operators_that_ran_into_them() -> None:
    first = round_of(30, event("aten::mm", 0, 16), event("aten::exp", 16, 12), page_faults=12_000)
    steady = TracedRound(STEADY.events, 2_000, 0.0)
    assert spent(first, 1e-6, steady) == {"allocator_growth": 10, "library_handles": 5, "other_operators": 5}
    assert spent(first, 1e-3, steady) == {"allocator_growth": 20}, "at most what they grew by"


def test_page_faults_take_no_more_than_the_kernels_own_time() -> None:
    events = event("aten::mm", 0, 106), event("aten::exp", 106, 102)
    first = round_of(210, *events, page_faults=200_000, system_seconds=0.04)
    assert spent(first, 1e-6) == {"allocator_growth": 50, "library_handles": 75, "other_operators": 75}


def test_page_faults_of_a_compiler_are_not_laid_on_the_operators() -> None:
    first = round_of(40, event("inner (dynamo_timed)", 0, 20), event("aten::mm", 20, 16), page_faults=12_000)
    assert spent(first, 1e-6) == {"compilation": 20, "library_handles": 10}


def test_backward_on_another_thread_is_no_child_of_the_round() -> None:
    first = round_of(30, event("aten::mm", 2, 16, tid=7), event("aten::exp", 18, 2, tid=7))
    assert spent(first)["library_handles"] == 10


def test_a_round_that_is_no_slower_is_spent_on_nothing() -> None:
    assert spent(STEADY, 1e-6) == {}


def test_what_grew_most_is_named() -> None:
    first = round_of(60, event("aten::mm", 0, 26), event("aten::exp", 26, 7), event("aten::add", 40, 1))
    names = [row["name"] for row in largest_growth(first, STEADY)]
    assert names == ["aten::mm", "aten::exp", "aten::add"]


def test_a_trace_without_its_round_is_refused() -> None:
    with pytest.raises(ValueError, match="no round in it"):
        first_round_parts(TracedRound([event("aten::mm", 0, 1)], 0, 0.0), STEADY, None)
