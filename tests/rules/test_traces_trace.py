"""Traces in Kineto's schema and exports of Nsight Systems: kernels given back to their regions, copies apart."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces import trace as reading
from perf_tests_suite.perf_tests.traces.kernels import kernel_values
from tests.support.synthetic_nsys import AUTOGRAD, COPY, EXP, OTHERS, one_layer, one_round, without_table
from tests.support.synthetic_trace import CAST, HOST, HandWritten, forward_and_backward, row

INSIDE = ("forward", "block 0", "attention")


def test_a_kernel_of_a_gpu_belongs_to_the_region_it_was_launched_in_or_that_of_the_operation_it_derives() -> None:
    trace = reading.read_chrome_trace(forward_and_backward().text())
    scores, softmax, product = ((*INSIDE, part) for part in ("scores", "softmax", "value_product"))
    flops = 2 * 4 * 8 * 16 * 8
    assert trace.is_on_gpu
    assert [(kernel.operator, kernel.regions, kernel.is_backward, kernel.flops) for kernel in trace.kernels] == [
        ("aten::bmm", scores, False, flops), ("aten::div", scores, False, 256), ("aten::exp", softmax, False, 0),
        ("aten::bmm", product, False, flops), ("aten::bmm", product, False, 0), ("aten::bmm", product, True, flops),
        ("aten::mul", softmax, True, 0), ("aten::bmm", scores, True, flops), ("aten::copy_", (), False, 0),
    ]  # fmt: skip
    # The cost of an operation is that of its first kernel.
    assert [kernel.is_first_of_operation for kernel in trace.kernels] == [True] * 4 + [False] + [True] * 4
    assert [trace.kernels[at].bytes_touched for at in (3, 4)] == [4 * 4 * (8 * 16 + 16 * 8 + 8 * 8), 0]
    assert [kernel.start_us - kernel.issued_us for kernel in trace.kernels] == [10, 10, 10, 10, 10, 10, 10, 5, 10]
    cast = trace.kernels[-1]
    assert (cast.name, cast.kind, cast.shapes, cast.bytes_touched) == (CAST, "cast", "32x16 32x16", 32 * 16 * 6)
    copies = [(operation.kind, operation.bytes_moved, operation.issued_us) for operation in trace.memory_operations]
    assert copies == [("host-to-device", 4096, 10), ("memset", 512, 840)]


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6)


@given(SPANS, st.lists(st.integers(0, 20), min_size=1, max_size=2))
def test_the_round_of_moments_is_the_first_that_holds_them_all(
    spans: list[tuple[int, int]], moments: list[int]
) -> None:
    """Found without looking at each: a capture of a thousand steps has a thousand kernels in each."""
    rounds = sorted((reading.Span(start, start + length) for start, length in spans), key=lambda span: span.start_us)
    holding = [place for place, span in enumerate(rounds) if all(map(span.holds, moments))]
    trace = reading.Trace(is_on_gpu=False, rounds=rounds, kernels=())
    assert trace.round_at(*moments) == next(iter(holding), None)


NODE = "autograd::engine::evaluate_function: "
CPU_TRACES: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    # Name, start, end, of operations also thread, number, forward thread; kernels as name, start, regions, is_backward
    "of several operations with a number the last": (  # an arange makes no node and reports the number of the next
        [("mask", 5, 20), ("aten::arange", 6, 10, HOST, 8), ("softmax", 25, 40), ("aten::exp", 26, 30, HOST, 8),
         (f"{NODE}ExpBackward0", 50, 60, HOST, 8, 1), ("aten::mul", 51, 59)],
        [("aten::arange", 6, ("mask",), False), ("aten::exp", 26, ("softmax",), False),
         ("aten::mul", 51, ("softmax",), True)],
    ),
    "recomputed going back": (
        [(f"{NODE}CheckpointBackward", 10, 60, HOST, 1, 1), ("feed_forward", 12, 40), ("aten::mm", 15, 35, HOST, 5)],
        [("aten::mm", 15, ("feed_forward",), True)],
    ),
    "PyTorch's own annotations": (
        [("optimizer", 5, 50), ("Optimizer.step#AdamW.step", 10, 40), ("aten::mul_", 15, 20)],
        [("aten::mul_", 15, ("optimizer",), False)],
    ),
    "what computes, not what it calls or is called by": (
        [("aten::linear", 1, 30), ("aten::t", 2, 5), ("aten::transpose", 3, 4), ("aten::matmul", 6, 29),
         ("aten::mm", 8, 28), ("aten::resolve_conj", 9, 10), ("aten::sum", 40, 60), ("aten::fill_", 41, 45),
         ("aten::zeros_like", 70, 90), ("aten::empty_like", 71, 75), ("aten::zero_", 76, 89), ("aten::fill_", 77, 88)],
        [("aten::mm", 8, (), False), ("aten::sum", 40, (), False), ("aten::zero_", 76, (), False)],
    ),
    "a number made a tensor": (
        [("aten::where", 1, 30), ("aten::scalar_tensor", 2, 5), ("aten::where", 6, 29)],
        [("aten::where", 1, (), False), ("aten::scalar_tensor", 2, (), False)],
    ),
    "generated code": (
        [("graph_0_cpp_fused_mul_0", 1, 5, HOST, None), ("ProfilerStep", 6, 9, HOST, None)],
        [("graph_0_cpp_fused_mul_0", 1, (), False)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CPU_TRACES)
def test_a_kernel_of_a_cpu_is_an_operation_that_computes(what: str) -> None:
    spans, kernels = CPU_TRACES[what]
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    for name, start, end, *numbers in spans:
        write = trace.operation if "::" in name or numbers else trace.annotation
        write(name, start, end, *numbers)
    found = reading.read_chrome_trace(trace.text()).kernels
    assert [(kernel.name, kernel.start_us, kernel.regions, kernel.is_backward) for kernel in found] == kernels


def test_the_steps_of_anybodys_profiler_are_rounds_where_the_suite_put_none() -> None:
    """Of two steps with the same kernels, whatever number the first has; the suite's own rounds go before."""
    ours = forward_and_backward()
    theirs = HandWritten()
    theirs.events = [{**event, "name": event["name"].replace("round", "ProfilerStep#7")} for event in ours.events]
    found = kernel_values(reading.read_chrome_trace(theirs.twice().text()), {})
    assert (found["rounds"], found["launches_of_rounds"]) == (2, [9, 9])
    of_ours = kernel_values(reading.read_chrome_trace(ours.twice().text()), {})
    assert found == of_ours
    ours.annotation("ProfilerStep#1", 0, 5000)
    assert kernel_values(reading.read_chrome_trace(ours.text()), {}) == of_ours


