"""The page over recorded runs: what each section holds, what is compared with what, and that every text stays text."""

import copy
import hashlib
import json
import math
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from perf_tests.__main__ import main
from perf_tests.audit.rounds import FLAGS
from perf_tests.history.commits import Code
from perf_tests.records.columns import lost_lines
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.report import page as product
from perf_tests.report.blocks import AXES, Figure, Link, Point, Series, Spark, plotly_of, sparkline
from perf_tests.report.changes import short_subject
from perf_tests.report.page import SECTIONS, macros, plotly
from tests.support.git_repository import git
from tests.support.launches_over_commits import COUNT, NOISE, START, launch, name_of, with_step
from tests.support.report_pages import Page, of_commit, page_over, page_with, written
from tests.support.synthetic import (
    BACKWARD,
    FORWARD,
    machine,
    record,
    remembered,
    timed,
    timed_attention,
    timed_collective,
    traced,
    untimed,
    warmed,
    with_passes,
    write_record,
)
from tests.support.synthetic_grid import grid_record, with_every_pass

FIRST_STEP = "perf_tests/test_memory.py::test_memory_of_first_step[tiny-ctx8-fp32-naive]"
TINY = "forward tiny-ctx8-fp32-naive"
pytestmark = pytest.mark.usefixtures("no_plotly")
RECORD = Path(__file__).parents[2] / ".benchmarks/epyc-2core/0001_9e03909d2d18.json"


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory, no_plotly: None) -> Page:
    """Two runs of the whole grid, with every pass."""
    data = [with_every_pass(grid_record(number), 4) for number in (1, 2)]
    return page_over(tmp_path_factory.mktemp("grids"), *data)


# The page as a whole.


def test_every_section_of_the_list_is_on_the_page_of_a_grid_and_the_answer_is_first(grids: Page) -> None:
    per_run = [section.anchor for section in SECTIONS if section.anchor.startswith("run{number}-")]
    assert len(per_run) == 12
    assert {anchor.format(number=2) for anchor in per_run} | {"answer", "run2", "runs"} <= set(grids.sections)
    assert grids.sections[0] == "answer"


def test_what_has_no_data_is_absent(tmp_path: Path) -> None:
    shown = ["answer", "run1-roofline", "run1", "run1-timings", "run1-by-size", "runs"]
    assert page_over(tmp_path / "timed", record([timed()])).sections == shown
    lost = page_over(tmp_path / "lost", record([], [untimed(reason="because of this")]))
    assert "out of memory: because of this" in lost.texts["run1-timings"]
    assert lost.figures == {}


def test_every_case_of_the_grid_is_a_row_with_its_figure_or_its_reason(tmp_path: Path) -> None:
    data = grid_record()
    page = page_over(tmp_path, data)
    rows = [row for name in ("models", "alone") for row in page.tables[f"run1-{name}"][1:]]
    assert len(rows) == len(data["benchmarks"]) + len(data["outcomes"])
    lost = [f"{OUTCOMES[row['outcome']]}: {row['reason']}" for row in data["outcomes"]]
    assert sorted(row[-1] for row in rows if len(row) == 6) == sorted(lost)


