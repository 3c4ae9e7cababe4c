"""The pieces that the page is made of, one by one: texts, error bars, trends."""

import re
from pathlib import Path

import pytest

from perf_tests.report.page_parts.axes import AXES
from perf_tests.report.page_parts.figure import Figure, Point, Series, plotly_of
from perf_tests.report.page_parts.markup import link, text
from perf_tests.report.page_parts.sparkline import sparkline
from tests.support.launches_over_commits import launch, name_of
from tests.support.report_pages import page_over
from tests.support.synthetic import record, timed, untimed

TAGS = ("",) * len(AXES)


def test_no_text_leaves_its_attribute_or_its_element() -> None:
    assert text("\"'<&>\x1b") == "&quot;&#x27;&lt;&amp;&gt; "
    assert link('"><b>', '" onclick="x').markup.count('"') == 2


def test_a_figure_holds_no_markup_and_the_ends_of_each_interval() -> None:
    """Plotly reads some HTML; an interval's ends need not be equally far from the point."""
    points = [Point(1.0, 10.0, "<b>x</b>", TAGS, 9.0, 14.0)]
    (trace,) = plotly_of(Figure("f", "t", "x", "<i>y</i>", [Series("<a>", points)], []))["data"]
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == ([4.0], [1.0])
    assert (trace["name"], trace["text"]) == ("&lt;a&gt;", ["&lt;b&gt;x&lt;/b&gt;"])


def test_a_sparkline_rises_with_its_values() -> None:
    (drawn,) = re.findall(r'points="([^"]+)"', sparkline([1.0, 3.0, 2.0], "words").markup)
    heights = [float(point.split(",")[1]) for point in drawn.split()]
    assert heights[1] < heights[2] < heights[0], "a picture's y grows downwards"


@pytest.mark.usefixtures("no_plotly")
def test_the_trend_of_a_case_has_its_first_lowest_highest_and_newest_time(tmp_path: Path) -> None:
    page = page_over(tmp_path, *(launch(place, seconds) for place, seconds in enumerate((2.0, 1.0, 4.0, 3.0))))
    (row,) = re.findall(r'<tr id="since1-c0">(.*?)(?:<tr|</tbody>)', page)
    assert re.findall(r'<td class="n">([^<]*)', row) == ["4", "2000", "1000", "4000", "3000", "-", "1.500"]
    chosen = re.findall(r'data-side="(\w+)">.*?selected>2030-01-01 (\w+)', page)
    assert chosen == [("base", name_of(0)[:12]), ("head", name_of(3)[:12])]


@pytest.mark.usefixtures("no_plotly")
def test_of_twelve_cases_the_first_screen_shows_the_ten_slowest(tmp_path: Path) -> None:
    names = [f"size{place}" for place in range(12)]
    commits = [
        {**record([timed(f"test_forward[{name}]", [1.0 + is_head * place / 10] * 5, size=name)
                   for place, name in enumerate(names)]), "commit_info": {"id": name_of(is_head)}}
        for is_head in (0, 1)
    ]  # fmt: skip
    answer = page_over(tmp_path, *commits).partition("</section>")[0]
    assert re.findall(r">forward (size\d+)</a>", answer) == names[:1:-1]


@pytest.mark.usefixtures("no_plotly")
def test_of_a_single_commit_the_cases_without_a_time_come_first(tmp_path: Path) -> None:
    answer = page_over(tmp_path, record([timed()], [untimed("lost")])).partition("</section>")[0]
    assert re.findall(r"</a><td>([^<]*)", answer) == ["out of memory", "measured"]