def test_kernels_that_were_launched_before_a_trace_began_belong_to_no_round_and_are_told() -> None:
    """Where the host runs ahead they start during a later one."""
    trace = forward_and_backward().twice()
    trace.host("kernel", "of a step before", 300, 400, 7, correlation=123_456)
    found = kernel_values(reading.read_chrome_trace(trace.text()), {})
    assert found["launches_of_rounds"] == [9, 9]
    assert found["left_out"] == "1 kernels were launched before the trace began and are left out"
    assert kernel_values(reading.read_chrome_trace(forward_and_backward().text()), {})["left_out"] is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"traceEvents": 3}', json.dumps({"traceEvents": []}).encode()])
def test_what_is_no_trace_is_refused_in_one_sentence(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it (is not a Chrome trace|has no range)"):
        reading.read_chrome_trace(text)


DAMAGES: list[Json] = [{"ts": "early"}, {"dur": -1}, {"name": 3}, {"args": {"Input Dims": 3}}]


def test_a_trace_with_a_damaged_event_or_of_a_gpu_without_its_kernels_is_refused() -> None:
    for damage in DAMAGES:
        trace = forward_and_backward()
        trace.events[-1] |= damage
        with pytest.raises(ValueError, match=r"^it is damaged: an event"):
            reading.read_chrome_trace(trace.text())
    for unseen in (("kernel", "gpu_memcpy", "gpu_memset"), ("kernel", "cuda_runtime")):
        trace = forward_and_backward()
        trace.events = [event for event in trace.events if event["cat"] not in unseen]
        with pytest.raises(reading.NoDeviceEventsError, match="could not use CUPTI"):
            reading.read_chrome_trace(trace.text())


def test_a_moment_is_in_the_round_around_it_whose_ends_are_included_and_regions_are_labelled_without_layer() -> None:
    trace = reading.Trace(is_on_gpu=True, rounds=[reading.Span(0, 10), reading.Span(20, 30)], kernels=[])
    assert [trace.round_at(moment) for moment in (0, 10, 15, 20, 31)] == [0, 0, None, 1, None]
    assert trace.round_at(5, 25) is None
    assert reading.label((*INSIDE, "softmax")) == ["attention", "attention / softmax"]
    assert [reading.label(INSIDE[:2]), reading.label(INSIDE[:1])] == [["residual"], ["elsewhere"]]


KINDS: dict[tuple[Any, ...], str] = {
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4",): "matrix product",
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)",): "matrix product",
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",): "matrix product",
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>",): "reduction",
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",): "memset",
    ("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>",): "copy",
    ("void at::native::unrolled_elementwise_kernel<bfloat16tofloat32_copy_kernel_cuda>",): "cast",
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4>, unsigned int, 4>",): "copy",
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>",): "fused attention",
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention)",): "fused attention",
    ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>",): "indexing",
    ("triton_poi_fused_mul_0",): "elementwise", ("triton_red_fused_mean_pow_1",): "reduction",
    ("triton_poi", "aten::mm"): "matrix product", ("triton_poi", "aten::sum"): "reduction",
    ("triton_poi", "aten::_scaled_dot_product_flash_attention"): "fused attention",
    ("triton_poi", "aten::copy_", ("float", "float")): "copy", ("triton_poi", "aten::mul"): "elementwise",
    ("triton_poi", "aten::copy_", ("float", "c10::Half")): "cast", ("triton_poi", "aten::zero_"): "memset",
    ("triton_poi", "aten::cat", ("float", "c10::Half")): "copy", ("triton_poi", "aten::index_select"): "indexing",
}  # fmt: skip


