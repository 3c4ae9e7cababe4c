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
PREDICTED = timed(predicted_peak_bytes=MIB)


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
        ("precision", "bf16, forward", [timed("a", [0.02] * 10), timed("b", [0.01] * 10, precision="bf16")], [],
         ["tiny, 8"], [2.0]),
        ("model-backward", "fp32 naive",
         [timed(FORWARD, [0.01] * 10), BACK, timed("a", [0.5] * 10, phase="backward", attention="sdpa")], [],
         ["tiny, 8"], [3.0]),
        # 2 TFLOP/s over 100 GB/s is a ridge at 20 FLOP a byte; without a bandwidth the roof is level.
        ("roofline", "best here, fp32", rates(None), [], [1.0, 1000.0], [2.0, 2.0]),
        ("roofline", "best here, fp32", rates(100.0), [], [1.0, 20.0, 1000.0], [0.1, 2.0, 2.0]),
        ("memory", "forward, fp32 naive", [PREDICTED], [remembered(peak_bytes=2 * MIB)], ["tiny, 8"], [2.0]),
        ("memory", "forward, fp32 naive, predicted", [PREDICTED], [remembered(peak_bytes=2 * MIB)], ["tiny, 8"], [3.0]),
        ("attention-memory-backward", "naive, d 16 fp32", [], [attention_pass(256), attention_pass(512)], [256, 512],
         [256.0, 512.0]),
        ("attention-before-backward-backward", "naive, d 16 fp32", [], [attention_pass(256), attention_pass(512)],
         [256, 512], [128.0, 256.0]),
        ("kernels", "matrix product", [], [traced()], ["forward"], [75.0]),
        ("kernels", "elementwise", [], [traced()], ["forward"], [25.0]),
        ("layer", "device", [], [traced()], [f"{part}, {way}" for way in ("forward", "backward")
                                             for part in ("scores", "softmax")], [2.0, 4.0] * 2),
        ("first-rounds", "module loading", [], [warmed(seconds=0.01)], ["forward"], [30.0]),
        ("first-rounds", "allocator growth", [], [warmed(seconds=0.01)], ["forward"], [10.0]),
    ],
)  # fmt: skip
def test_a_figure_draws_what_its_record_says(
    figure: str, name: str, rows: list[Json], passes: list[Json], x: list[object], y: list[float], tmp_path: Path
) -> None:
    page = page_over(tmp_path, with_passes(record(rows or [timed()]), *passes))
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
    assert cross["y"][0] > max(line["y"])
    assert cross["text"][0].endswith("out of memory: 6 GiB")
    assert cross["name"].endswith("out of memory")


def test_rates_and_ratios_have_intervals_and_their_cause_above_100_percent(tmp_path: Path) -> None:
    rows = [timed(model_flops=10**12, bytes_touched=10**9, roofline_fraction=1.24), timed("b", precision="bf16")]
    page = page_over(tmp_path, record([*rows, timed("c", share_of_matmul_ceiling=None)]))
    for figure in ("roofline", "precision"):
        bars = page.figures[f"run1-{figure}"][-1]["error_y"]
        assert min(bars["array"] + bars["arrayminus"]) > 0
    assert page.column("run1-limits-models", "least / median") == ["124%", "-"], "one has no limit"
    assert "above the median where caches serve what it counts as memory traffic" in page.texts["run1-roofline"]


@pytest.mark.parametrize("measured, said", [(2 * MIB, "measured"), (None, "predicted: none is measured")])
def test_a_predicted_peak_is_a_circle_around_the_measured_one(measured: int | None, said: str, tmp_path: Path) -> None:
    page = page_over(tmp_path, record([timed(peak_allocated_bytes=measured, predicted_peak_bytes=MIB)]))
    assert f'<p class="title">Peak of allocated memory, {said}</p>' in page.source
    *peak, predicted = page.figures["run1-memory"]
    assert (predicted["y"], predicted["marker"]["symbol"], predicted["showlegend"]) == ([1.0], "circle-open", not peak)
    assert [(one["y"], one["offsetgroup"]) for one in peak] == [([2.0], predicted["offsetgroup"])] * bool(measured)


def test_memory_is_tables_and_a_bar_for_each_phase_stacked_by_category_with_its_prediction(tmp_path: Path) -> None:
    page = page_with(tmp_path, remembered(FORWARD, 10 * MIB), remembered(BACKWARD, 20 * MIB, phase="backward"))
    for said in ("model/attention.py:48", "softmax", "75.0", "after init (MiB)"):
        assert said in page.texts["run1-memory"]
    found = page.traces("run1-memory-categories")
    assert (found["parameters"]["type"], found["parameters"]["x"]) == ("bar", ["forward", "backward"])
    assert (found["parameters"]["y"], found["predicted peak"]["y"]) == ([3.0, 6.0], [11.0, 21.0])
    assert sum(found[name]["y"][1] for name in found if name != "predicted peak") == 20.0