def test_nothing_comes_from_outside_and_every_link_leads_to_one_element(grids: Page) -> None:
    ids = grids.having("id")
    assert len(set(ids)) == len(ids) > 40
    assert {anchor.removeprefix("#") for anchor in grids.having("href")} <= set(ids)
    assert grids.having("src") == []
    assert "default-src 'none'" in "".join(grids.having("content"))
    assert {"link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in grids.elements)


def test_every_figure_has_its_conditions_below_and_its_data_to_download(grids: Page) -> None:
    captions = re.findall(r'<div class="plot" id="plot-([^"]+)".*?<figcaption>(.*?)</figcaption>', grids.source, re.S)
    assert [name for name, _ in captions] == list(grids.figures)
    assert all("Invented GPU" in caption and f'data-figure="{name}"' in caption for name, caption in captions)


def test_series_are_of_a_kind_that_the_bundle_draws_and_told_apart_without_colour(grids: Page) -> None:
    for figure in grids.data["figures"]:
        traces = figure["data"]
        assert {trace["type"] for trace in traces} <= {"scatter", "bar"}
        looks = [
            (trace["marker"]["symbol"], trace["line"]["dash"] if "lines" in trace["mode"] else trace["name"][-13:])
            for trace in traces
            if trace["showlegend"] and not figure["picks_one"]
        ]
        assert len(set(looks)) == len(looks), figure["name"]


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    records = [grid_record(number) for number in (1, 2)]
    for data in records:
        data["benchmarks"], data["outcomes"] = data["benchmarks"][::7], data["outcomes"][::7]
    backwards = [{**data, "benchmarks": data["benchmarks"][::-1]} for data in records]
    assert page_over(tmp_path / "a", *records).source == page_over(tmp_path / "b", *backwards).source


def test_the_bundle_is_the_published_one_with_its_licence_and_the_page_of_one_run_is_small(tmp_path: Path) -> None:
    """Version 4.1.1 of the npm package plotly.js-basic-dist-min, by SHA-256 of its plotly-basic.min.js."""
    published = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(plotly().encode()).hexdigest() == published
    assert "* Licensed under the MIT license" in plotly()
    assert not re.search("</script|<!--", plotly(), re.I)
    licence = Path(product.__file__).with_name("plotly") / "LICENSE"
    assert "Permission is hereby granted, free of charge" in licence.read_text()
    written(tmp_path, str(RECORD))
    assert (tmp_path / "page.html").stat().st_size + len(plotly()) < 1_800_000


class Counted(str):
    """Text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_of_many_lost_cases_none_is_compared_with_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [untimed(f"test_forward[lost{n}-ctx8-fp32-naive]", size=f"lost{n}") for n in range(300)]
    monkeypatch.setattr(product, "lost_lines", lambda cells: [Counted(line) for line in lost_lines(cells)])
    page_over(tmp_path, record([timed()], lost))
    assert len(lost) <= Counted.compared < 20 * len(lost)


def test_a_hundred_sizes_are_a_hundred_choices_and_lines(tmp_path: Path) -> None:
    rows = [timed(f"a[{n}-{t}]", size=f"size{n}", d_model=n, context_length=t) for n in range(1, 101) for t in (16, 8)]
    page = page_over(tmp_path, record(rows))
    values = [attributes["value"] for tag, attributes in page.elements if tag == "option"]
    assert [value for value in values if value.startswith("size")] == sorted({f"size{n}" for n in range(1, 101)})
    assert [value for value in values if value in ("8", "16")] == ["8", "16"], "numbers by value"
    assert page.having("data-filter") == ["size", "context"], "one value is no choice"
    assert len(page.figures["run1-context-forward"]) == 100


# Which runs are on it.


def test_named_runs_are_in_full_the_newest_ten_of_them(tmp_path: Path) -> None:
    page_over(tmp_path, *(launch(number, 1.0) for number in range(1, 13)))
    assert [f"run{n}" in written(tmp_path, "00").sections for n in (2, 3, 12)] == [False, True, True]
    page = written(tmp_path, "0002", "0005")
    assert page.column("runs", "Record") == ["machine/0002_run", "machine/0005_run"]
    assert {"run1", "run2"} <= set(page.sections)


def test_two_records_with_one_number_are_two_runs_and_the_page_is_told_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (("0001_a", launch(1, 1.0)), ("0001_b", launch(2, 2.0))):
        write_record(tmp_path / f"records/machine/{name}.json", data)
    page = written(tmp_path, "--json")
    assert page.column("runs", "Record") == ["machine/0001_a", "machine/0001_b"]
    assert len(page.data["eras"][0]["codes"]) == json.loads(capsys.readouterr().out)["runs"] == 2


def test_what_cannot_be_read_or_used_is_named_on_the_page_and_in_the_exit_code(tmp_path: Path) -> None:
    formats = [{**record([timed()]), "suite": {"format_version": version}} for version in (0, 99)]
    unclocked = [record([timed(seconds=(seconds,) * 10)]) for seconds in (1e-320, 1e-13, 1e300)]
    page = page_over(tmp_path, record([timed()]), "{", *formats, *unclocked, code=1)
    for words in ("0002_run.json cannot be read", "format version is 0", "format version is 99, this suite reads 1",
                  "has a round of 1e-320 s", "has a round of 1e-13 s", "has a round of 1e+300 s"):  # fmt: skip
        assert words in page.texts["runs"]
    assert "1 of 1 case has a time" in page.texts["answer"]


@pytest.mark.parametrize("records", [(), ("{",)])
def test_without_a_readable_record_there_is_no_page(records: tuple[str, ...], tmp_path: Path) -> None:
    for number, text in enumerate(records):
        write_record(tmp_path / f"records/{number:04}_a.json", text)
    assert main(["report", f"--storage={tmp_path}/records", f"--output={tmp_path}/page.html"]) == 3
    assert not (tmp_path / "page.html").exists()


def test_a_run_says_how_many_measurements_of_collectives_alone_it_does_not_show(tmp_path: Path) -> None:
    exchanged = [timed_collective(message_bytes) for message_bytes in (40_000, 80_000)]
    said = page_over(tmp_path / "both", record([timed(), *exchanged])).texts["run1"]
    assert "2 measurements of collectives alone" in said
    assert "`python -m perf_tests scaling RECORD`" in said
    assert "collectives" not in page_over(tmp_path / "one", record([timed()])).texts["run1"]


# Text stays text, and damage stays where it is.

FOUND = (Phase.explicit, Phase.generate)
"""No shrinking: hundreds of draws stand behind each page, so that it takes minutes and makes nothing plainer."""

BREAKS = ("", '"', "'", "</td>", "</script>", "-->", "]]>", "</style>", "\x00", "\ud800", "{{ 7 }}", "&lt;", "\u202e")
MARKUP = ("", "<zz onzz=1>", "<img src=x onerror=zz()>", "<!--", "<script>zz()</script>", "%{x}", "<b>")


def strings_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """(object or list, key) of every string in it, at any depth."""
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(part, str):
            yield value, key
        elif isinstance(part, dict | list):
            yield from strings_in(part)


def every_kind() -> list[Json]:
    """Two commits and two machines, every pass, a lost case, attention alone, flags."""
    rows = [timed(FORWARD), timed(BACKWARD, phase="backward", precision="bf16", flags=["trend"], bound="memory"),
            timed("a[16]", context_length=16, roofline_seconds=0.5, bytes_touched=9, model_flops=9),
            timed_attention(sequence_length=256), timed_attention(sequence_length=512)]  # fmt: skip
    lost = [untimed("a[big]", phase="backward", size="big")]
    passes = traced(), remembered(), warmed(), remembered(FIRST_STEP, phase="first_step")
    data = with_passes(record(rows, lost, written="2030-01-01"), *passes)
    later = {**data, "datetime": "2031-01-01", "commit_info": {"id": "c" * 40, "dirty": False, "time": "2031-01-01"}}
    return [json.loads(json.dumps(one)) for one in (data, later, {**later, "machine_info": machine(threads=64)})]


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory, no_plotly: None) -> Page:
    return page_over(tmp_path_factory.mktemp("plain"), *every_kind())


@given(st.sampled_from(BREAKS), st.sampled_from(MARKUP), st.text(max_size=9), st.randoms(use_true_random=False))
@example("<!-- ]]></script>", "<script>zz()</script><img src=x onerror=zz()>", " \" ' & %{x} é", random.Random(1))
@settings(max_examples=40, deadline=None, phases=FOUND)
def test_any_text_in_any_string_of_a_record_stays_text(
    plain_page: Page, broken: str, markup: str, more: str, luck: random.Random
) -> None:
    """A record that is refused is named; elements and attributes are those of the page over plain records."""
    text, records = broken + markup + more, every_kind()
    for data in records:
        for holder, key in luck.sample(list(strings_in(data)), 40):
            if key not in ("fullname", "id", "phase", "pass", "outcome") or luck.random() < 0.1:
                holder[key] = text
        data["machine_info"]["torch"]["environment"] = {text: text}
        held = data["passes"][1]["values"]["peak_by_category_bytes"]
        held[text] = held.pop("temporaries")
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate([record([timed()]), *records]):
            write_record(Path(folder, f"records/machine/{number:04}_run.json"), data)
        assert main(["report", f"--storage={folder}/records", f"--output={folder}/page.html"]) in (0, 1)
        page = Page(Path(folder, "page.html").read_text())
    found, known = page.elements, plain_page.elements
    assert {tag for tag, _ in found} <= {tag for tag, _ in known}
    assert {name for _, one in found for name in one} <= {name for _, one in known for name in one}
    assert len(page.scripts) == 3
    assert "<" not in page.scripts[0]
    plotted = [[{**trace, "tags": [], "hovertemplate": ""} for trace in traces] for traces in page.figures.values()]
    assert "<" not in json.dumps([plotted, [figure["layout"] for figure in page.data["figures"]]])


def test_text_leaves_neither_its_attribute_nor_its_element_and_moves_no_cursor(tmp_path: Path) -> None:
    shown = str(macros().cell(Link("'<b>\x1b", '" onclick="x')))
    assert shown == '<a href="#&#34; onclick=&#34;x">&#39;&lt;b&gt; </a>'
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "<img src=x onerror=pwned()> {{ 7 }} & \"'")
    page = page_over(tmp_path, launch(1, 1.0), launch(2, 1.0, git(tmp_path, "rev-parse", "HEAD").strip()))
    assert "img" not in {tag for tag, _ in page.elements}
    assert "<img src=x onerror=pwned()> {{ 7 }} & \"'" in page.texts["answer"]


def test_a_figure_holds_no_markup_and_the_ends_of_each_interval() -> None:
    """Plotly reads some HTML; an interval's ends need not be equally far from the point."""
    points = [Point(1.0, 10.0, "<b>x</b>", ("",) * len(AXES), 9.0, 14.0)]
    (trace,) = plotly_of(Figure("f", "t", "x", "<i>y</i>", [Series("<a>", points)], []))["data"]
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == ([4.0], [1.0])
    assert (trace["name"], trace["text"]) == ("&lt;a&gt;", ["&lt;b&gt;x&lt;/b&gt;"])


JUNK: tuple[Any, ...] = (
    None, True, -1.5, 0, 1e308, math.nan, "x", "", "\ud800<b>", [], [1], [None], {}, {"a": [1]}, [{"a": None}], 10**400,
)  # fmt: skip


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None, phases=FOUND)
def test_a_damaged_record_is_shown_or_named_and_left_out(luck: random.Random) -> None:
    """Twenty values at any depth are what does not belong there."""
    grid = grid_record()
    rows = {"benchmarks": grid["benchmarks"][:6] + grid["benchmarks"][-4:], "outcomes": grid["outcomes"][:2]}
    damaged = with_every_pass({**grid, **rows}, 4)
    for _ in range(20):
        place: Any = damaged
        while isinstance(place, dict | list) and place:
            key = luck.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if luck.random() < 0.2 or not isinstance(place[key], dict | list):
                place[key] = copy.deepcopy(luck.choice(JUNK))
                break
            place = place[key]
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate((record([timed()]), damaged), 1):
            write_record(Path(folder, f"records/machine/{number:04}_run.json"), data)
        assert main(["report", f"--storage={folder}/records", f"--output={folder}/page.html"]) in (0, 1)
        assert main(["tables", f"--storage={folder}/records", "0002", "--format=latex"]) in (0, 1, 3)


