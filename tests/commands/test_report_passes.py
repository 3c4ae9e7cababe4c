"""What extra passes found, on the page: memory by phase and over time, warm-up by round; and two commits judged."""

import re
from pathlib import Path
from typing import Any

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from tests.support.recorded_launches import BASE, HEAD, dated, launches
from tests.support.report_pages import figures, page_over, sections
from tests.support.synthetic import (
    BACKWARD,
    FORWARD,
    attention_identity,
    machine,
    record,
    remembered,
    timed,
    traced,
    untimed,
    warmed,
    with_passes,
)

MIB = 2**20

pytestmark = pytest.mark.usefixtures("no_plotly")


def page_with(folder: Path, *passes: Json) -> str:
    return page_over(folder, with_passes(record([timed()]), *passes))


def traces(text: str, name: str) -> dict[str, Any]:
    return {trace["name"]: trace for trace in figures(text)[name]["data"]}


def test_memory_is_tables_and_a_bar_for_each_phase_stacked_by_category_with_its_prediction(tmp_path: Path) -> None:
    text = page_with(tmp_path, remembered(FORWARD, 10 * MIB), remembered(BACKWARD, 20 * MIB, phase="backward"))
    assert all(said in text for said in ("model/attention.py:48", "softmax", "75.0", "after init (MiB)"))
    found = traces(text, "run1-memory-categories")
    assert (found["parameters"]["type"], found["parameters"]["x"]) == ("bar", ["forward", "backward"])
    assert found["parameters"]["y"] == [3.0, 6.0]
    assert sum(found[name]["y"][1] for name in found if name != "predicted peak") == 20.0
    assert found["predicted peak"]["y"] == [11.0, 21.0]


def test_the_timeline_of_a_step_has_its_parts_its_peak_and_its_prediction(tmp_path: Path) -> None:
    steps = remembered(FORWARD), remembered(BACKWARD, 10 * MIB, phase="full_step")
    found = traces(page_with(tmp_path, *steps), "run1-timeline")
    assert found["activations"]["y"][-1] == 3.0
    assert found["activations"]["group"] == "tiny 8 full_step fp32 naive", "a full step holds what its parts hold"
    assert (found["parts"]["text"], found["parts"]["x"]) == (["forward", "backward"], [0, 6])
    assert found["predicted peak"]["y"] == [11.0, 11.0]


FIRST = "perf_tests/test_memory.py::test_memory_of_first_step[tiny-ctx8-fp32-naive]"


def test_the_timeline_of_the_first_step_stands_beside_that_of_a_later_one(tmp_path: Path) -> None:
    steps = remembered(FIRST, phase="first_step"), remembered(BACKWARD, phase="full_step")
    text = page_with(tmp_path, *steps)
    groups = [trace["group"] for trace in figures(text)["run1-timeline"]["data"] if trace["name"] == "parameters"]
    assert groups == ["tiny 8 full_step fp32 naive", "tiny 8 first_step fp32 naive"]
    assert "first_step: the step that makes the optimizer" in text
    assert traces(text, "run1-memory-categories")["parameters"]["x"] == ["first_step", "full_step"]


def test_the_timeline_of_a_first_step_alone_is_drawn_once(tmp_path: Path) -> None:
    text = page_with(tmp_path, remembered(FIRST, phase="first_step"))
    drawn = [trace["name"] for trace in figures(text)["run1-timeline"]["data"]]
    assert sorted(drawn) == sorted(set(drawn))


def test_parts_that_begin_close_to_each_other_share_their_mark(tmp_path: Path) -> None:
    step, begins = remembered(moments=100), {"forward": 0, "loss": 50, "backward": 52}
    step["values"]["timeline"]["parts"] = [{"name": name, "first": begins[name], "last": 99} for name in begins]
    found = traces(page_with(tmp_path, step), "run1-timeline")["parts"]
    assert (found["x"], found["text"]) == ([0, 50], ["forward", "loss, backward"])


def test_a_category_has_one_place_and_one_colour_in_every_figure_and_a_pattern_of_its_own(tmp_path: Path) -> None:
    step = remembered(phase="full_step")
    timeline = step["values"]["timeline"]
    timeline["category_bytes"] = dict(sorted(timeline["category_bytes"].items()))
    text = page_with(tmp_path, step)
    bars, areas = traces(text, "run1-memory-categories"), traces(text, "run1-timeline")
    stacked = ["parameters", "optimizer state", "gradients", "activations", "temporaries"]
    assert [name for name in bars if name in stacked] == [name for name in areas if name in stacked] == stacked
    assert all(bars[name]["marker"]["color"] == areas[name]["fillcolor"] for name in stacked)
    assert len({bars[name]["marker"]["pattern"]["shape"] for name in stacked}) == len(stacked)
    assert len({areas[name]["fillpattern"]["shape"] for name in stacked}) == len(stacked)