def test_a_timeline_is_of_a_configurations_last_phase_with_its_parts_and_its_prediction(tmp_path: Path) -> None:
    page = page_with(tmp_path, remembered(FORWARD), remembered(BACKWARD, 10 * MIB, phase="full_step"))
    found = page.traces("run1-timeline")
    assert found["activations"]["y"][-1] == 3.0
    assert {trace["group"] for trace in page.figures["run1-timeline"]} == {"tiny 8 full_step fp32 naive"}
    assert (found["parts"]["text"], found["parts"]["x"]) == (["forward", "backward"], [0, 6])
    assert found["predicted peak"]["y"] == [11.0, 11.0]


def test_the_timeline_of_the_first_step_stands_beside_that_of_a_later_one(tmp_path: Path) -> None:
    page = page_with(tmp_path, remembered(FIRST_STEP, phase="first_step"), remembered(BACKWARD, phase="full_step"))
    groups = [trace["group"] for trace in page.figures["run1-timeline"] if trace["name"] == "parameters"]
    assert groups == ["tiny 8 full_step fp32 naive", "tiny 8 first_step fp32 naive"]
    assert "first_step: the step that makes the optimizer" in page.texts["run1-memory"]
    assert page.traces("run1-memory-categories")["parameters"]["x"] == ["first_step", "full_step"]
    alone = page_with(tmp_path / "alone", remembered(FIRST_STEP, phase="first_step")).figures["run1-timeline"]
    assert len({trace["name"] for trace in alone}) == len(alone), "drawn once"


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


def test_parts_that_begin_close_to_each_other_share_their_mark(tmp_path: Path) -> None:
    step, begins = remembered(moments=100), {"forward": 0, "loss": 50, "backward": 52}
    step["values"]["timeline"]["parts"] = [{"name": name, "first": begins[name], "last": 99} for name in begins]
    found = page_with(tmp_path, step).traces("run1-timeline")["parts"]
    assert (found["x"], found["text"]) == ([0, 50], ["forward", "loss, backward"])


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


@pytest.mark.parametrize("name", ["kernels", "memory", "warmup"])
def test_a_case_that_a_pass_lost_is_in_its_table_with_its_reason_and_is_no_row_among_the_timings(
    name: str, tmp_path: Path
) -> None:
    page = page_over(tmp_path, record([timed()], [{**untimed(BACKWARD, reason="needs 3 GiB"), "pass": name}]))
    assert "OOM" in [cell for table in page.tables.values() for row in table for cell in row]
    assert "out of memory: needs 3 GiB" in page.texts[f"run1-{name}"]
    assert all("needs 3 GiB" not in page.texts[other] for other in ("answer", "run1-timings", "runs"))


def test_host_and_device_are_sides_and_lanes_of_one_attention_layer(tmp_path: Path) -> None:
    page = page_with(tmp_path, traced())
    assert page.traces("run1-layer")["host"]["y"] == [8.0] * 4
    lanes = page.figures["run1-lanes"]
    assert {lane["group"] for lane in lanes} == {f"tiny 8 forward fp32 naive, {way}ward" for way in ("for", "back")}
    scores, softmax = lanes[:2]
    assert (scores["y"], scores["base"], scores["x"]) == (["host", "device"], [0.0, 3.0], [2.0, 2.0])
    assert (softmax["base"], softmax["orientation"]) == ([4.0, 7.0], "h")


def test_warm_up_is_a_line_for_each_process_and_one_that_was_too_short_is_told_by_case(tmp_path: Path) -> None:
    short = warmed()
    short["values"] |= {"flags": ["short_warmup"], "recommendation": "Set --warmup-rounds 7."}
    assert "tiny 8 forward fp32 naive: Set --warmup-rounds 7." in page_with(tmp_path / "a", short).texts["run1-warmup"]
    page = page_with(tmp_path / "b", warmed(seconds=0.01))
    found = page.traces("run1-warmup")
    assert list(found) == ["after 0", "after 1", "after 2", "after 5", "after 10", "after 5 without the timed phase"]
    assert (found["after 5"]["x"], found["after 5"]["y"][0]) == (list(range(1, 16)), 50.0)
    assert found["after 5 without the timed phase"]["x"][0] == 6, "rounds of another kind are not drawn"
    assert "for this machine: --warmup-rounds 1, which tiny 8 forward fp32 naive needs" in page.texts["run1-warmup"]