def test_a_kernel_is_known_by_its_operation_and_dtypes_and_then_by_its_name() -> None:
    assert {key: reading.kind_of(*key) for key in KINDS} == KINDS


COSTS: list[tuple[Any, ...]] = [
    ("aten::mm", [[32, 16], [16, 24]], ["float"] * 2, 2 * 32 * 16 * 24, 4 * (32 * 16 + 16 * 24 + 32 * 24)),
    ("aten::mm", [[32, 16], [16, 24]], ["c10::BFloat16"] * 2, 2 * 32 * 16 * 24, 2 * (32 * 16 + 16 * 24 + 32 * 24)),
    ("aten::addmm", [[24], [32, 16], [16, 24]], ["float"] * 3, 2 * 32 * 16 * 24, 4 * (32 * 16 + 16 * 24 + 32 * 24)),
    ("aten::bmm", [[3, 4, 5], [3, 5, 6]], ["float"] * 2, 2 * 3 * 4 * 5 * 6, 4 * 3 * (4 * 5 + 5 * 6 + 4 * 6)),
    ("aten::mm", [[32, 16]], ["float"], 0, None), ("aten::index", [[100, 8], []], ["float", ""], 0, None),
    ("aten::sub", [[4, 8], [4, 1], []], ["float", "float", "Scalar"], 32, 4 * (32 + 4 + 32)),
    ("aten::copy_", [[4, 8], [4, 8]], ["float"] * 2, 0, 4 * 64), ("aten::clone", [[4, 8]], ["float"], 0, 4 * 64),
    ("aten::sum", [[4, 8]], ["float"], 32, 4 * (32 + 4)), ("aten::sum", [[]], ["float"], 1, 4 * 2),
    ("aten::fill_", [[4, 8], []], ["float", "Scalar"], 0, 4 * 32), ("aten::cat", [[[4, 8]]], [""], 0, None),
    ("aten::mul", [[2**40, 2**40]], ["float"], 0, None),  # more than an address reaches
]  # fmt: skip


def test_costs_come_from_shapes_and_dtypes() -> None:
    found = [reading.cost_of(operator, reading.tensors_of(dims, dtypes)) for operator, dims, dtypes, _, _ in COSTS]
    assert found == [(flops, size) for *_, flops, size in COSTS]


