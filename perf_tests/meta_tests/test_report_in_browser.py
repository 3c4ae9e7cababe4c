"""The page in a real browser: figures drawn, filters and downloads at work, hostile names text, no error said."""

import html
import json
import re
from itertools import product
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.meta_tests.browser import DARK, LIGHT, chromium, opened
from perf_tests.proofs.synthetic import timed, write_record
from perf_tests.proofs.synthetic_grid import grid_record, with_every_pass
from perf_tests.records.record import Json

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"> <script>document.title='pwned'</script> &amp; <b>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a small grid, one case of which has a name that would like to be more."""
    folder = tmp_path_factory.mktemp("page")
    for number in (1, 2):
        data = grid_record(number)
        data["benchmarks"] = [row for row in data["benchmarks"] if is_wanted(row["extra_info"])]
        for context in (128, 256):
            data["benchmarks"].append(
                timed(f"test_forward[{HOSTILE}-{context}]", size=HOSTILE, context_length=context, parameters=1000)
            )
        write_record(folder / f"records/machine/{number:04}_run.json", with_every_pass(data, moments=50))
    assert main(["report", f"--storage={folder / 'records'}", f"--output={folder / 'page.html'}"]) == 0
    return folder / "page.html"


def is_wanted(identity: Json) -> bool:
    """Enough for every kind of figure, and little to draw."""
    if "head_dim" in identity:
        return identity["head_dim"] == 16 and identity["phase"] == "attention_backward"
    place = identity["size"], identity["context_length"]
    return place in product(("small", "medium"), (128, 256)) and identity["phase"] in ("forward", "backward")


@pytest.fixture(scope="module")
def seen(page: Path) -> tuple[str, list[str]]:
    return opened(page, page.parent / "profile")


def shown_rows(dom: str, attribute: str) -> list[str]:
    return [row for row in re.findall(r"<tr ([^>]*)>", dom) if attribute in row and "hidden" not in row]


def title(dom: str) -> str:
    """What a driver said."""
    return html.unescape(dom.partition("<title>")[2].partition("</title>")[0])


def test_every_figure_is_drawn_and_nothing_said_on_the_console(seen: tuple[str, list[str]]) -> None:
    assert seen[1] == []
    places = re.findall(r'<div class="plot[^"]*" id="([^"]+)"', seen[0])
    assert len(places) > 10
    assert len(re.findall(r'<div class="plot js-plotly-plot"', seen[0])) == len(places)
    assert len(re.findall(r'<path class="point"', seen[0])) > 50


def test_plotly_knows_every_word_and_value_of_every_figure(page: Path) -> None:
    """`unused` is what it says of a known word without effect on this figure."""
    driver = """
    setTimeout(() => {
      const own = ["tags", "group", "look", "x_from"];
      const theirs = (trace) => Object.fromEntries(Object.entries(trace).filter(([name]) => !own.includes(name)));
      const drawn = [...document.querySelectorAll(".js-plotly-plot")];
      const faults = drawn.flatMap((div) => {
        const { xaxis, yaxis, shapes } = div.layout;
        return Plotly.validate(div.data.map(theirs), { xaxis, yaxis, shapes }) || [];
      });
      const said = faults.filter((fault) => fault.code !== "unused").map((fault) => fault.msg);
      document.title = JSON.stringify([drawn.length, said]);
    }, 12000);"""
    dom, _ = opened(page, page.parent / "profile", driver=driver)
    drawn, said = json.loads(title(dom))
    assert drawn > 10
    assert said == []


def test_an_address_may_hold_a_filter(page: Path) -> None:
    dom, console = opened(page, page.parent / "profile", "#?precision=bf16")
    assert shown_rows(dom, 'data-precision="bf16"')
    assert not shown_rows(dom, 'data-precision="fp32"')
    assert console == []


def test_choosing_a_size_leaves_its_rows_and_its_points(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const select = document.querySelector('select[data-filter=size]');
      select.value = 'medium';
      select.dispatchEvent(new Event('change'));
      const names = document.getElementById('plot-run2-context-forward').data.map((trace) => trace.name);
      document.title = JSON.stringify(names);
    }, 8000);"""
    dom, console = opened(page, page.parent / "profile", driver=driver)
    assert not shown_rows(dom, 'data-size="small"')
    assert shown_rows(dom, 'data-size="medium"')
    assert {name.partition(",")[0] for name in json.loads(title(dom))} == {"roofline", "launch floor", "medium"}
    assert console == []


def test_bars_areas_and_chosen_cases_are_drawn(page: Path) -> None:
    driver = """
    const of = (name) => document.getElementById('plot-run2-' + name).data;
    function look() {
      if (!of('warmup') || !of('timeline') || !of('memory-categories')) return setTimeout(look, 100);
      const select = document.getElementById('plot-run2-timeline').previousElementSibling;
      const before = of('timeline').length;
      select.selectedIndex = 1;
      select.dispatchEvent(new Event('change'));
      const groups = new Set(of('timeline').map((trace) => trace.group));
      const bars = of('memory-categories').filter((trace) => trace.type === 'bar').length;
      document.title = JSON.stringify([before, bars, [...groups], [select.value], of('warmup')[3].x.length]);
    }
    look();"""
    dom, console = opened(page, page.parent / "profile", driver=driver)
    assert console == []
    traces, bars, groups, chosen, rounds = json.loads(title(dom))
    assert (traces, bars, rounds) == (7, 5, 15)
    assert groups == chosen


def test_a_figures_data_is_downloaded_as_csv(page: Path) -> None:
    driver = """
    setTimeout(() => {
      URL.createObjectURL = (blob) => { blob.text().then((text) => { document.title = text; }); return '#'; };
      document.querySelector('button[data-figure=run2-context-forward]').click();
    }, 3000);"""
    dom, _ = opened(page, page.parent / "profile", driver=driver)
    header, *rows = title(dom).splitlines()
    assert header == "series,tokens in a sequence,median of the rounds (ms),low,high,what,size,context,precision,phase"
    assert any(row.startswith('"small, fp32 naive",128,') and row.endswith(",small,128,fp32,forward") for row in rows)


def test_a_hostile_name_is_seen_and_does_nothing(seen: tuple[str, list[str]]) -> None:
    dom, _ = seen
    assert "<title>Recorded runs</title>" in dom
    assert "<img" not in dom
    assert "<b>" not in dom.rpartition("</script>")[0].partition("<body>")[2].partition("<script")[0]
    assert "&lt;script&gt;document.title" in dom
    legends = re.findall(r'<text class="legendtext"[^>]*>(.*?)</text>', dom)
    assert any(HOSTILE in html.unescape(legend) for legend in legends)


@pytest.mark.parametrize("scheme, background", [(LIGHT, "rgb(255, 255, 255)"), (DARK, "rgb(20, 24, 29)")])
def test_the_page_takes_the_theme_of_its_reader(scheme: int, background: str, page: Path) -> None:
    driver = "setTimeout(() => { document.title = getComputedStyle(document.body).backgroundColor; }, 100);"
    dom, _ = opened(page, page.parent / "profile", scheme=scheme, driver=driver)
    assert f"<title>{background}</title>" in dom


def test_without_programs_the_text_and_the_tables_are_there(page: Path) -> None:
    without = page.with_name("without.html")
    without.write_text(re.sub(r"<script[^>]*>.*?</script>", "", page.read_text(), flags=re.DOTALL))
    dom, _ = opened(without, page.parent / "profile")
    assert dom.count("<td>small</td>") >= 16
    assert "out of memory" in dom
