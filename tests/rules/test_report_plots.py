"""What the figures of one run draw: times and their floors, ratios, rates under roofs, memory, kernels, warm-up."""

from pathlib import Path
from typing import Any

import pytest

from perf_tests.records.record import Json
from tests.support.report_pages import page_over, page_with
from tests.support.synthetic import (
    BACKWARD,
    FORWARD,
    attention_identity,
    record,
    remembered,
    timed,
    timed_attention,
    traced,
    untimed,
    warmed,
    with_passes,
)

pytestmark = pytest.mark.usefixtures("no_plotly")

MIB = 2**20
FIRST_STEP = "perf_tests/test_memory.py::test_memory_of_first_step[tiny-ctx8-fp32-naive]"


def by_context(name: str = "", **fields: Any) -> list[Json]:
    """Rows at 8 and 16 tokens of 8 and 16 ms."""
    return [timed(f"test_forward[{name}{t}]", [t / 1e3] * 10, context_length=t, **fields) for t in (8, 16)]


def rates(traffic: float | None) -> list[Json]:
    """Two cases of 1 and 1000 FLOP a byte on a machine of 2 TFLOP/s."""
    return [timed(f"a[{n}]", executed_flops=10**6 * n, bytes_touched=10**6, matmul_ceiling_tflops_per_second=2.0,
                  memory_ceiling_gigabytes_per_second=traffic) for n in (1, 1000)]  # fmt: skip