@pytest.mark.parametrize("make", [remembered, warmed, traced])
def test_damaged_values_of_a_pass_harm_nothing(make: Callable[[], Json], tmp_path: Path) -> None:
    row = make()
    values, rows = row["values"], []
    for junk in JUNK:
        rows += [values | {name: junk} for name in values]
        for name, value in values.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                rows += [values | {name: [value[0] | {part: junk}]} for part in value[0]]
            if isinstance(value, dict):
                rows += [values | {name: value | {part: junk}} for part in value]
    page = page_with(tmp_path, *({**row, "values": damaged} for damaged in rows))
    assert "run1" in page.sections
    assert main(["tables", f"--storage={tmp_path / 'records'}"]) == 0


def test_null_nan_and_what_no_number_can_hold_are_no_figures(tmp_path: Path) -> None:
    row = timed(tokens_per_second=None, peak_allocated_bytes=None)
    row["extra_info"] |= {"mfu": math.nan, "roofline_seconds": math.inf, "flags": None, "bound": 3}
    page = page_over(tmp_path, json.dumps({**record(), "benchmarks": [row]}))
    assert "MFU" not in page.tables["run1-limits-models"][0]
    assert "nan" not in "".join(page.texts.values())
    rows = [timed(f"a[{t}]", context_length=t, model_flops=10**12, matmul_ceiling_tflops_per_second=1e-320)
            for t in (8, 16)]  # fmt: skip
    assert "Infinity" not in page_over(tmp_path / "more", record(rows)).source