# Nsight Systems.


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_layer(tmp_path_factory.mktemp("nsys") / "report.sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_only_measured_rounds_count_and_a_range_has_the_time_of_its_kernels(report: Path, path: Path) -> None:
    values = kernel_values(reading.read_sqlite(report), {})
    assert (values["rounds"], values["launches"]) == (1, 5)
    assert (values["wall_seconds"], values["kernel_seconds"]) == pytest.approx((900e-6, 240e-6))
    assert values["launch_to_start"]["max_seconds"] == pytest.approx(240e-6)
    # The range lasts for 15 us on the host; its kernel runs for 60 us, 190 us later.
    assert row(values["regions"], region="attention / softmax")["seconds"] == pytest.approx(60e-6)
    assert row(values["attention"]["forward"]["parts"], part="softmax")["host_seconds"] == pytest.approx(15e-6)
    # Kernels of autograd's thread belong to the backward pass.
    back = row(values["regions"], is_backward=True)
    assert (back["region"], back["launches"], back["share_of_direction"]) == ("elsewhere", 2, 1.0)
    assert all("somebody else's" not in kernel.regions for kernel in reading.read_sqlite(report).kernels)
    # An export of an older version has kernels with their names as text, and without their process.
    assert kernel_values(reading.read_sqlite(one_layer(path, old=True)), {}) == values


def test_autograds_own_ranges_give_backward_kernels_back_to_their_module(path: Path) -> None:
    with one_round(path) as export:
        export.range("softmax", 1000, 10_000)
        export.range("aten::exp, seq = 17, op_id = 4", 2000, 9000, domain=OTHERS)
        export.kernel(EXP, 3000, 4000, 5000)
        export.range(f"{NODE}ExpBackward0, seq = 17, op_id = 9", 20_000, 40_000, AUTOGRAD, OTHERS)
        export.kernel(COPY, 25_000, 26_000, 30_000, AUTOGRAD)
    found = [(kernel.regions, kernel.is_backward) for kernel in reading.read_sqlite(path).kernels]
    assert found == [(("softmax",), False), (("softmax",), True)]


def test_one_range_can_be_looked_at_alone(report: Path) -> None:
    attention = kernel_values(reading.read_sqlite(report, "attention"), {})
    assert (attention["launches"], attention["rounds"]) == (3, 1)
    # From the first kernel's start to the last one's end.
    assert (attention["wall_seconds"], attention["busy_share"]) == pytest.approx((140e-6, 1))
    for name in ("sofmax", "somebody else's"):
        with pytest.raises(reading.RangeError, match=r"no range is named .* the report has attention, backward, bl"):
            reading.read_sqlite(report, name)


def test_a_range_of_the_warm_up_is_left_out_and_one_without_kernels_no_table_of_zeros(tmp_path: Path) -> None:
    for number, launches in enumerate(((10_000, 150_000), (150_000,), ())):
        with one_round(path := tmp_path / f"{number}.sqlite") as export:
            export.kernel(EXP, 95_000, 96_000, 97_000)
            export.range("loss", 10_000, 19_000)
            export.range("loss", 150_000, 159_000)
            for start in launches:
                export.kernel(EXP, start + 1000, start + 2000, start + 5000)
        if number == 0:
            assert [(span.start_us, span.us) for span in reading.read_sqlite(path, "loss").rounds] == [(12.0, 3.0)]
            continue
        with pytest.raises(reading.RangeError, match="no kernel was launched in a range named 'loss'"):
            reading.read_sqlite(path, "loss")


def test_a_report_without_ranges_is_one_round_and_an_open_range_passed_over(path: Path, tmp_path: Path) -> None:
    whole = kernel_values(reading.read_sqlite(without_table(one_layer(path), "NVTX_EVENTS")), {})
    assert (whole["launches"], whole["rounds"], {row["region"] for row in whole["regions"]}) == (6, 1, {"elsewhere"})
    with one_round(tmp_path / "open.sqlite") as export:
        export.range("forward", 1000, None)
        export.kernel(EXP, 3000, 4000, 5000)
    assert reading.read_sqlite(tmp_path / "open.sqlite").kernels[0].regions == ()


def test_versions_are_those_of_the_export(report: Path, path: Path) -> None:
    assert reading.versions_of(report) == {"EXPORT_SCHEMA_VERSION": "3.11.0"}
    path.write_text("no database at all, but long enough to be looked at as one")
    assert reading.versions_of(path) == {}