def test_measured_peaks_of_a_pass_are_drawn_where_timings_have_only_predictions(tmp_path: Path) -> None:
    data = with_passes(record([timed(predicted_peak_bytes=2**20)]), remembered(peak_bytes=2**21))
    measured, predicted = figures(page_over(tmp_path, data))["run1-memory"]["data"]
    assert (measured["y"], predicted["y"]) == ([2.0], [3.0])


def test_attention_memory_over_length_comes_from_the_pass_where_timings_have_none(tmp_path: Path) -> None:
    cells = []
    for length in (256, 512):
        labels = attention_identity(phase="attention_backward", sequence_length=length)
        row = {**remembered(f"a[{length}]", length * MIB), "identity": labels}
        row["values"] = {**row["values"], "memory_before_backward_bytes": length * MIB // 2}
        cells.append(row)
    found = figures(page_with(tmp_path, *cells))
    (peaks,) = found["run1-attention-memory-backward"]["data"]
    (before,) = found["run1-attention-before-backward-backward"]["data"]
    assert (peaks["x"], peaks["y"], before["y"]) == ([256, 512], [256.0, 512.0], [128.0, 256.0])


def test_a_case_that_a_pass_lost_is_named_below_its_table_and_is_no_row_among_the_timings(tmp_path: Path) -> None:
    lost = {**untimed(BACKWARD, reason="needs 3 GiB"), "pass": "memory"}
    text = page_over(tmp_path, with_passes(record([timed()], [lost]), remembered()))
    memory = text.partition('id="run1-memory"')[2].partition("</section>")[0]
    assert "out of memory: needs 3 GiB" in memory
    assert text.count("needs 3 GiB") == memory.count("needs 3 GiB")


@pytest.mark.parametrize("name", ["kernels", "memory", "warmup"])
def test_a_pass_that_lost_every_case_is_a_table_of_outcomes(name: str, tmp_path: Path) -> None:
    data = record([timed()], [{**untimed(BACKWARD, reason="needs 3 GiB"), "pass": name}])
    shown = page_over(tmp_path, data).partition(f'id="run1-{name}"')[2].partition("</section>")[0]
    assert ">OOM<td" in shown
    assert "needs 3 GiB" in shown


def test_warm_up_is_a_line_for_each_process_and_what_its_first_round_is_spent_on_a_stacked_bar(tmp_path: Path) -> None:
    text = page_with(tmp_path, warmed(seconds=0.01))
    found, bars = traces(text, "run1-warmup"), traces(text, "run1-first-rounds")
    assert list(found) == ["after 0", "after 1", "after 2", "after 5", "after 10", "after 5 without the timed phase"]
    assert found["after 5"]["x"] == list(range(1, 16))
    assert found["after 5"]["y"][0] == 50.0
    assert found["after 5 without the timed phase"]["x"][0] == 6, "rounds of another kind are not drawn"
    assert {name: bar["y"] for name, bar in bars.items()} == {"module loading": [30.0], "allocator growth": [10.0]}
    assert "for this machine: --warmup-rounds 1, which tiny 8 forward fp32 naive needs" in text


def test_a_warm_up_that_was_too_short_is_told_by_case(tmp_path: Path) -> None:
    short = warmed()
    short["values"] |= {"flags": ["short_warmup"], "recommendation": "Set --warmup-rounds 7."}
    assert "tiny 8 forward fp32 naive: Set --warmup-rounds 7." in page_with(tmp_path, short)


JUNK: tuple[Any, ...] = (None, True, "x", -1.5, [], [None], {}, {"a": [1]}, [{"a": None}], float("nan"))


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("make", [remembered, warmed, traced])
def test_damaged_values_of_a_pass_harm_nothing(make: Any, junk: Any, tmp_path: Path) -> None:
    row = make()
    rows = [{**row, "values": {**row["values"], name: junk}} for name in row["values"]]
    for name, values in row["values"].items():
        if isinstance(values, list) and values and isinstance(values[0], dict):
            rows += [{**row, "values": {**row["values"], name: [{**values[0], part: junk}]}} for part in values[0]]
        if isinstance(values, dict):
            rows += [{**row, "values": {**row["values"], name: {**values, part: junk}}} for part in values]
    assert "run1" in sections(page_with(tmp_path, *rows))
    assert main(["tables", f"--storage={tmp_path / 'records'}"]) == 0


def two_commits(slowdown: float = 0.2, dirty: bool = False) -> tuple[list[Json], list[Json]]:
    base = dated(launches(1, 6), BASE, 0)
    return base, dated(launches(2, 4, slowdown=slowdown), HEAD, 10, dirty)


@pytest.mark.parametrize("slowdown, verdict, end", [(0.2, "SLOWER", "FAILED"), (0.0, "OK", "PASSED")])
def test_two_commits_with_launches_enough_get_verdicts(slowdown: float, verdict: str, end: str, tmp_path: Path) -> None:
    base, head = two_commits(slowdown)
    section = page_over(tmp_path, *base, *head).partition('id="changed1"')[2].partition("</section>")[0]
    assert f"<td>{verdict}<td" in section
    ratios = [float(text) for text in re.findall(r'<td class="n">(\d\.\d{3})<', section)]
    assert ratios[0] == max(ratios) == pytest.approx(1 + slowdown, abs=0.05)
    assert f"gate: {end}" in section
    assert HEAD[:10] in section


def without_verdict() -> dict[str, list[Json]]:
    base, head = two_commits()
    return {
        "too few of base": [*base[:4], *head],
        "too few of head": [*base, *head[:2]],
        "one commit": base,
        "with changes": [*base, *two_commits(dirty=True)[1]],
        "another machine": [*base, *({**run, "machine_info": machine(system="Other")} for run in head)],
    }


@pytest.mark.parametrize("why", without_verdict())
def test_without_launches_enough_of_two_commits_there_is_no_verdict(why: str, tmp_path: Path) -> None:
    text = page_over(tmp_path, *without_verdict()[why])
    assert "SLOWER" not in text
    assert not any(f"gate: {end}" in text for end in ("PASSED", "FAILED"))


def test_launches_of_its_kernels_are_a_floor_behind_each_line(tmp_path: Path) -> None:
    rows = [
        timed(f"test_forward[{size}-{length}]", (length / 1e3,) * 10, size=size, context_length=length,
              launching_seconds=5e-3)
        for size in ("one", "two") for length in (8, 16)
    ]  # fmt: skip
    data = figures(page_over(tmp_path, record(rows)))["run1-context-forward"]["data"]
    floors = [trace for trace in data if trace["name"].startswith("launch floor of ")]
    assert [floor["y"] for floor in floors] == [[5.0, 5.0], [5.0, 5.0]]
    assert [floor["showlegend"] for floor in floors] == [False, False]
    assert len({floor["line"]["color"] for floor in floors}) == 2, "each in the colour of its line"


@pytest.mark.parametrize(
    "traffic, corners, heights", [(None, [1.0, 1000.0], [2.0, 2.0]), (100.0, [1.0, 20.0, 1000.0], [0.1, 2.0, 2.0])]
)
def test_the_roof_is_what_memory_allows_up_to_the_best_product(
    traffic: float | None, corners: list[float], heights: list[float], tmp_path: Path
) -> None:
    """2 TFLOP/s over 100 GB/s is a ridge at 20 FLOP a byte."""
    rows = [timed(f"a[{n}]", executed_flops=10**6 * n, bytes_touched=10**6, matmul_ceiling_tflops_per_second=2.0,
                  memory_ceiling_gigabytes_per_second=traffic) for n in (1, 1000)]  # fmt: skip
    roof, _ = figures(page_over(tmp_path, record(rows)))["run1-roofline"]["data"]
    assert (roof["name"], roof["x"], roof["y"]) == ("best here, fp32", corners, heights)


def test_host_and_device_are_lanes_of_one_attention_layer(tmp_path: Path) -> None:
    data = figures(page_with(tmp_path, traced()))["run1-lanes"]["data"]
    assert {trace["group"] for trace in data} == {f"tiny 8 forward fp32 naive, {way}ward" for way in ("for", "back")}
    scores, softmax = data[:2]
    assert (scores["y"], scores["base"], scores["x"]) == (["host", "device"], [0.0, 3.0], [2.0, 2.0])
    assert (softmax["base"], softmax["orientation"]) == ([4.0, 7.0], "h")