# Two commits beside each other.


def launches_of(seed: int, commit: str, first: int, count: int, slowdown: float = 0.0, **changes: Any) -> list[Json]:
    """Launches of ten cases, the first of them slower, one a minute; `changes` go to `commit_info`."""
    draw = np.random.default_rng(seed)
    found = []
    for minute in range(first, first + count):
        rows = []
        for place in range(10):
            middle = (1 + slowdown * (place == 0)) * np.exp(draw.normal(size=12) * 0.01 + draw.normal() * 0.01)
            rows.append(timed(f"perf_tests/test_forward.py::test_forward[ctx{place}]", middle.tolist()))
        data = of_commit(commit, f"2030-01-01T00:{minute:02}", *rows)
        found.append({**data, "commit_info": {**data["commit_info"], **changes}})
    return found


@pytest.mark.parametrize("slowdown, verdict, end", [(0.2, "SLOWER", "FAILED"), (0.0, "OK", "PASSED")])
def test_two_commits_with_launches_enough_get_verdicts(slowdown: float, verdict: str, end: str, tmp_path: Path) -> None:
    page = page_over(tmp_path, *launches_of(1, "b", 0, 6), *launches_of(2, "a", 10, 4, slowdown))
    assert page.column("changed1-cases", "verdict")[0] == verdict
    ratios = list(map(float, page.column("changed1-cases", "head / base")))
    low, high = map(float, page.column("changed1-cases", "95 % interval")[0].split(" to "))
    assert low < ratios[0] == max(ratios) < high
    assert ratios[0] == pytest.approx(1 + slowdown, abs=0.05)
    assert f"gate: {end}" in page.texts["changed1"]
    said = "1 slower of" if slowdown else "no change was found in any of"
    assert f"{'a' * 12} (2030-01-01) against {'b' * 12} (2030-01-01): {said} 10 cases." in page.texts["answer"]


