"""The page over recorded runs: every case on it, nothing from outside, the same bytes each time."""

import html
import re
from pathlib import Path

import pytest

from perf_tests.audit.rounds import FLAGS
from perf_tests.records.columns import lost_lines
from perf_tests.records.record import OUTCOMES
from perf_tests.report.page_parts import page
from tests.support.report_pages import Reader, figures, page_over, sections, store, written
from tests.support.synthetic import record, timed, timed_collective, untimed
from tests.support.synthetic_grid import grid_record, with_every_pass

pytestmark = pytest.mark.usefixtures("no_plotly")


@pytest.fixture(scope="module")
def two_grids(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page over two runs of the whole grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_plotly", lambda: "")
        return page_over(tmp_path_factory.mktemp("grids"), grid_record(1), grid_record(2))


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


def test_a_run_says_how_many_measurements_of_collectives_alone_it_does_not_show(tmp_path: Path) -> None:
    exchanged = [timed_collective(message_bytes) for message_bytes in (40_000, 80_000)]
    text = page_over(tmp_path / "both", record([timed(), *exchanged]))
    assert "Not shown here: 2 measurements of collectives alone, of data between ranks without a model." in text
    assert "Read them with `python -m perf_tests scaling RECORD`." in text
    assert "collectives alone" not in page_over(tmp_path / "one", record([timed()]))


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


def test_the_first_screen_says_what_its_flags_mean(tmp_path: Path) -> None:
    first = page_over(tmp_path, record([timed(flags=["short_warmup"])])).partition("<nav")[0]
    assert f"short_warmup: {FLAGS['short_warmup'].sentence}" in html.unescape(first)
    assert "The worst case: " in first


def test_a_ratio_above_100_percent_has_its_cause_below_the_table(tmp_path: Path) -> None:
    near = page_over(tmp_path, record([timed(roofline_fraction=1.24)])).partition("-roofline")[2]
    assert "124%" in near
    assert "above the median where caches serve what it counts as memory traffic" in near


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


def test_named_runs_are_all_shown_and_others_not(tmp_path: Path) -> None:
    storage = store(tmp_path / "records", *(record([timed(size=f"size{n}")], written=f"203{n}") for n in range(3)))
    text = written(storage, "0001", "0002")
    assert [f"size{n}" in text for n in range(3)] == [True, True, False]


class Counted(str):
    """Text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_of_many_lost_cases_none_is_compared_with_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [untimed(f"test_forward[lost{n}-ctx8-fp32-naive]", size=f"lost{n}") for n in range(300)]
    monkeypatch.setattr(page, "lost_lines", lambda cells: [Counted(line) for line in lost_lines(cells)])
    page_over(tmp_path, record([timed()], lost))
    assert len(lost) <= Counted.compared < 20 * len(lost)


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
