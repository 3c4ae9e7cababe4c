"""The figures of a kernel pass, from hand-written traces of which every number is known."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import Training
from perf_tests.audit.physics import inconsistencies, product_shares_that_do_not_fall
from perf_tests.bench.loop import Rounds
from perf_tests.bench.profiler import ProfilerBusyError, trace_rounds
from perf_tests.hardware.device import CpuDevice
from perf_tests.records.record import Json, without_nan
from perf_tests.report.screens import detail_lines, kernel_summary_lines
from perf_tests.traces.kernels import expected_products, kernel_values
from perf_tests.traces.trace import bytes_of, flops_of, kind_of, read_chrome_trace
from tests.support.example_cases import CPU, TOY, build, language_model_case, random_tokens
from tests.support.synthetic import FORWARD, FULL_STEP, identity, passed
from tests.support.synthetic_trace import DIV, SGEMM, HandWritten, forward_and_backward, row
from tests.support.traced_rounds import rounds, trace_bytes, traced_values


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


def test_a_round_without_kernels_is_an_error_and_no_table_of_zeros() -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    with pytest.raises(ValueError, match="no kernel ran inside a round"):
        kernel_values(read_chrome_trace(trace.text()), {})


PLANTED: list[tuple[Callable[[Json], Any], str]] = [
    (lambda v: v.update(launches_of_rounds=[9, 10]), "launch 9 and 10 kernels"),
    (lambda v: v["matrix_products"].update(expected_count=5), "4 matrix products ran, and the model has 5"),
    (lambda v: v["kernels"][0].update(total_seconds=1.0), "calls x mean is"),
    (lambda v: v["kernels"][0].update(share=0.9), "the shares of all kernels add up to"),
    (lambda v: v["kinds"].pop(), "the shares of all kinds add up to"),
    (lambda v: v.update(busy_share=1.2), "the device is busy for 120.0% of the time"),
]


@pytest.mark.parametrize("plant, sentence", PLANTED)
def test_each_planted_contradiction_is_told(values: Json, plant: Callable[[Json], Any], sentence: str) -> None:
    broken = copy.deepcopy(values)
    assert inconsistencies(broken) == []
    plant(broken)
    assert any(sentence in told for told in inconsistencies(broken))


@pytest.mark.parametrize("of_step, told", [(0.5, 0), (0.7, 1)])
def test_products_must_take_less_of_a_full_step_than_of_a_forward_pass(of_step: float, told: int) -> None:
    forward, full_step = ({"matrix_products": {"share_of_kernel_time": share}} for share in (0.66, of_step))
    step = passed(FULL_STEP, values=full_step, phase="full_step", optimizer="loop")
    assert len(product_shares_that_do_not_fall([passed(FORWARD, values=forward), step])) == told


@pytest.mark.parametrize(
    "phase, layers, count",
    [("forward", 36, 325), ("backward", 36, 650), ("full_step", 2, 57), ("optimizer", 2, 0), ("inference", 12, 109)],
)
def test_naive_attention_has_nine_products_a_layer_and_the_head(phase: str, layers: int, count: int) -> None:
    assert expected_products(identity(phase=phase, num_layers=layers)) == count


@pytest.mark.parametrize("change", [{"attention": "sdpa"}, {"checkpoint": "block"}, {"model": "a:b"}])
def test_other_models_are_held_to_no_count(change: Json) -> None:
    assert expected_products(identity(**change)) is None


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


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_a_kernel_is_known_by_its_name(name: str) -> None:
    assert kind_of(name) == KERNEL_NAMES[name]


def test_costs_come_from_shapes_and_dtypes() -> None:
    assert flops_of("aten::mm", [[32, 16], [16, 24]], ["float", "float"]) == 2 * 32 * 16 * 24
    assert bytes_of("aten::mm", [[32, 16], [16, 24]], ["c10::BFloat16"] * 2) == 2 * (32 * 16 + 16 * 24 + 32 * 24)
    assert bytes_of("aten::sub", [[4, 8], [4, 1], []], ["float", "float", "Scalar"]) == 4 * (32 + 4 + 32)
    assert bytes_of("aten::index", [[100, 8], []], ["float", ""]) is None
    assert flops_of("aten::copy_", [[4, 8], [4, 8]], ["float", "float"]) == 0


def test_the_tables_show_each_figure_to_a_person(values: Json) -> None:
    shown = "\n".join(detail_lines(values))
    for words in (SGEMM, "matrix product", "attention / softmax, backward", "value_product", "idle between kernels"):
        assert words in shown
    summary = kernel_summary_lines([passed(FORWARD, values=values)])[1]
    assert summary.split()[:4] == ["forward", "tiny-ctx8-fp32-naive", "9", "4"]


@pytest.fixture(scope="module")
def traced() -> Json:
    """A real full step of two layers on the CPU."""
    training = Training(build(), PRECISIONS["fp32"], CPU)
    training.create_optimizer_state()
    return traced_values(language_model_case(phase="full_step"), *rounds(training, random_tokens())["full_step"])


def test_a_real_step_contradicts_nothing_and_is_json(traced: Json) -> None:
    assert inconsistencies(traced) == []
    assert without_nan(traced) == traced


def test_every_kernel_of_a_real_backward_pass_is_given_back_to_a_region(traced: Json) -> None:
    back = [row for row in traced["regions"] if row["is_backward"]]
    assert {"attention", "attention / softmax", "feed_forward", "norm", "head", "loss", "embedding"} <= {
        row["region"] for row in back
    }
    top = [row for row in back if " / " not in row["region"]]
    assert sum(row["share_of_direction"] for row in top) == pytest.approx(1)
    assert sum(row["launches"] for row in top if row["region"] in ("elsewhere", "residual")) <= 2


def test_the_softmax_of_a_real_layer_is_five_kernels_of_one_flop_an_element(traced: Json) -> None:
    forward = traced["attention"]["forward"]
    softmax = row(forward["parts"], part="softmax")
    assert (forward["layers"], softmax["launches"]) == (TOY.num_layers, 5)
    assert forward["softmax_over_products_flops"] == pytest.approx(5 / (4 * TOY.head_dim))


@pytest.mark.parametrize("change", [{"attention": "compiled"}, {"execution": "compiled"}])
def test_generated_code_that_no_cpu_profiler_sees_is_said_to_be_left_out(change: Json) -> None:
    trace = HandWritten()
    trace.annotation("round", 0, 100)
    trace.operation("aten::mm", 10, 20)
    read = read_chrome_trace(trace.text())
    values = kernel_values(read, {**identity(), **change})
    assert "generates for a CPU appears in no kernel" in "\n".join(
        kernel_summary_lines([passed(FORWARD, values=values)])
    )
    assert kernel_values(read, identity())["left_out"] is None


def test_the_trace_of_a_full_step_of_the_large_size_takes_less_than_20_megabytes() -> None:
    """A trace grows by the same with each layer, whatever its width, so two small models say what 36 layers take."""
    one, three = (trace_bytes(replace(TOY, num_layers=layers)) for layers in (1, 3))
    of_large = one + (SIZES["large"].num_layers - 1) * (three - one) / 2
    # On a GPU each operation has its call, its kernel and two arrows between them beside.
    assert 4 * of_large < 20e6, f"{of_large / 1e6:.1f} MB on a CPU"


def test_a_profiler_that_is_already_active_is_told() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(ProfilerBusyError, match="already active"):
        trace_rounds(Rounds(lambda: None).play, CpuDevice(CPU))