@pytest.mark.parametrize(
    "base, head, changes",
    [(4, 4, {}), (6, 2, {}), (6, 0, {}), (6, 4, {"dirty": True}), (6, 4, {"machine": True})],
    ids=["too few of base", "too few of head", "one commit", "with changes", "another machine"],
)
def test_without_launches_enough_of_two_commits_there_is_no_verdict(
    base: int, head: int, changes: Json, tmp_path: Path
) -> None:
    of_head = launches_of(2, "a", 10, head, 0.2, **changes)
    elsewhere = {"machine_info": machine(system="Other")} if "machine" in changes else {}
    page = page_over(tmp_path, *launches_of(1, "b", 0, base), *({**run, **elsewhere} for run in of_head))
    assert not re.search("SLOWER|gate: (PASSED|FAILED)", "".join(page.texts.values()))


BACK, LATE = timed(BACKWARD, phase="backward"), timed("late", phase="full_step")
FAILED = untimed(BACKWARD, "error", "boom", phase="backward")
GRID = [timed(f"a[{t}{name}]", context_length=t, precision=name) for name in ("fp32", "bf16") for t in (8, 16)]


@pytest.mark.parametrize(
    "base, head, lost, verdicts, counts, said",
    [
        ([timed(), BACK], [timed(seconds=[1.5] * 10)], [], ["no step"], "--00", "Left out: 1 case of base that"),
        ([timed(), BACK], [timed(), LATE], [FAILED], ["FAILED", "no step", "NEW"], "--10", OUTCOMES["error"]),
        ([timed()], [timed(batch_size=64)], [], ["INCOMPARABLE"], "--00", "another identity on either side"),
        ([BACK], [timed()], [], ["NEW"], "--00", "have no case in common, so nothing can be slower or faster yet"),
        (GRID, GRID[:3], [], ["GONE", *["no step"] * 3], "--10", "1 gone or failed of 4 cases"),
        (GRID, GRID[:2], [], ["no step", "no step"], "--00", "Left out: 2 cases of base that the axes of head's"),
    ],
    ids=["few launches", "failed and new", "identity", "nothing in common", "gone", "a smaller run"],
)
def test_of_two_commits_with_a_launch_each_what_is_lost_is_told_apart_from_what_was_not_asked_for(
    base: list[Json], head: list[Json], lost: list[Json], verdicts: list[str], counts: str, said: str, tmp_path: Path
) -> None:
    now = {**of_commit("b", "2031-01-01", *head), "outcomes": lost}
    page = page_over(tmp_path, of_commit("a", "2030-01-01", *base), now)
    assert page.column("changed1-cases", "verdict") == verdicts
    assert len(page.tables["changed1-cases"][0]) == 7, "the page's program fills empty columns for other pairs"
    assert "".join(page.counts) == counts, "so few launches tell nothing but a loss"
    assert said in page.texts["answer"] + page.texts["changed1"]
    needed = "1 launch with times of base against 1 of head; it needs at least 5 and 3"
    assert f"No verdict of the gate: {needed}" in page.texts["changed1"]