def attention_pass(length: int, way: str = "backward") -> Json:
    row = remembered(f"{way}[{length}]", length * MIB)
    values = row["values"] | {"memory_before_backward_bytes": length * MIB // 2}
    return {**row, "identity": attention_identity(phase=f"attention_{way}", sequence_length=length), "values": values}


COUNTED: Json = {"model_flops": 10**12, "matmul_ceiling_tflops_per_second": 2.0}
BACK = timed(BACKWARD, [0.03] * 10, phase="backward")
PREDICTED, PEAK = timed(predicted_peak_bytes=MIB), timed(predicted_peak_bytes=MIB, peak_allocated_bytes=2 * MIB)
MEMORY = [remembered(FORWARD, 10 * MIB), remembered(BACKWARD, 20 * MIB, phase="backward")]
PARTS = [f"{part}, {way}" for way in ("forward", "backward") for part in ("scores", "softmax")]
ALONE = [attention_pass(256), attention_pass(512)]


@pytest.mark.parametrize(
    "figure, name, rows, passes, x, y",
    [
        ("context-forward", "tiny, fp32 naive", by_context(), [], [8, 16], [8.0, 16.0]),
        ("context-forward", "roofline of tiny, fp32 naive", by_context(roofline_seconds=0.004), [], [8, 16], [4.0] * 2),
        ("context-forward", "launch floor of tiny, fp32 naive", by_context(launching_seconds=5e-3), [], [8, 16],
         [5.0] * 2),
        # Of the case that does what was counted alone.
        ("context-forward", "matmul ceiling of tiny, fp32 naive",
         [by_context(**COUNTED)[0], by_context(**COUNTED, share_of_matmul_ceiling=None)[1]], [], [8], [500.0]),
        ("size-forward", "context 8, fp32 naive", [timed("a", parameters=10), timed("b", size="b", parameters=20)], [],
         [10, 20], [1045.0] * 2),
        ("precision", "bf16, forward", [timed("a", [0.02] * 10), timed("b", [0.01] * 10, precision="bf16")], [],
         ["tiny, 8"], [2.0]),
        ("model-backward", "fp32 naive",
         [timed(FORWARD, [0.01] * 10), BACK, timed("a", [0.5] * 10, phase="backward", attention="sdpa")], [],
         ["tiny, 8"], [3.0]),
        ("attention-backward", "fp32 naive",
         [timed_attention([1.0] * 10), timed_attention([2.5] * 10, phase="attention_backward")], [], ["d 16, 256"],
         [2.5]),
        # 2 TFLOP/s over 100 GB/s is a ridge at 20 FLOP a byte; without a bandwidth the roof is level.
        ("roofline", "best here, fp32", rates(None), [], [1.0, 1000.0], [2.0, 2.0]),
        ("roofline", "best here, fp32", rates(100.0), [], [1.0, 20.0, 1000.0], [0.1, 2.0, 2.0]),
        ("roofline", "forward, fp32", rates(None)[1:], [], [1000.0], [pytest.approx(1e-3 / 1.045, rel=1e-3)]),
        ("memory", "forward, fp32 naive", [PREDICTED], [remembered(peak_bytes=2 * MIB)], ["tiny, 8"], [2.0]),
        ("memory", "forward, fp32 naive, predicted", [PREDICTED], [remembered(peak_bytes=2 * MIB)], ["tiny, 8"], [3.0]),
        ("memory", "forward, fp32 naive, predicted", [PEAK], [], ["tiny, 8"], [1.0]),
        ("memory-categories", "parameters", [], MEMORY, ["forward", "backward"], [3.0, 6.0]),
        ("memory-categories", "predicted peak", [], MEMORY, ["forward", "backward"], [11.0, 21.0]),
        ("attention-memory-backward", "naive, d 16 fp32", [], ALONE, [256, 512], [256.0, 512.0]),
        ("attention-before-backward-backward", "naive, d 16 fp32", [], ALONE, [256, 512], [128.0, 256.0]),
        ("kernels", "matrix product", [], [traced()], ["forward"], [75.0]),
        ("layer", "device", [], [traced()], PARTS, [2.0, 4.0] * 2),
        ("layer", "host", [], [traced()], PARTS, [8.0] * 4),
        ("lanes", "scores", [], [traced()], [2.0, 2.0], ["host", "device"]),
        ("warmup", "after 2", [], [warmed(seconds=0.01)], [*range(1, 13)], [50.0, *[10.0, 10.1, 10.2] * 3, 10.0, 10.1]),
        ("first-rounds", "module loading", [], [warmed(seconds=0.01)], ["forward"], [30.0]),
        ("first-rounds", "allocator growth", [], [warmed(seconds=0.01)], ["forward"], [10.0]),
    ],
)  # fmt: skip
def test_a_figure_draws_what_its_record_says(
    figure: str, name: str, rows: list[Json], passes: list[Json], x: list[object], y: list[object], tmp_path: Path
) -> None:
    page = page_over(tmp_path, with_passes(record(rows or [timed()]), *passes))
    # The last of a name: lanes of a forward and of a backward pass are alike.
    trace = page.traces(f"run1-{figure}")[name]
    assert (trace["x"], trace["y"]) == (x, y)


def test_a_floor_has_the_colour_of_its_line_and_goes_with_it(tmp_path: Path) -> None:
    rows = [row for size in ("one", "two") for row in by_context(size, size=size, launching_seconds=5e-3)]
    page = page_over(tmp_path, record(rows))
    traces = page.traces("run1-context-forward")
    for size in ("one", "two"):
        floor, line = traces[f"launch floor of {size}, fp32 naive"], traces[f"{size}, fp32 naive"]
        assert floor["line"]["color"] == line["line"]["color"]
        assert (floor["legendgroup"], floor["showlegend"]) == (line["legendgroup"], False)
    assert len({trace["line"]["color"] for trace in traces.values()}) == 2
    assert "thin dots: time of the host to launch its kernels (launch floor)" in page.texts["run1-context"]
    assert line["tags"][0][:7] == ["two", "8", "", "", "forward", "fp32", "naive"]


def test_attention_that_ran_out_of_memory_is_a_cross_above_all_figures(tmp_path: Path) -> None:
    lost = {**attention_identity(sequence_length=512), "id": "lost", "outcome": "out_of_memory", "reason": "6 GiB"}
    line, cross = page_over(tmp_path, record([timed_attention()], [lost])).figures["run1-attention-time-forward"]
    assert (cross["marker"]["symbol"], cross["x"]) == ("x", [512])
    assert cross["y"][0] == 2 * max(line["y"])
    assert cross["text"][0].endswith("out of memory: 6 GiB")
    assert cross["name"].endswith("out of memory")


def test_rates_and_ratios_have_intervals(tmp_path: Path) -> None:
    rows = [timed(model_flops=10**12, bytes_touched=10**9), timed("b", precision="bf16")]
    page = page_over(tmp_path, record(rows))
    (rate,) = page.figures["run1-roofline"]
    (middle,), (above,), (below,) = rate["y"], rate["error_y"]["array"], rate["error_y"]["arrayminus"]
    # Of ten rounds the second and the ninth, by order statistics.
    assert [middle, middle - below, middle + above] == pytest.approx([1 / 1.045, 1 / 1.08, 1 / 1.01], rel=1e-3)
    (ratio,) = page.figures["run1-precision"]
    assert min(ratio["error_y"]["array"] + ratio["error_y"]["arrayminus"]) > 0


@pytest.mark.parametrize("measured, said", [(2 * MIB, "measured"), (None, "predicted: none is measured")])
def test_a_predicted_peak_is_a_circle_around_the_measured_one(measured: int | None, said: str, tmp_path: Path) -> None:
    page = page_over(tmp_path, record([timed(peak_allocated_bytes=measured, predicted_peak_bytes=MIB)]))
    assert f'<p class="title">Peak of allocated memory, {said}</p>' in page.source
    *peak, predicted = page.figures["run1-memory"]
    assert (predicted["y"], predicted["marker"]["symbol"], predicted["showlegend"]) == ([1.0], "circle-open", not peak)
    assert [(one["y"], one["offsetgroup"]) for one in peak] == [([2.0], predicted["offsetgroup"])] * bool(measured)


def test_a_category_has_one_place_and_one_colour_in_every_figure_and_a_pattern_of_its_own(tmp_path: Path) -> None:
    step = remembered(phase="full_step")
    timeline = step["values"]["timeline"]
    timeline["category_bytes"] = dict(sorted(timeline["category_bytes"].items()))
    page = page_with(tmp_path, step)
    bars, areas = page.traces("run1-memory-categories"), page.traces("run1-timeline")
    stacked = ["parameters", "optimizer state", "gradients", "activations", "temporaries"]
    assert [name for name in bars if name in stacked] == [name for name in areas if name in stacked] == stacked
    assert all(bars[name]["marker"]["color"] == areas[name]["fillcolor"] for name in stacked)
    assert len({bars[name]["marker"]["pattern"]["shape"] for name in stacked}) == len(stacked)
    assert len({areas[name]["fillpattern"]["shape"] for name in stacked}) == len(stacked)


def test_a_timeline_is_of_the_first_step_and_of_a_configurations_last_phase_with_its_parts(tmp_path: Path) -> None:
    first, step = remembered(FIRST_STEP, phase="first_step"), remembered(BACKWARD, 10 * MIB, 100, phase="full_step")
    begins = {"forward": 0, "loss": 50, "backward": 52, "optimizer": 60}
    step["values"]["timeline"]["parts"] = [{"name": name, "first": begins[name], "last": 99} for name in begins]
    page = page_with(tmp_path, remembered(FORWARD), step, first)
    groups = [trace["group"] for trace in page.figures["run1-timeline"] if trace["name"] == "parameters"]
    assert groups == ["tiny 8 full_step fp32 naive", "tiny 8 first_step fp32 naive"]
    found = {one["name"]: one for one in page.figures["run1-timeline"] if one["group"] == groups[0]}
    assert (found["activations"]["y"][-1], found["predicted peak"]["y"]) == (3.0, [11.0, 11.0])
    # Names that begin close to each other share a mark.
    assert (found["parts"]["x"], found["parts"]["text"]) == ([0, 50, 60], ["forward", "loss, backward", "optimizer"])
    assert found["parts"]["y"] == [pytest.approx(10.4, rel=0.01)] * 3
    assert "first_step: the step that makes the optimizer" in page.texts["run1-memory"]


@pytest.mark.parametrize("damaged", [[1, -1], [1]])
def test_a_timeline_of_one_moment_or_of_less_than_nothing_is_not_drawn(damaged: list[int], tmp_path: Path) -> None:
    step = remembered()
    step["values"]["timeline"]["category_bytes"] = {"parameters": damaged}
    assert "run1-timeline" not in page_with(tmp_path, step).figures


def test_memory_before_the_backward_pass_is_of_backward_passes_where_there_is_one(tmp_path: Path) -> None:
    forward = attention_pass(256, "forward")
    name = "run1-attention-before-backward-forward"
    assert name in page_with(tmp_path / "a", forward).figures, "a forward pass alone ends in the same moment"
    assert name not in page_with(tmp_path / "b", forward, attention_pass(256)).figures


@pytest.mark.parametrize("name", ["kernels", "memory", "warmup"])
def test_a_case_that_a_pass_lost_is_in_its_table_with_its_reason_and_is_no_row_among_the_timings(
    name: str, tmp_path: Path
) -> None:
    page = page_over(tmp_path, record([timed()], [{**untimed(BACKWARD, reason="needs 3 GiB"), "pass": name}]))
    assert "OOM" in [cell for table in page.tables.values() for row in table for cell in row]
    assert "out of memory: needs 3 GiB" in page.texts[f"run1-{name}"]
    assert all("needs 3 GiB" not in page.texts[other] for other in ("answer", "run1-timings", "runs"))


def test_lanes_of_host_and_device_begin_where_the_work_did_and_lie(tmp_path: Path) -> None:
    lanes = page_with(tmp_path, traced()).figures["run1-lanes"]
    assert {lane["group"] for lane in lanes} == {f"tiny 8 forward fp32 naive, {way}ward" for way in ("for", "back")}
    assert [(lane["base"], lane["orientation"]) for lane in lanes[:2]] == [([0.0, 3.0], "h"), ([4.0, 7.0], "h")]


def test_warm_up_is_a_line_for_each_process_without_rounds_of_another_kind(tmp_path: Path) -> None:
    page = page_with(tmp_path, warmed(seconds=0.01))
    found = page.traces("run1-warmup")
    assert list(found) == ["after 0", "after 1", "after 2", "after 5", "after 10", "after 5 without the timed phase"]
    assert found["after 5 without the timed phase"]["x"] == list(range(6, 16))
