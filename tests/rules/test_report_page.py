"""The page over recorded runs: what each section holds, which runs are on it, and what its first screen says of one."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.audit.rounds import FLAGS
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json
from perf_tests_suite.perf_tests.report import page as product
from perf_tests_suite.perf_tests.report.blocks import Spark, sparkline
from perf_tests_suite.perf_tests.report.page import plotly
from tests.support.launches_over_commits import launch
from tests.support.report_pages import Page, page_over, page_with
from tests.support.synthetic import record, remembered, timed, timed_collective, traced, untimed, warmed, write_record
from tests.support.synthetic_grid import grid_record, with_every_pass

pytestmark = pytest.mark.usefixtures("no_plotly")


def small_grid(number: int) -> Json:
    """Two models, some cases of the larger one without a time, and attention, with every pass."""
    data = grid_record(number, ("small", "10B"), (128, 256), (16,), (256, 16384))
    return with_every_pass(data, 4)


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory, no_plotly: None) -> Page:
    return page_over(tmp_path_factory.mktemp("grids"), small_grid(1), small_grid(2))


# The page as a whole.


def test_a_grid_fills_every_section_and_each_case_is_a_row_with_its_figure_or_its_reason(grids: Page) -> None:
    anchors = [section.anchor.format(number=2) for section in product.SECTIONS]
    assert [name for name in anchors if name not in grids.sections] == ["changed2", "since2"], "of several commits"
    assert grids.sections[0] == "answer"
    data = small_grid(2)
    rows = [row for name in ("models", "alone") for row in grids.tables[f"run2-{name}"][1:]]
    assert len(rows) == len(data["benchmarks"]) + len(data["outcomes"])
    lost = [f"{OUTCOMES[row['outcome']]}: {row['reason']}" for row in data["outcomes"]]
    assert sorted(row[-1] for row in rows if len(row) == 6) == sorted(lost) != []


def test_nothing_comes_from_outside_and_every_link_leads_to_one_element(grids: Page) -> None:
    ids = grids.having("id")
    assert len(set(ids)) == len(ids) > 40
    assert {anchor.removeprefix("#") for anchor in grids.having("href")} <= set(ids)
    assert grids.having("src") == []
    assert "default-src 'none'" in "".join(grids.having("content"))
    assert {"link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in grids.elements)


def test_a_figure_has_its_conditions_below_and_series_told_apart_without_colour(grids: Page) -> None:
    captions = re.findall(r'<div class="plot" id="plot-([^"]+)".*?<figcaption>(.*?)</figcaption>', grids.source, re.S)
    assert [name for name, _ in captions] == list(grids.figures)
    assert all("Invented GPU" in caption and f'data-figure="{name}"' in caption for name, caption in captions)
    for figure in grids.data["figures"]:
        assert {trace["type"] for trace in figure["data"]} <= {"scatter", "bar"}
        looks = [
            (trace["marker"]["symbol"], trace["line"]["dash"] if "lines" in trace["mode"] else trace["name"][-13:])
            for trace in figure["data"] if trace["showlegend"] and not figure["picks_one"]
        ]  # fmt: skip
        assert len(set(looks)) == len(looks), figure["name"]


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    grid = small_grid(1)
    backwards = {**grid, "benchmarks": grid["benchmarks"][::-1]}
    assert page_over(tmp_path / "a", grid).source == page_over(tmp_path / "b", backwards).source


def test_the_bundle_is_the_published_one_with_its_licence() -> None:
    """Version 4.1.1 of the npm package plotly.js-basic-dist-min, by SHA-256 of its plotly-basic.min.js."""
    published = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(plotly().encode()).hexdigest() == published
    assert "* Licensed under the MIT license" in plotly()
    assert not re.search("</script|<!--", plotly(), re.I)
    licence = Path(product.__file__).with_name("plotly") / "LICENSE"
    assert "Permission is hereby granted, free of charge" in licence.read_text()


def test_what_has_no_data_is_absent_and_one_value_is_no_choice(tmp_path: Path) -> None:
    shown = ["answer", "run1-roofline", "run1", "run1-timings", "run1-by-size", "runs"]
    assert page_over(tmp_path / "timed", record([timed()])).sections == shown
    lost = page_over(tmp_path / "lost", record([], [untimed(reason="because of this")]))
    assert ("because of this" in lost.texts["run1-timings"], lost.figures) == (True, {})
    rows = [timed(f"a[{n}-{t}]", size=f"size{n}", d_model=n, context_length=t) for n in range(1, 101) for t in (16, 8)]
    page = page_over(tmp_path, record(rows))
    values = [attributes["value"] for tag, attributes in page.elements if tag == "option"]
    assert [value for value in values if value.startswith("size")] == sorted({f"size{n}" for n in range(1, 101)})
    assert [value for value in values if value in ("8", "16")] == ["8", "16"], "numbers by value"
    assert page.having("data-filter") == ["size", "context"]
    assert len(page.figures["run1-context-forward"]) == 100


# Which runs are on it.


def test_named_runs_are_in_full_the_newest_ten_of_them(tmp_path: Path) -> None:
    page = page_over(tmp_path, *(launch(number, 1.0) for number in range(1, 13)), words=("00",))
    assert [f"run{n}" in page.sections for n in (2, 3, 12)] == [False, True, True]
    folds = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", page.source, re.S)
    assert [name for name, _ in folds] == [f"Run machine/{n:04}_run" for n in range(11, 2, -1)], "all but the newest"
    assert all(f'id="run{n}-timings"' in text for n, (_, text) in zip(range(11, 2, -1), folds, strict=True))
    nav = page.source.partition("<nav")[2].partition("</nav>")[0]
    assert ('href="#run12"' in nav, 'href="#run11"' in nav) == (True, False)
    page = page_over(tmp_path, words=("0002", "0005"))
    assert page.column("runs", "Record") == ["machine/0002_run", "machine/0005_run"]
    assert {"run1", "run2"} <= set(page.sections)


def test_two_records_with_one_number_are_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in (("0001_a", launch(1, 1.0)), ("0001_b", launch(2, 2.0))):
        write_record(tmp_path / f"records/machine/{name}.json", data)
    page = page_over(tmp_path, words=("--json",))
    assert page.column("runs", "Record") == ["machine/0001_a", "machine/0001_b"]
    assert len(page.data["eras"][0]["codes"]) == json.loads(capsys.readouterr().out)["runs"] == 2


def test_what_cannot_be_read_is_named_and_where_nothing_can_there_is_no_page(tmp_path: Path) -> None:
    words = ["report", f"--storage={tmp_path}/records", f"--output={tmp_path}/page.html"]
    assert main(words) == 3
    write_record(tmp_path / "records/machine/0001_run.json", "{")
    assert main(words) == 3
    assert not (tmp_path / "page.html").exists()
    page = page_over(tmp_path, record([timed()]), "{", code=1)
    assert "0002_run.json cannot be read" in page.texts["runs"]
    assert "1 of 1 case has a time" in page.texts["answer"]


def test_a_run_says_how_many_measurements_of_collectives_alone_it_does_not_show(tmp_path: Path) -> None:
    exchanged = [timed_collective(message_bytes) for message_bytes in (40_000, 80_000)]
    said = page_over(tmp_path / "both", record([timed(), *exchanged])).texts["run1"]
    assert ("2 measurements of collectives" in said, "perf-tests tables --only cases RECORD" in said) == (True, True)
    assert "collectives" not in page_over(tmp_path / "one", record([timed()])).texts["run1"]


# One run.


def test_of_a_single_commit_the_cases_without_a_time_come_first_and_flags_have_their_meaning(tmp_path: Path) -> None:
    rows = [timed("a"), timed("b", flags=["short_warmup"]), timed("c", roofline_fraction=0.5)]
    page = page_over(tmp_path, record(rows, [untimed("lost")]))
    assert page.column("worst", "verdict") == ["out of memory", "flagged", "measured", "measured"]
    assert page.column("worst", "roofline") == ["-", "-", "50%", "-"]
    assert f"b : short_warmup: {FLAGS['short_warmup'].sentence}" in page.texts["answer"]
    assert page.counts == ["-", "-", "1", "1"]
    assert "The worst case:" in page_over(tmp_path / "one", record([timed()])).texts["answer"]


def test_the_first_run_of_its_cases_says_so_whatever_other_records_lie_there(tmp_path: Path) -> None:
    first = record([timed("a"), timed("b")], [], written="2031-01-01", threads=1)
    page = page_over(tmp_path, launch(1, 1.0), launch(2, 2.0), first)
    assert "First run of these cases; nothing to compare. 2 of 2 cases have a time." in page.texts["answer"]
    page = page_over(tmp_path / "again", record([timed()]), record([timed()]))
    assert "2 runs of these cases, all of one commit; nothing to compare." in page.texts["answer"]


def test_a_case_has_its_figures_in_their_units_and_a_limit_that_is_not_known_is_a_dash(tmp_path: Path) -> None:
    known = timed(
        "a", [0.010 + place / 1e4 for place in range(10)], tokens_per_second=12345.6, tflops_per_second=1.2345,
        kernel_launches=1234, flags=["trend"], roofline_seconds=0.0125, roofline_fraction=1.24, mfu=0.4567,
        bound="memory", peak_allocated_bytes=2**21, predicted_peak_bytes=2**20,
    )  # fmt: skip
    page = page_over(tmp_path, record([known, timed("b", share_of_matmul_ceiling=None)]))
    assert page.tables["run1-models"][1][5:] == [
        "10.45", "10.10 to 10.80", "10.45 ± 0.30", "10", "12,346", "1.23", "1,234", "trend"
    ]  # fmt: skip
    table = page.source.partition('id="table-run1-models"')[2].partition("</thead>")[0]
    heads = re.findall(r'<th scope="col"(?: class="(\w)")?>', table)
    assert heads == [*[""] * 5, *"nnnnnnn", ""], "figures end their column"
    (limits,) = page.tables["run1-limits-models"][1:]
    assert limits[5:] == ["10.45", "12.50", "124%", "25%", "45.7%", "memory", "2.000", "1.000"]
    assert "above the median where caches serve what it counts as memory traffic" in page.texts["run1-roofline"]


def test_null_nan_and_what_no_number_can_hold_are_no_figures(tmp_path: Path) -> None:
    row = timed(tokens_per_second=None, peak_allocated_bytes=None)
    row["extra_info"] |= {"mfu": math.nan, "roofline_seconds": math.inf, "flags": None, "bound": 3}
    page = page_over(tmp_path, json.dumps({**record(), "benchmarks": [row]}))
    assert {"MFU", "tokens/s"}.isdisjoint(page.tables["run1-limits-models"][0] + page.tables["run1-models"][0])
    assert "nan" not in "".join(page.texts.values())
    counted: Json = {"model_flops": 10**12, "matmul_ceiling_tflops_per_second": 1e-320}
    rows = [timed(f"a[{t}]", context_length=t, **counted) for t in (8, 16)]
    assert "Infinity" not in page_over(tmp_path / "more", record(rows)).source


JUNK = (None, True, -1.5, 1e308, math.nan, "\ud800<b>", [1], [None], {"a": [1]}, [{"a": None}], 10**400)


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


def test_a_sparkline_rises_with_its_values_and_noise_does_not_fill_it() -> None:
    def drawn(*values: float) -> Spark:
        found = sparkline(values, "words", [1])
        assert isinstance(found, Spark)
        return found

    def heights(*values: float) -> list[float]:
        return [float(point.split(",")[1]) for point in drawn(*values).points.split()]

    assert heights(1.0, 3.0, 2.0) == [Spark.height - Spark.edge, Spark.edge, Spark.height / 2], "y grows downwards"
    assert drawn(1.0, 3.0, 2.0).points.startswith("3,")
    assert (drawn(1.0, 3.0, 2.0).marks, drawn(1.0, 3.0, 2.0).last) == (["55"], ("107", "11"))
    first, second = heights(1.0, 1.005)
    assert 0 < first - second < Spark.height / 5
    assert len(heights(*range(1, 1000))) <= 60
    assert sparkline([1.0], "words") == ""