def test_launches_of_passes_alone_have_no_times_and_hide_none(tmp_path: Path) -> None:
    passed = {**with_passes(record(written="2032-01-01"), traced()), "commit_info": {"id": name_of(3)}}
    page = page_over(tmp_path / "one", launch(1, 1.0), passed)
    assert "1 of 1 case has a time at" in page.texts["answer"]
    assert {"run1", "run2"} <= set(page.sections)
    assert {"since1", "changed1", "since2"}.isdisjoint(page.sections)
    page = page_over(tmp_path / "two", launch(1, 1.0), launch(2, 1.0), passed)
    assert f"{name_of(2)[:12]} (" in page.texts["answer"]
    assert page.column("changed1-cases", "verdict") == ["no step"]
    passes = [of_commit("a", f"2030-01-0{day}") for day in range(1, 5)]
    bases, heads = ([of_commit(name, f"203{name}-01-0{day}", timed()) for day in days]
                    for name, days in (("2", [6]), ("3", [1, 2, 3])))  # fmt: skip
    for data in bases:
        data["commit_info"] = passes[0]["commit_info"]
    page = page_over(tmp_path / "five", *passes, *bases, *heads)
    assert "1 launch with times of base against 3 of head" in page.texts["changed1"]


# Many commits, many machines.


