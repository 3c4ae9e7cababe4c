"""Traces in Kineto's schema and exports of Nsight Systems: kernels given back to their regions, copies apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from perf_tests.records.record import Json
from perf_tests.traces.kernels import kernel_values
from perf_tests.traces.trace import (
    NoDeviceEventsError,
    RangeError,
    Span,
    Trace,
    TracedKernel,
    bytes_of,
    flops_of,
    kind_of,
    label,
    read_chrome_trace,
    read_sqlite,
    versions_of,
)
from tests.support.synthetic_nsys import AUTOGRAD, COPY, EXP, OTHERS, one_layer, one_round, without_table
from tests.support.synthetic_trace import CAST, DIV, HOST, SGEMM, HandWritten, forward_and_backward, row


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_chrome_trace(forward_and_backward().text())


def kernels_in(trace: Trace, region: str, is_backward: bool) -> list[TracedKernel]:
    return [k for k in trace.kernels if k.regions[-1:] == (region,) and k.is_backward is is_backward]


def test_kernels_are_those_of_the_device_and_not_its_operations(trace: Trace) -> None:
    assert trace.is_on_gpu
    assert len(trace.kernels) == 9
    assert {kernel.operator for kernel in trace.kernels} == {
        "aten::bmm", "aten::div", "aten::exp", "aten::mul", "aten::copy_"
    }  # fmt: skip


def test_a_kernel_belongs_to_the_region_it_was_launched_in(trace: Trace) -> None:
    scores = kernels_in(trace, "scores", is_backward=False)
    assert [kernel.name for kernel in scores] == [SGEMM, DIV]
    assert scores[0].regions == ("forward", "block 0", "attention", "scores")


def test_a_backward_kernel_belongs_to_the_region_of_the_operation_it_derives(trace: Trace) -> None:
    assert [kernel.operator for kernel in kernels_in(trace, "softmax", is_backward=True)] == ["aten::mul"]
    assert [kernel.operator for kernel in kernels_in(trace, "value_product", is_backward=True)] == ["aten::bmm"]
    assert [kernel.operator for kernel in kernels_in(trace, "scores", is_backward=True)] == ["aten::bmm"]


def kernels_of(*spans: tuple[Any, ...]) -> list[TracedKernel]:
    """Of a round of these on a CPU: name, start and end, of operations also thread, number and forward thread."""
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    for name, start, end, *numbers in spans:
        write = trace.operation if "::" in name else trace.annotation
        write(name, start, end, *numbers)
    return list(read_chrome_trace(trace.text()).kernels)


def test_a_number_that_several_operations_bear_belongs_to_the_last_of_them() -> None:
    """An operation that makes no node, here an arange in the region before, reports the number of the next one."""
    kernels = kernels_of(
        ("mask", 5, 20),
        ("aten::arange", 6, 10, HOST, 8),
        ("softmax", 25, 40),
        ("aten::exp", 26, 30, HOST, 8),
        ("autograd::engine::evaluate_function: ExpBackward0", 50, 60, HOST, 8, 1),
        ("aten::mul", 51, 59),
    )
    assert [kernel.regions for kernel in kernels if kernel.is_backward] == [("softmax",)]


def test_what_is_recomputed_going_back_is_in_its_own_regions() -> None:
    checkpoint = ("autograd::engine::evaluate_function: CheckpointBackward", 10, 60, HOST, 1, 1)
    (kernel,) = kernels_of(checkpoint, ("feed_forward", 12, 40), ("aten::mm", 15, 35, HOST, 5))
    assert (kernel.regions, kernel.is_backward) == (("feed_forward",), True)


def test_each_kernel_knows_when_it_was_launched(trace: Trace) -> None:
    assert [kernel.start_us - kernel.issued_us for kernel in trace.kernels] == [10, 10, 10, 10, 10, 10, 10, 5, 10]


def test_the_cost_of_an_operation_is_that_of_its_first_kernel(trace: Trace) -> None:
    product, reduction = kernels_in(trace, "value_product", is_backward=False)
    assert (product.flops, product.bytes_touched) == (2 * 4 * 8 * 16 * 8, 4 * 4 * (8 * 16 + 16 * 8 + 8 * 8))
    assert (reduction.flops, reduction.kind, reduction.is_first_of_operation) == (0, "matrix product", False)


def test_a_copy_into_another_dtype_is_a_cast(trace: Trace) -> None:
    (cast,) = (kernel for kernel in trace.kernels if kernel.name == CAST)
    assert (cast.kind, cast.shapes, cast.bytes_touched) == ("cast", "32x16 32x16", 32 * 16 * 6)


def test_copies_and_memsets_are_no_kernels(trace: Trace) -> None:
    seen = [(operation.kind, operation.bytes_moved) for operation in trace.memory_operations]
    assert seen == [("host-to-device", 4096), ("memset", 512)]


def test_pytorchs_own_annotations_are_no_regions() -> None:
    (kernel,) = kernels_of(("optimizer", 5, 50), ("Optimizer.step#AdamW.step", 10, 40), ("aten::mul_", 15, 20))
    assert kernel.regions == ("optimizer",)


def test_on_a_cpu_a_kernel_is_the_operation_that_computes_and_not_what_it_calls_or_is_called_by() -> None:
    kernels = kernels_of(
        ("aten::linear", 1, 30),
        ("aten::t", 2, 5),
        ("aten::transpose", 3, 4),
        ("aten::matmul", 6, 29),
        ("aten::mm", 8, 28),
        ("aten::resolve_conj", 9, 10),
        ("aten::sum", 40, 60),
        ("aten::fill_", 41, 45),
        ("aten::zeros_like", 70, 90),
        ("aten::empty_like", 71, 75),
        ("aten::zero_", 76, 89),
        ("aten::fill_", 77, 88),
    )
    assert [(kernel.name, kernel.start_us) for kernel in kernels] == [
        ("aten::mm", 8), ("aten::sum", 40), ("aten::zero_", 76)
    ]  # fmt: skip


def test_a_number_that_is_made_a_tensor_is_a_launch_of_its_own_also_inside_another_operation() -> None:
    kernels = kernels_of(("aten::where", 1, 30), ("aten::scalar_tensor", 2, 5), ("aten::where", 6, 29))
    assert [kernel.name for kernel in kernels] == ["aten::where", "aten::scalar_tensor"]


def test_a_trace_of_a_gpu_without_its_kernels_is_refused_and_the_hosts_times_are_not_taken_for_them() -> None:
    with pytest.raises(NoDeviceEventsError, match="could not use CUPTI"):
        read_chrome_trace(forward_and_backward().without_device().text())


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"traceEvents": 3}', json.dumps({"traceEvents": []}).encode()])
def test_what_is_no_trace_is_refused_in_one_sentence(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it (is not a Chrome trace|has no range)"):
        read_chrome_trace(text)


DAMAGED: dict[str, Json] = {
    "a start that is no number": {"ts": "early"},
    "a negative duration": {"dur": -1},
    "a name that is no text": {"name": 3},
    "shapes that are no list": {"args": {"Input Dims": 3}},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_event_is_shown_in_one_sentence(what: str) -> None:
    trace = forward_and_backward()
    trace.events[-1] |= DAMAGED[what]
    with pytest.raises(ValueError, match=r"^it is damaged: an event"):
        read_chrome_trace(trace.text())


def test_a_moment_is_in_the_round_around_it_whose_ends_are_included() -> None:
    trace = Trace(is_on_gpu=True, rounds=[Span(0, 10), Span(20, 30)], kernels=[])
    assert [trace.round_at(moment) for moment in (0, 10, 15, 20, 31)] == [0, 0, None, 1, None]
    assert trace.round_at(5, 25) is None


def test_regions_are_labelled_without_phase_and_layer() -> None:
    inside = ("forward", "block 3", "attention", "softmax")
    assert label(inside) == ["attention", "attention / softmax"]
    assert [label(inside[:2]), label(inside[:1])] == [["residual"], ["elsewhere"]]


KERNEL_NAMES = {
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4": "matrix product",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)": "matrix product",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": "matrix product",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>": "reduction",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": "memset",
    "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>": "copy",
    "void at::native::unrolled_elementwise_kernel<bfloat16tofloat32_copy_kernel_cuda>": "cast",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4>, unsigned int, 4>": "copy",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>": "fused attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention)": "fused attention",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>": "indexing",
    "triton_poi_fused_mul_0": "elementwise",
    "triton_red_fused_mean_pow_1": "reduction",
}


def test_a_kernel_is_known_by_its_name() -> None:
    assert {name: kind_of(name) for name in KERNEL_NAMES} == KERNEL_NAMES


OPERATORS: dict[tuple[str, tuple[str, ...]], str] = {
    ("aten::mm", ()): "matrix product", ("aten::_scaled_dot_product_flash_attention", ()): "fused attention",
    ("aten::copy_", ("float", "float")): "copy", ("aten::copy_", ("float", "c10::Half")): "cast",
    ("aten::cat", ("float", "c10::Half")): "copy", ("aten::sum", ()): "reduction", ("aten::zero_", ()): "memset",
    ("aten::index_select", ()): "indexing", ("aten::mul", ()): "elementwise",
}  # fmt: skip


def test_an_operation_is_known_by_its_name_and_dtypes_before_its_kernels() -> None:
    assert {key: kind_of("triton_poi_fused_mul_0", *key) for key in OPERATORS} == OPERATORS


def test_costs_come_from_shapes_and_dtypes() -> None:
    assert flops_of("aten::mm", [[32, 16], [16, 24]], ["float", "float"]) == 2 * 32 * 16 * 24
    assert bytes_of("aten::mm", [[32, 16], [16, 24]], ["c10::BFloat16"] * 2) == 2 * (32 * 16 + 16 * 24 + 32 * 24)
    assert bytes_of("aten::sub", [[4, 8], [4, 1], []], ["float", "float", "Scalar"]) == 4 * (32 + 4 + 32)
    assert bytes_of("aten::index", [[100, 8], []], ["float", ""]) is None
    assert flops_of("aten::copy_", [[4, 8], [4, 8]], ["float", "float"]) == 0
    assert flops_of("aten::sum", [[4, 8]], ["float"]) == 32
    assert bytes_of("aten::sum", [[4, 8]], ["float"]) == 4 * (32 + 4)
    assert bytes_of("aten::fill_", [[4, 8], []], ["float", "Scalar"]) == 4 * 32
    assert bytes_of("aten::clone", [[4, 8]], ["float"]) == 4 * 64
    assert flops_of("aten::mul", [[2**40, 2**40]], ["float"]) == 0, "more than an address reaches"


# Nsight Systems.


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_layer(tmp_path_factory.mktemp("nsys") / "report.sqlite")


@pytest.fixture(scope="module")
def values(report: Path) -> Json:
    return kernel_values(read_sqlite(report), {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_only_the_measured_rounds_count_and_delays_from_launch_to_start_are_those_of_the_queue(values: Json) -> None:
    assert (values["rounds"], values["launches"]) == (1, 5)
    assert (values["wall_seconds"], values["kernel_seconds"]) == pytest.approx((900e-6, 240e-6))
    assert values["launch_to_start"]["max_seconds"] == pytest.approx(240e-6)


def test_a_range_has_the_time_of_its_kernels_and_not_the_hosts(values: Json) -> None:
    """The range lasts for 15 us on the host; its kernel runs for 60 us, 190 us later."""
    softmax = row(values["regions"], region="attention / softmax")
    assert softmax["seconds"] == pytest.approx(60e-6)
    assert row(values["attention"]["forward"]["parts"], part="softmax")["host_seconds"] == pytest.approx(15e-6)


def test_kernels_of_autograds_thread_belong_to_the_backward_pass(values: Json) -> None:
    back = row(values["regions"], is_backward=True)
    assert (back["region"], back["launches"], back["share_of_direction"]) == ("elsewhere", 2, 1.0)


def test_autograds_own_ranges_give_backward_kernels_back_to_their_module(path: Path) -> None:
    with one_round(path) as export:
        export.range("softmax", 1000, 10_000)
        export.range("aten::exp, seq = 17, op_id = 4", 2000, 9000, domain=OTHERS)
        export.kernel(EXP, 3000, 4000, 5000)
        node = "autograd::engine::evaluate_function: ExpBackward0, seq = 17, op_id = 9"
        export.range(node, 20_000, 40_000, AUTOGRAD, OTHERS)
        export.kernel(COPY, 25_000, 26_000, 30_000, AUTOGRAD)
    regions = kernel_values(read_sqlite(path), {})["regions"]
    assert row(regions, is_backward=True)["region"] == "softmax"


def test_ranges_of_other_domains_are_left_out(report: Path) -> None:
    assert all("somebody else's" not in kernel.regions for kernel in read_sqlite(report).kernels)


def test_one_range_can_be_looked_at_alone(report: Path) -> None:
    attention = kernel_values(read_sqlite(report, "attention"), {})
    assert attention["launches"] == 3
    assert attention["wall_seconds"] == pytest.approx(140e-6)  # from the first kernel's start to the last one's end
    assert attention["busy_share"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["sofmax", "somebody else's"])
def test_a_range_that_nothing_matches_is_an_error_that_lists_the_known(report: Path, name: str) -> None:
    with pytest.raises(RangeError, match=r"no range is named .* the report has attention, backward, block 0"):
        read_sqlite(report, name)


def test_a_range_of_the_warm_up_is_left_out(path: Path) -> None:
    with one_round(path) as export:
        for start in (10_000, 150_000):
            export.range("loss", start, start + 9000)
            export.kernel(EXP, start + 1000, start + 2000, start + 5000)
    trace = read_sqlite(path, "loss")
    assert [(span.start_us, span.us) for span in trace.rounds] == [(12.0, 3.0)]


def test_a_range_without_kernels_is_an_error_and_no_table_of_zeros(path: Path) -> None:
    with one_round(path) as export:
        export.range("loss", 1000, 2000)
        export.kernel(EXP, 3000, 4000, 5000)
    with pytest.raises(RangeError, match="no kernel was launched in a range named 'loss'"):
        read_sqlite(path, "loss")


def test_an_export_of_an_older_version_says_the_same(path: Path, values: Json) -> None:
    """Kernels with their names as text, and without their process."""
    assert kernel_values(read_sqlite(one_layer(path, old=True)), {}) == values


def test_a_report_of_another_program_without_ranges_is_one_round(path: Path) -> None:
    whole = kernel_values(read_sqlite(without_table(one_layer(path), "NVTX_EVENTS")), {})
    assert (whole["launches"], whole["rounds"]) == (6, 1)
    assert {row["region"] for row in whole["regions"]} == {"elsewhere"}


def test_a_range_that_never_ended_is_passed_over(path: Path) -> None:
    with one_round(path) as export:
        export.range("forward", 1000, None)
        export.kernel(EXP, 3000, 4000, 5000)
    assert read_sqlite(path).kernels[0].regions == ()


def test_versions_are_those_of_the_export(report: Path, path: Path) -> None:
    assert versions_of(report) == {"EXPORT_SCHEMA_VERSION": "3.11.0"}
    path.write_text("no database at all, but long enough to be looked at as one")
    assert versions_of(path) == {}
