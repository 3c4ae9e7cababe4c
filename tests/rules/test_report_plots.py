"""What the figures of one run draw: times and their floors, ratios, rates under roofs, memory, kernels, warm-up."""

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from tests.support import synthetic
from tests.support.report_pages import Page, page_over, page_with
from tests.support.synthetic import BACKWARD, record, remembered, timed, timed_attention, with_passes

pytestmark = pytest.mark.usefixtures("no_plotly")

MIB = 2**20
FIRST_STEP = "perf_tests/test_memory.py::test_memory_of_first_step[tiny-ctx8-fp32-naive]"


def attention_pass(length: int, way: str = "backward") -> Json:
    row = remembered(f"{way}[{length}]", length * MIB)
    values = row["values"] | {"memory_before_backward_bytes": length * MIB // 2}
    identity = synthetic.attention_identity(phase=f"attention_{way}", sequence_length=length)
    return {**row, "identity": identity, "values": values}


# Two TFLOP/s over 100 GB/s are a ridge at 20 FLOP a byte; the cases lie at 1 and 1000.
LIMITS: Json = {
    "roofline_seconds": 0.004, "launching_seconds": 5e-3, "model_flops": 10**12, "bytes_touched": 10**6,
    "matmul_ceiling_tflops_per_second": 2.0, "memory_ceiling_gigabytes_per_second": 100.0,
}  # fmt: skip
ROWS = [
    timed("a", [0.008] * 10, parameters=10, executed_flops=10**6, peak_allocated_bytes=2 * MIB, **LIMITS),
    # Something else than what was counted.
    timed("b", [0.016] * 10, context_length=16, executed_flops=10**9, share_of_matmul_ceiling=None, **LIMITS),
    timed("c", [0.009] * 10, size="wide", parameters=20, launching_seconds=7e-3, predicted_peak_bytes=MIB),
    timed("d", [0.004] * 10, precision="bf16"), timed("e", [0.024] * 10, phase="backward"),
    timed("f", [0.5] * 10, phase="backward", attention="sdpa"),
    timed_attention([1.0] * 10), timed_attention([2.5] * 10, phase="attention_backward"),
]  # fmt: skip
STUDIES = [
    synthetic.traced(), remembered(peak_bytes=10 * MIB), synthetic.warmed(seconds=0.01),
    remembered(BACKWARD, 20 * MIB, phase="backward"),
]  # fmt: skip
DRAWN: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {
    "context-forward": {
        "tiny, fp32 naive": ([8, 16], [8.0, 16.0]), "roofline of tiny, fp32 naive": ([8, 16], [4.0, 4.0]),
        "launch floor of tiny, fp32 naive": ([8, 16], [5.0, 5.0]), "launch floor of wide, fp32 naive": ([8], [7.0]),
        "matmul ceiling of tiny, fp32 naive": ([8], [500.0]),
    },
    "size-forward": {"context 8, fp32 naive": ([10, 20], [8.0, 9.0])},
    "precision": {"bf16, forward": (["tiny, 8"], [2.0])},
    "roofline": {"best here, fp32": ([1.0, 20.0, 1000.0], [0.1, 2.0, 2.0]),
                 "forward, fp32": ([1.0, 1000.0], [0.000125, 0.0625])},
    "memory": {"forward, fp32 naive": (["tiny, 8"], [2.0]), "forward, fp32 naive, predicted": (["wide, 8"], [1.0])},
    "memory-categories": {"parameters": (["forward", "backward"], [3.0, 6.0]),
                          "predicted peak": (["forward", "backward"], [11.0, 21.0])},
    "kernels": {"matrix product": (["forward"], [75.0]), "elementwise": (["forward"], [25.0])},
    "warmup": {"after 2": ([*range(1, 13)], [50.0, *[10.0, 10.1, 10.2] * 3, 10.0, 10.1]), "after 0": ANY,
               # Rounds of another kind are not drawn.
               "after 5 without the timed phase": ([*range(6, 16)], [10.1, *[10.2, 10.0, 10.1] * 3])},
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, no_plotly: None) -> Page:
    return page_over(tmp_path_factory.mktemp("page"), with_passes(record(ROWS), *STUDIES))


@pytest.mark.parametrize("figure", DRAWN)
def test_a_figure_draws_what_its_record_says(figure: str, page: Page) -> None:
    traces = page.traces(f"run1-{figure}")
    found = {name: (traces[name]["x"], traces[name]["y"]) for name in DRAWN[figure]}
    assert found == DRAWN[figure]


def test_an_axis_of_contexts_has_them_as_ticks_and_one_of_names_has_them_in_order(page: Page) -> None:
    axes = {figure["name"]: figure["layout"]["xaxis"] for figure in page.data["figures"]}
    contexts, sizes, phases = (axes[f"run1-{one}"] for one in ("context-forward", "size-forward", "memory-categories"))
    assert (contexts["type"], contexts["tickvals"], contexts["ticktext"]) == ("log", [8, 16], ["8", "16"])
    assert (sizes["type"], "tickvals" in sizes) == ("log", False)
    assert (phases["type"], phases["categoryarray"]) == ("category", ["forward", "backward"])


def test_a_floor_has_the_colour_of_its_line_and_goes_with_it(page: Page) -> None:
    traces = page.traces("run1-context-forward")
    colours = set()
    for size in ("tiny", "wide"):
        floor, line = traces[f"launch floor of {size}, fp32 naive"], traces[f"{size}, fp32 naive"]
        assert floor["line"]["color"] == line["line"]["color"]
        assert (floor["legendgroup"], floor["showlegend"]) == (line["legendgroup"], False)
        colours.add(line["line"]["color"])
    assert len(colours) == 2
    assert "thin dots: time of the host to launch its kernels (launch floor)" in page.texts["run1-context"]
    assert line["tags"][0][:7] == ["wide", "8", "", "", "forward", "fp32", "naive"]


def test_without_a_bandwidth_a_roof_is_level_and_rates_and_ratios_have_intervals(tmp_path: Path) -> None:
    counted: Json = {"model_flops": 10**12, "matmul_ceiling_tflops_per_second": 2.0}
    rows = [timed("a", bytes_touched=10**9, **counted), timed("b", precision="bf16")]
    page = page_over(tmp_path, record([*rows, timed("c", context_length=16, bytes_touched=10**10, **counted)]))
    roof, rate = page.figures["run1-roofline"]
    assert (roof["x"], roof["y"]) == ([100.0, 1000.0], [2.0, 2.0])
    middle, above, below = rate["y"][0], rate["error_y"]["array"][0], rate["error_y"]["arrayminus"][0]
    # Of ten rounds the second and the ninth, by order statistics.
    assert [middle, middle - below, middle + above] == pytest.approx([1 / 1.045, 1 / 1.08, 1 / 1.01], rel=1e-3)
    (ratio,) = page.figures["run1-precision"]
    assert min(ratio["error_y"]["array"] + ratio["error_y"]["arrayminus"]) > 0


def test_attention_that_ran_out_of_memory_is_a_cross_above_all_figures(tmp_path: Path) -> None:
    lost = {"id": "lost", "outcome": "out_of_memory", "reason": "6 GiB"}
    lost |= synthetic.attention_identity(sequence_length=512)
    line, cross = page_over(tmp_path, record([timed_attention()], [lost])).figures["run1-attention-time-forward"]
    assert (cross["marker"]["symbol"], cross["x"]) == ("x", [512])
    assert cross["y"][0] == 2 * max(line["y"])
    assert cross["text"][0].endswith("out of memory: 6 GiB")
    assert cross["name"].endswith("out of memory")


@pytest.mark.parametrize(
    "measured, passes, said",
    [(2 * MIB, [], "measured"), (None, [], "predicted: none is measured"),
     (None, [remembered(peak_bytes=2 * MIB)], "measured")],
)  # fmt: skip
def test_a_predicted_peak_is_a_circle(measured: int | None, passes: list[Json], said: str, tmp_path: Path) -> None:
    timing = timed(peak_allocated_bytes=measured, predicted_peak_bytes=MIB)
    page = page_over(tmp_path, with_passes(record([timing]), *passes))
    assert f'<p class="title">Peak of allocated memory, {said}</p>' in page.source
    *peak, circle = page.figures["run1-memory"]
    assert (circle["marker"]["symbol"], circle["showlegend"]) == ("circle-open", not peak)
    assert circle["y"] == [3.0 if passes else 1.0]
    assert [(one["y"], one["offsetgroup"]) for one in peak] == [([2.0], circle["offsetgroup"])] * (said == "measured")


def test_a_category_has_one_place_and_one_colour_in_every_figure_and_a_pattern_of_its_own(tmp_path: Path) -> None:
    step = remembered(phase="full_step")
    timeline = step["values"]["timeline"]
    timeline["category_bytes"] = dict(sorted(timeline["category_bytes"].items()))
    page = page_with(tmp_path, step)
    bars, areas = page.traces("run1-memory-categories"), page.traces("run1-timeline")
    stacked = ["parameters", "optimizer state", "gradients", "activations", "temporaries"]
    assert [name for name in bars if name in stacked] == [name for name in areas if name in stacked] == stacked
    patterns = {bars[name]["marker"]["pattern"]["shape"] for name in stacked}
    assert len(patterns) == len({areas[name]["fillpattern"]["shape"] for name in stacked}) == len(stacked)
    assert all(bars[name]["marker"]["color"] == areas[name]["fillcolor"] for name in stacked)


def test_a_timeline_is_of_the_first_step_and_of_a_configurations_last_phase_with_its_parts(tmp_path: Path) -> None:
    first, step = remembered(FIRST_STEP, phase="first_step"), remembered(BACKWARD, 10 * MIB, 100, phase="full_step")
    begins = {"forward": 0, "loss": 50, "backward": 52, "optimizer": 60}
    step["values"]["timeline"]["parts"] = [{"name": name, "first": begins[name], "last": 99} for name in begins]
    page = page_with(tmp_path, remembered(), step, first)
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
    page = page_with(tmp_path / "b", forward, attention_pass(256), attention_pass(512))
    assert name not in page.figures
    for figure, held in (("memory", [256.0, 512.0]), ("before-backward", [128.0, 256.0])):
        (trace,) = page.figures[f"run1-attention-{figure}-backward"]
        assert (trace["name"], trace["x"], trace["y"]) == ("naive, d 16 fp32", [256, 512], held)


@pytest.mark.parametrize("name", ["kernels", "memory", "warmup"])
def test_a_case_that_a_pass_lost_is_in_its_table_and_no_row_among_the_timings(name: str, tmp_path: Path) -> None:
    lost = {**synthetic.untimed(BACKWARD, reason="needs 3 GiB"), "pass": name}
    page = page_over(tmp_path, record([timed()], [lost]))
    assert "OOM" in [cell for table in page.tables.values() for row in table for cell in row]
    assert "out of memory: needs 3 GiB" in page.texts[f"run1-{name}"]
    assert all("needs 3 GiB" not in page.texts[other] for other in ("answer", "run1-timings", "runs"))