def test_a_step_of_the_history_is_on_the_first_screen_with_its_commit(tmp_path: Path) -> None:
    records = with_step(0.2)
    for data, date in zip(records, reversed([data["datetime"] for data in records]), strict=True):
        data["datetime"] = date  # a clock that went backwards moves no commit: git orders them, or their own dates
    page = page_over(tmp_path, *records)
    assert f"{name_of(COUNT - 1)[:12]} (2030-01-01) against {name_of(0)[:12]}" in page.texts["answer"]
    assert "1 slower of 1 case" in page.texts["answer"]
    ((case, verdict, change, _, why),) = page.tables["worst"][1:]
    assert (case, verdict) == (TINY, "step up")
    assert float(change.strip("%")) == pytest.approx(20, abs=6)
    assert f"since {name_of(START)[:12]} (2030-01-01), {COUNT - START} launches against {START}" in why
    assert [page.tables[f"since1-{name}"][1][0] for name in ("steps", "cases")] == [TINY, TINY]
    assert page.having("href").count("#since1-c0") == 4, "of the worst, what changed, the steps and all cases"
    assert page.source.count('class="spark"') == page.source.count('class="mark"') == 2


@pytest.mark.parametrize("has_git", [False, True])
def test_commits_that_git_does_not_know_are_shown_without_a_subject(has_git: bool, tmp_path: Path) -> None:
    if has_git:
        git(tmp_path, "init", "-q")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", "of another history")
    page = page_over(tmp_path, launch(1, 1.0), launch(2, 1.0))
    assert f"{name_of(2)[:12]} (2030-01-01) against {name_of(1)[:12]} (2030-01-01)" in page.texts["changed1"]
    assert "of another history" not in page.source


LEVELS = {"lost": 1.0, "slowest": 1.5, "slower": 1.2, "steady": 1.0, "faster": 0.7}
"""Head's time of each case over that of the commits before."""


def test_lost_cases_come_first_then_the_slowest_by_steps_that_head_itself_starts(tmp_path: Path) -> None:
    """Twelve commits, and head with three launches."""
    records = []
    for number, place in enumerate([*range(12), 12, 12, 12]):
        names = {name: f"test_forward[{name}-ctx8-fp32-naive]" for name in LEVELS}
        levels = LEVELS if place == 12 else dict.fromkeys(LEVELS, 1.0)
        rows = [timed(names[name], [levels[name] * NOISE[number]] * 5, size=name) for name in reversed(LEVELS)]
        lost = [untimed(names["lost"], "error", "boom", size="lost")] if place == 12 else []
        day = f"2030-01-{1 + place:02}T{number:02}:00:00+00:00"
        data = record(rows[: -len(lost) or None], lost, written=day)
        records.append({**data, "commit_info": {"id": name_of(place), "dirty": False, "time": day}})
    page = page_over(tmp_path, *records)
    assert page.column("worst", "Case") == [f"forward {name}-ctx8-fp32-naive" for name in LEVELS]
    assert page.column("worst", "verdict") == ["FAILED", "step up", "step up", "no step", "step down"]
    changes = [1 + float(change.strip("%")) / 100 for change in page.column("worst", "change")[1:]]
    assert changes == pytest.approx(list(LEVELS.values())[1:], abs=0.06)


def test_of_twelve_cases_the_first_screen_shows_the_ten_slowest(tmp_path: Path) -> None:
    commits = [
        of_commit(f"{head}", f"203{head}", *(timed(f"test_forward[s{n}]", [1.0 + head * n / 10] * 5, size=f"s{n}")
                                             for n in range(12)))
        for head in (0, 1)
    ]  # fmt: skip
    assert page_over(tmp_path, *commits).column("worst", "Case") == [f"forward s{n}" for n in range(11, 1, -1)]


def test_of_a_single_commit_the_cases_without_a_time_come_first_and_flags_have_their_meaning(tmp_path: Path) -> None:
    rows = [timed("a"), timed("b", flags=["short_warmup"]), timed("c", roofline_fraction=0.5)]
    page = page_over(tmp_path, record(rows, [untimed("lost")]))
    assert page.column("worst", "verdict") == ["out of memory", "flagged", "measured", "measured"]
    assert page.column("worst", "least / median") == ["-", "-", "50%", "-"]
    assert f"short_warmup: {FLAGS['short_warmup'].sentence}" in page.texts["answer"]
    assert page.counts == ["-", "-", "1", "1"]
    assert "The worst case:" in page_over(tmp_path / "one", record([timed()])).texts["answer"]


