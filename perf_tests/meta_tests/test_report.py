"""The page over recorded runs: every case on it, every name text, nothing from outside, the same bytes each time."""

import json
import math
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perf_tests.__main__ import main
from perf_tests.meta_tests.test_history import COUNT, START, name_of, with_step
from perf_tests.proofs.synthetic import (
    BACKWARD,
    FORWARD,
    attention_identity,
    record,
    timed,
    timed_attention,
    traced,
    untimed,
    write_record,
)
from perf_tests.proofs.synthetic_grid import grid_record, with_every_pass
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.views.report import page

pytestmark = pytest.mark.usefixtures("no_plotly")
HOSTILE = "<!-- ]]></script><script>pwned()</script><img src=x onerror=pwned()> \" ' & %{x} é \u202e \ud800"


@pytest.fixture(scope="module")
def two_grids(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page over two runs of the whole grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_plotly", lambda: "")
        return page_over(tmp_path_factory.mktemp("grids"), grid_record(1), grid_record(2))


class Reader(HTMLParser):
    """What a browser would make of the page: elements with their attributes, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.text).append(data)

    def having(self, attribute: str) -> Iterator[dict[str, str | None]]:
        return (attributes for _, attributes in self.elements if attribute in attributes)


def store(storage: Path, *records: Json | str) -> Path:
    for number, data in enumerate(records, 1):
        write_record(storage / "machine" / f"{number:04}_run.json", data)
    return storage


def written(storage: Path, *words: str, code: int = 0) -> str:
    out = storage.parent / "page.html"
    assert main(["report", f"--storage={storage}", f"--output={out}", *words]) == code
    return out.read_text()


def page_over(tmp_path: Path, *records: Json | str, code: int = 0) -> str:
    return written(store(tmp_path / "records", *records), code=code)


def stored_in(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def figures(text: str) -> dict[str, Any]:
    stored = stored_in(text)
    for figure in stored["figures"]:
        for trace in figure["data"]:
            trace |= stored["looks"][trace.pop("look")]
            trace["tags"] = [stored["tags"][number] for number in trace["tags"]]
            if "x_from" in trace:
                first = trace.pop("x_from")
                trace["x"] = [first + place for place in range(len(trace["y"]))]
    return {figure["name"]: figure for figure in stored["figures"]}


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', text)


def test_every_case_of_the_grid_is_a_row_with_its_figure_or_its_reason(tmp_path: Path) -> None:
    data = grid_record()
    text = page_over(tmp_path, data)
    timings = text.partition('id="run1-timings"')[2].partition("</section>")[0]
    assert timings.count('<tr id="run1-c') == len(data["benchmarks"]) + len(data["outcomes"])
    assert timings.count('class="outcome"') == len(data["outcomes"])
    for row in data["outcomes"]:
        assert f"<strong>{OUTCOMES[row['outcome']]}</strong>: {row['reason']}" in timings


def test_the_grid_has_every_section_and_every_kind_of_figure(two_grids: str) -> None:
    for part in ("timings", "by-size", "context", "size", "precision", "passes", "memory", "attention", "roofline"):
        assert f"run2-{part}" in sections(two_grids)
    assert sections(two_grids)[0] == "answer"
    assert "runs" in sections(two_grids)


def test_sections_and_figures_without_data_are_absent(tmp_path: Path) -> None:
    shown = ["answer", "run1-roofline", "run1", "run1-timings", "run1-by-size", "runs"]
    assert sections(page_over(tmp_path, record([timed()]))) == shown
    text = page_over(tmp_path, record([], [untimed(reason="because of this")]))
    assert "<strong>out of memory</strong>: because of this" in text
    assert figures(text) == {}


def test_a_hostile_name_is_text_everywhere(tmp_path: Path) -> None:
    rows = [
        timed(f"test_{phase}[{HOSTILE}-{context}-{precision}]", phase=phase, context_length=context, size=HOSTILE,
              attention=HOSTILE, precision=precision, peak_allocated_bytes=2**30, flags=[HOSTILE], bound=HOSTILE)
        for phase in ("forward", "backward") for context in (128, 256) for precision in ("fp32", HOSTILE)
    ]  # fmt: skip
    data = record(rows, [untimed("lost", reason=HOSTILE)], gpu={"name": HOSTILE})
    text = page_over(tmp_path, data, {**data, "datetime": HOSTILE, "commit_info": {"id": HOSTILE}}, "{", code=1)
    seen = Reader(text)
    assert len(seen.scripts) == 3
    assert not [tag for tag, _ in seen.elements if tag == "img"]
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert any("pwned()" in text for text in seen.text)
    assert "<" not in seen.scripts[0]
    assert figures(text)


def test_nothing_comes_from_outside(tmp_path: Path) -> None:
    text = page_over(tmp_path, grid_record())
    seen = Reader(text)
    assert list(seen.having("src")) == []
    assert {str(attributes["href"])[:1] for attributes in seen.having("href")} == {"#"}
    assert "default-src 'none'" in text
    assert not [tag for tag, _ in seen.elements if tag in ("link", "iframe", "object", "base")]


def test_every_figure_has_its_conditions_below_and_its_data_to_download(two_grids: str) -> None:
    seen = re.findall(
        r'<figure><p class="title">.*?<div class="plot" id="plot-([^"]+)".*?<figcaption>(.*?)</figcaption>', two_grids
    )
    assert [name for name, _ in seen] == list(figures(two_grids))
    for name, caption in seen:
        assert "Invented GPU" in caption
        assert f'data-figure="{name}"' in caption


def test_no_two_elements_have_one_id(tmp_path: Path) -> None:
    text = page_over(tmp_path, with_every_pass(grid_record(1), 4), with_every_pass(grid_record(2), 4))
    ids = [attributes["id"] for attributes in Reader(text).having("id")]
    assert len(set(ids)) == len(ids) > 40


def test_series_are_told_apart_without_colour(two_grids: str) -> None:
    for name, figure in figures(two_grids).items():
        if figure["picks_one"]:
            continue
        looks = [
            (trace["marker"]["symbol"], trace["line"]["dash"] if "lines" in trace["mode"] else trace["name"][-13:])
            for trace in figure["data"]
            if trace["showlegend"]
        ]
        assert len(set(looks)) == len(looks), name


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


def of_commit(commit: str, **changes: Any) -> Json:
    return {**record(**changes), "commit_info": {"id": commit * 40, "dirty": False}}


def test_the_history_holds_the_medians_of_one_identity_on_one_machine(tmp_path: Path) -> None:
    runs = [
        of_commit(f"{n}", benchmarks=[timed(seconds=(second,) * 3)], written=f"203{n}-01-01", threads=threads)
        for n, (second, threads) in enumerate([(1.0, 4), (2.0, 4), (9.0, 8), (3.0, 4)])
    ]
    other = of_commit("9", benchmarks=[timed(seconds=(7.0,) * 3, batch_size=64)], written="2029-01-01")
    text = page_over(tmp_path, *runs, other)
    (era,) = stored_in(text)["eras"]
    ours, others = era["cases"]
    assert (ours["at"], ours["seconds"]) == ([1, 2, 3], [1.0, 2.0, 3.0])
    assert (others["at"], others["seconds"]) == ([0], [7.0])
    assert [code[0] for code in era["codes"]] == ["9" * 12, "0" * 12, "1" * 12, "3" * 12]
    assert {"since1", "changed1"} <= set(sections(text))
    assert "since2" not in sections(text), "one commit has no history"


def test_two_commits_with_one_launch_each_are_beside_each_other_without_a_verdict(tmp_path: Path) -> None:
    slower = [seconds * 1.5 for seconds in timed()["stats"]["data"]]
    first = of_commit("a", benchmarks=[timed(), timed(BACKWARD, phase="backward")], written="2030-01-01")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed(seconds=slower)], written="2031-01-01"))
    changed = text.partition('id="changed1"')[2].partition("</section>")[0]
    assert "<td>no step found<td" in changed
    assert ">1.500" in changed
    assert "No verdict of the gate: 1 launch of base against 1 of head" in changed
    assert "1 gone or failed of 2 cases" in text
    assert "<dt>slower</dt><dd>-</dd>" in text, "so few launches tell nothing"


def test_a_step_of_the_history_is_on_the_first_screen_with_its_commit(tmp_path: Path) -> None:
    text = page_over(tmp_path, *with_step(0.2))
    answer = text.partition('id="answer"')[2].partition("</section>")[0]
    assert "1 slower of 1 cases" in answer
    assert f"since {name_of(START)[:12]} (2030-01-01), {COUNT - START} launches against {START}" in answer
    assert '<a href="#since1-c0">forward tiny-ctx8-fp32-naive</a>' in answer
    assert 'id="since1-c0"' in text
    assert answer.count('class="spark"') == 1


def test_a_case_of_another_identity_is_neither_gone_nor_new(tmp_path: Path) -> None:
    first = of_commit("a", benchmarks=[timed()], written="2030-01-01")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed(batch_size=64)], written="2031-01-01"))
    assert "<td>INCOMPARABLE<td" in text
    assert "GONE" not in text.partition("<script")[0]


def test_a_case_that_failed_in_head_is_counted_with_its_outcome(tmp_path: Path) -> None:
    first = of_commit("a", benchmarks=[timed(), timed(BACKWARD, phase="backward")], written="2030-01-01")
    lost = untimed(BACKWARD, "error", "boom", phase="backward")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed()], outcomes=[lost], written="2031-01-01"))
    assert "<td>FAILED<td" in text
    assert "<dt>gone or failed</dt><dd>1</dd>" in text


def test_two_machines_are_kept_apart_with_ratios_and_no_reading(tmp_path: Path) -> None:
    first = record([timed()], written="2030", threads=2)
    second = record([timed(device="cuda", seconds=(0.1,) * 10)], written="2031", threads=8)
    text = page_over(tmp_path, first, second)
    assert "2 machines, builds or settings are shown separately" in text
    assert "ratios without a verdict" in text
    assert "in these launches" not in text
    assert {"run1", "run2", "run1-run2"} <= set(sections(text))


def test_named_runs_are_all_shown_and_others_not(tmp_path: Path) -> None:
    storage = store(tmp_path / "records", *(record([timed(size=f"size{n}")], written=f"203{n}") for n in range(3)))
    text = written(storage, "0001", "0002")
    assert [f"size{n}" in text for n in range(3)] == [True, True, False]


def test_a_torn_file_is_named_on_the_page_and_in_the_exit_code(tmp_path: Path) -> None:
    text = page_over(tmp_path, record([timed()]), "{", json.dumps({**record(), "suite": {"format_version": 0}}), code=1)
    assert "0002_run.json cannot be read" in text
    assert "0003_run.json cannot be used: its format version is 0" in text


@pytest.mark.parametrize("records", [(), ("{",)])
def test_without_a_readable_record_there_is_no_page(records: tuple[str, ...], tmp_path: Path) -> None:
    storage = store(tmp_path / "records", *records)
    assert main(["report", f"--storage={storage}", f"--output={tmp_path}/page.html"]) == 3
    assert not (tmp_path / "page.html").exists()


def test_null_and_nan_are_no_figures(tmp_path: Path) -> None:
    row = timed(tokens_per_second=None, peak_allocated_bytes=None)
    row["extra_info"] |= {"mfu": float("nan"), "roofline_seconds": float("inf"), "flags": None, "bound": 3}
    text = page_over(tmp_path, json.dumps({**record(), "benchmarks": [row]}))
    assert "MFU" not in text
    assert "nan" not in Reader(text).text


def test_a_figure_that_no_number_can_hold_is_left_out(tmp_path: Path) -> None:
    rows = [
        timed(f"test_forward[{t}]", (1.0,) * 10, context_length=t, model_flops=int(1e12),
              matmul_ceiling_tflops_per_second=1e-320, share_of_matmul_ceiling=0.5)
        for t in (8, 16)
    ]  # fmt: skip
    assert "Infinity" not in page_over(tmp_path, record(rows))


JUNK: tuple[Any, ...] = (None, True, -1, 0, 1e308, math.nan, "", "\ud800<b>", [], [1], {}, {"a": 1}, 10**400, "128")


def damaged(data: Json, luck: random.Random) -> Json:
    """The record with twenty of its values, at any depth, replaced by what does not belong there."""
    damage: Any = json.loads(json.dumps(data))
    for _ in range(20):
        place = damage
        while isinstance(place, dict | list) and place:
            key = luck.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if luck.random() < 0.2 or not isinstance(place[key], dict | list):
                place[key] = deepcopy(luck.choice(JUNK))
                break
            place = place[key]
    return damage


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_record_is_shown_or_named_and_left_out(seed: int, tmp_path: Path) -> None:
    data = grid_record()
    rows = {"benchmarks": data["benchmarks"][:6] + data["benchmarks"][-4:], "outcomes": data["outcomes"][:2]}
    storage = store(tmp_path / "records", damaged({**data, **rows}, random.Random(seed)), record([timed()]))
    assert main(["report", f"--storage={storage}", f"--output={tmp_path}/page.html"]) in (0, 1)
    assert main(["tables", f"--storage={storage}", "0001", "--format=latex"]) in (0, 1, 3)


def test_a_hundred_sizes_are_a_hundred_rows_and_choices(tmp_path: Path) -> None:
    rows = [timed(f"a[{n}-{t}]", size=f"size{n}", d_model=n, context_length=t) for n in range(1, 101) for t in (8, 16)]
    text = page_over(tmp_path, record(rows))
    assert text.count('<option value="size') == 100
    assert len(figures(text)["run1-context-forward"]["data"]) == 100


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    records = [grid_record(number) for number in (1, 2)]
    for data in records:
        data["benchmarks"], data["outcomes"] = data["benchmarks"][::7], data["outcomes"][::7]
    backwards = [{**data, "benchmarks": data["benchmarks"][::-1]} for data in records]
    assert page_over(tmp_path / "a", *records) == page_over(tmp_path / "b", *backwards)


def test_every_trace_is_of_a_kind_that_the_bundle_draws(two_grids: str) -> None:
    kinds = {trace["type"] for figure in figures(two_grids).values() for trace in figure["data"]}
    assert kinds <= {"scatter", "bar"}
