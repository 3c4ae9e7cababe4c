"""What the figures of one run draw: times, ratios, peaks of memory, shares of kernels."""

from pathlib import Path

import pytest

from tests.support.report_pages import figures, page_over, sections
from tests.support.synthetic import BACKWARD, FORWARD, attention_identity, record, timed, timed_attention, traced

pytestmark = pytest.mark.usefixtures("no_plotly")


def test_time_over_context_is_drawn_in_milliseconds_with_what_bounds_it_behind(tmp_path: Path) -> None:
    rows = [timed(f"test_forward[{t}]", (t / 1e3,) * 10, context_length=t, roofline_seconds=t / 2e3) for t in (8, 16)]
    floor, line = figures(page_over(tmp_path, record(rows)))["run1-context-forward"]["data"]
    assert (line["x"], line["y"]) == ([8, 16], [8.0, 16.0])
    assert (floor["name"], floor["y"]) == ("roofline of tiny, fp32 naive", [4.0, 8.0])
    assert floor["legendgroup"] == line["legendgroup"], "a legend hides and shows both"
    assert floor["line"]["color"] == line["line"]["color"]
    assert line["tags"][0][:7] == ["tiny", "8", "", "", "forward", "fp32", "naive"]


def test_the_matmul_ceiling_is_the_time_of_the_counted_products_at_the_best_rate(tmp_path: Path) -> None:
    rows = [
        timed(f"test_forward[{t}]", (1.0,) * 10, context_length=t, model_flops=int(1e12),
              matmul_ceiling_tflops_per_second=2.0, share_of_matmul_ceiling=share)
        for t, share in ((8, 0.5), (16, None))
    ]  # fmt: skip
    floor, _ = figures(page_over(tmp_path, record(rows)))["run1-context-forward"]["data"]
    assert (floor["name"], floor["x"], floor["y"]) == ("matmul ceiling of tiny, fp32 naive", [8], [500.0])


def test_speed_up_is_fp32_over_the_other_precision(tmp_path: Path) -> None:
    rows = [timed("a[1]", (0.02,) * 10), timed("a[2]", (0.01,) * 10, precision="bf16")]
    (trace,) = figures(page_over(tmp_path, record(rows)))["run1-precision"]["data"]
    assert (trace["name"], trace["y"]) == ("bf16, forward", [2.0])


def test_a_backward_pass_is_compared_with_the_forward_pass_of_the_same_configuration(tmp_path: Path) -> None:
    rows = [timed(FORWARD, (0.01,) * 10), timed(BACKWARD, (0.03,) * 10, phase="backward"),
            timed("a[1]", (0.5,) * 10, phase="backward", attention="sdpa")]  # fmt: skip
    (trace,) = figures(page_over(tmp_path, record(rows)))["run1-model-backward"]["data"]
    assert trace["y"] == [3.0]


def test_a_predicted_peak_is_a_circle_around_the_measured_one(tmp_path: Path) -> None:
    row = timed(peak_allocated_bytes=2**21, predicted_peak_bytes=2**20)
    measured, predicted = figures(page_over(tmp_path, record([row])))["run1-memory"]["data"]
    assert (measured["y"], predicted["y"]) == ([2.0], [1.0])
    assert predicted["marker"]["symbol"] == "circle-open"
    assert measured["offsetgroup"] == predicted["offsetgroup"]


@pytest.mark.parametrize("measured, said", [(2**21, "measured<"), (None, "predicted: none is measured<")])
def test_a_title_says_whether_peaks_are_measured_or_predicted(measured: int | None, said: str, tmp_path: Path) -> None:
    row = timed(peak_allocated_bytes=measured, predicted_peak_bytes=2**20)
    assert f'<p class="title">Peak of allocated memory, {said}' in page_over(tmp_path, record([row]))


def test_every_rate_under_a_roof_has_the_interval_of_its_time(tmp_path: Path) -> None:
    row = timed(model_flops=int(1e12), bytes_touched=int(1e9))
    (trace,) = figures(page_over(tmp_path, record([row])))["run1-roofline"]["data"]
    assert trace["error_y"]["array"][0] > 0
    assert trace["error_y"]["arrayminus"][0] > 0


def test_attention_that_ran_out_of_memory_is_a_cross_above_all_figures(tmp_path: Path) -> None:
    lost = {**attention_identity(sequence_length=512), "id": "lost", "outcome": "out_of_memory", "reason": "6 GiB"}
    text = page_over(tmp_path, record([timed_attention()], [lost]))
    line, cross = figures(text)["run1-attention-time-forward"]["data"]
    assert (cross["marker"]["symbol"], cross["x"]) == ("x", [512])
    assert cross["y"][0] > max(line["y"])
    assert cross["text"][0].endswith("out of memory: 6 GiB")
    assert cross["name"].endswith("out of memory")


def test_kernel_shares_and_both_sides_of_an_attention_layer_are_drawn(tmp_path: Path) -> None:
    text = page_over(tmp_path, {**record([timed()]), "passes": [traced()]})
    assert {"run1-kernels", "run1-kernels-layer"} <= set(sections(text))
    products, others = figures(text)["run1-kernels"]["data"]
    assert (products["name"], products["y"], others["y"]) == ("matrix product", [75.0], [25.0])
    device, host = figures(text)["run1-layer"]["data"]
    assert device["x"] == ["scores, forward", "softmax, forward", "scores, backward", "softmax, backward"]
    assert (device["y"][:2], host["y"][:2]) == ([2.0, 4.0], [8.0, 8.0])


def test_a_figure_that_no_number_can_hold_is_left_out(tmp_path: Path) -> None:
    rows = [
        timed(f"test_forward[{t}]", (1.0,) * 10, context_length=t, model_flops=int(1e12),
              matmul_ceiling_tflops_per_second=1e-320, share_of_matmul_ceiling=0.5)
        for t in (8, 16)
    ]  # fmt: skip
    assert "Infinity" not in page_over(tmp_path, record(rows))