def test_the_history_holds_the_medians_of_one_identity_on_one_machine(tmp_path: Path) -> None:
    runs = [
        of_commit(f"{n}", f"203{n}-01-01", timed(seconds=(second,) * 3), threads=threads)
        for n, (second, threads) in enumerate([(1.0, 4), (2.0, 4), (9.0, 8), (3.0, 4)])
    ]
    page = page_over(tmp_path, *runs, of_commit("9", "2029-01-01", timed(seconds=(7.0,) * 3, batch_size=64)))
    (era,) = page.data["eras"]
    assert [(case["at"], case["seconds"]) for case in era["cases"]] == [([1, 2, 3], [1.0, 2.0, 3.0]), ([0], [7.0])]
    assert [code[0] for code in era["codes"]] == ["9" * 12, "0" * 12, "1" * 12, "3" * 12]
    assert {"since1", "changed1"} <= set(page.sections)
    assert "since2" not in page.sections, "one commit has no history"


def test_machines_are_kept_apart_beside_each_other_without_a_verdict(tmp_path: Path) -> None:
    there = [{**launch(n, 2.0, device="cuda"), "machine_info": machine(threads=64)} for n in (3, 4)]
    for data in there:
        data["benchmarks"].append(BACK)
    page = page_over(tmp_path, launch(1, 1.0), launch(2, 1.0), *there)
    assert [[case["seconds"] for case in era["cases"][:1]] for era in page.data["eras"]] == [[[2.0, 2.0]], [[1.0, 1.0]]]
    assert "2 machines, builds or settings are shown separately" in page.texts["runs"]
    assert "Shown apart below: 1 other machine" in page.texts["answer"]
    assert page.figures["run2-run4"][0]["y"] == [2.0]
    assert page.column("run2-run4", "ratio") == ["2.000", "-"]
    assert "ratios without a verdict" in page.texts["run2-run4"]


def test_launches_without_the_product_beside_their_cases_are_a_history_of_their_own(tmp_path: Path) -> None:
    without = [launch(number, 1.0, sentinel=None) for number in (1, 2)]
    page = page_over(tmp_path, *without, launch(3, 1.0), launch(4, 1.0))
    assert ", before a product was timed beside the cases" in page.texts["changed2"]
    assert len(page.data["eras"]) == 2


def test_the_trend_of_a_case_has_its_first_lowest_highest_and_newest_time(tmp_path: Path) -> None:
    page = page_over(tmp_path, *(launch(place, seconds) for place, seconds in enumerate((2.0, 1.0, 4.0, 3.0))))
    ((_, _, *figures),) = page.tables["since1-cases"][1:]
    assert figures == ["4", "2000", "1000", "4000", "3000", "-", "1.500"]
    chosen = re.findall(r'data-side="(\w+)">.*?selected>2030-01-01 (\w+)', page.source)
    assert chosen == [("base", name_of(0)[:12]), ("head", name_of(3)[:12])]


def test_a_sparkline_rises_with_its_values_and_noise_does_not_fill_it() -> None:
    def heights(*values: float) -> list[float]:
        drawn = sparkline(values, "words")
        assert isinstance(drawn, Spark)
        return [float(point.split(",")[1]) for point in drawn.points.split()]

    first, second, third = heights(1.0, 3.0, 2.0)
    assert second < third < first, "a picture's y grows downwards"
    first, second = heights(1.0, 1.005)
    assert 0 < first - second < Spark.height / 5
    assert len(heights(*range(1, 1000))) <= 60
    assert sparkline([1.0], "words") == ""


def test_a_long_subject_is_cut_with_a_sign() -> None:
    code = Code("a" * 12, "a" * 40, "2030-01-01", "word " * 20, [], is_missing=False)
    assert short_subject(code).endswith("word…")
    assert len(short_subject(code)) <= 60
