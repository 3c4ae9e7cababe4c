"""The page in a real browser: figures drawn, filters and downloads at work, hostile names text, no error said.

A test opens the page once, with a program at its end that acts as a reader would and leaves what it saw as JSON.
"""

import html
import json
import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.browser import DARK, LIGHT, chromium, opened, title
from tests.support.launches_over_commits import START, eight_commits, launch, name_of, with_step
from tests.support.report_pages import page_over
from tests.support.synthetic import BACKWARD, FULL_STEP, timed
from tests.support.synthetic_grid import grid_record, with_every_pass

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"> <script>document.title='pwned'</script> &amp; <b>"

READER = """
// Keeps the text of a download; reading it back from its blob takes real time, which the browser does not wait for.
let saved;
Blob = class extends Blob {
  constructor(parts, options) { super(parts, options); saved = parts.join(''); }
};
URL.createObjectURL = () => '#';
const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const by = (id) => document.getElementById(id);
const rowsOf = (table) => [...table.querySelectorAll('tbody tr:not([hidden])')];
const headOf = (table, name) => [...table.querySelectorAll('th')].findIndex((head) => head.textContent === name);
function choose(select, value) {
  select.value = value;
  select.dispatchEvent(new Event('change', { bubbles: true }));
}
(async () => { await later(12000); document.title = JSON.stringify(await (async () => { %s })()); })();
"""


def seen_by(page: Path, program: str, address: str = "", scheme: int = LIGHT) -> Any:
    """What the program returns, once every figure is drawn; nothing may stand on the console."""
    dom, console = opened(page, page.parent / "profile", address, scheme, READER.replace("%s", program))
    assert console == []
    return json.loads(title(dom))


def page_of(folder: Path, *records: Json) -> Path:
    page_over(folder, *records)
    return folder / "page.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a small grid, one case of which has a name that would like to be more."""
    records = []
    for number in (1, 2):
        data = {**grid_record(number), "commit_info": {"id": f"{number}" * 40, "dirty": False}}
        data["benchmarks"] = [row for row in data["benchmarks"] if is_wanted(row["extra_info"])]
        data["benchmarks"] += [
            timed(f"test_forward[{HOSTILE}-{context}]", size=HOSTILE, context_length=context, parameters=1000)
            for context in (128, 256)
        ]
        records.append(with_every_pass(data, moments=50))
    return page_of(tmp_path_factory.mktemp("page"), *records)


def is_wanted(identity: Json) -> bool:
    """Whether a case is needed: enough for every kind of figure, and little to draw."""
    if "head_dim" in identity:
        return identity["head_dim"] == 16 and identity["phase"] == "attention_backward"
    place = identity["size"], identity["context_length"]
    if identity["phase"] == "forward_backward":  # the longest word in a narrow column
        return place == ("small", 128) and identity["precision"] == "fp32"
    return place in product(("small", "medium"), (128, 256)) and identity["phase"] in ("forward", "backward")


def test_every_figure_is_drawn_and_a_hostile_name_is_seen_and_does_nothing(page: Path) -> None:
    dom, console = opened(page, page.parent / "profile")
    assert console == []
    assert "<title>Recorded runs</title>" in dom
    places = re.findall(r'<div class="plot[^"]*" id="([^"]+)"', dom)
    assert len(places) > 10
    assert len(re.findall(r'<div class="plot[^"]* js-plotly-plot"', dom)) == len(places)
    assert len(re.findall(r'<path class="point"', dom)) > 50
    assert "<img" not in dom
    assert "<b>" not in dom.rpartition("</script>")[0].partition("<body>")[2].partition("<script")[0]
    assert "&lt;script&gt;document.title" in dom
    legends = re.findall(r'<text class="legendtext"[^>]*>(.*?)</text>', dom)
    assert any(HOSTILE in html.unescape(legend) for legend in legends)


def test_figures_are_as_their_records_say_in_words_that_plotly_knows(page: Path) -> None:
    """`unused` is what it says of a known word without effect on this figure."""
    seen = seen_by(page, """
    const own = ["tags", "group", "look", "x_from"];
    const theirs = (trace) => Object.fromEntries(Object.entries(trace).filter(([name]) => !own.includes(name)));
    const drawn = [...document.querySelectorAll(".js-plotly-plot")];
    const faults = drawn.flatMap((div) => {
      const { xaxis, yaxis, shapes } = div.layout;
      return Plotly.validate(div.data.map(theirs), { xaxis, yaxis, shapes }) || [];
    });
    const of = (name) => by('plot-run2-' + name);
    const middle = (one) => { const { left, right } = one.getBoundingClientRect(); return (left + right) / 2; };
    const middles = (marks) => [...of('memory-categories').querySelectorAll(marks)].map(middle);
    const select = of('timeline').previousElementSibling, before = of('timeline').data.length;
    const marks = [middles('.scatterlayer .point'), middles('.barlayer .point path')];
    select.selectedIndex = 1;
    choose(select, select.value);
    return {
      drawn: drawn.length, faults: faults.filter((fault) => fault.code !== "unused").map((fault) => fault.msg),
      labels: of('context-forward').layout.yaxis.ticktext, marks,
      areas: before, bars: of('memory-categories').data.filter((trace) => trace.type === 'bar').length,
      groups: [...new Set(of('timeline').data.map((trace) => trace.group))], chosen: [select.value],
      rounds: of('warmup').data[3].x.length,
    };""")  # fmt: skip
    assert seen["drawn"] > 10
    assert seen["faults"] == []
    assert len(seen["labels"]) >= 3
    assert {label.strip("0.k")[:1] for label in seen["labels"]} <= {"1", "2", "5"}, "of a logarithmic axis"
    circles, bars = seen["marks"]
    assert circles
    assert all(min(abs(circle - bar) for bar in bars) < 1 for circle in circles), "a predicted peak lies on its bar"
    assert (seen["areas"], seen["bars"], seen["rounds"]) == (7, 5, 15)
    assert seen["groups"] == seen["chosen"]


def test_filters_leave_their_rows_and_points_also_out_of_an_address(page: Path) -> None:
    shown = """
    const textsOf = (row) => [...row.cells].map((cell) => cell.textContent);
    const cellsOf = (id) => [...new Set(rowsOf(by(id)).flatMap(textsOf))];
    const submitted = new Event('submit', { cancelable: true });
    by('filters').dispatchEvent(submitted);
    const names = () => by('plot-run2-context-forward').data.map((trace) => trace.name);
    const before = cellsOf('table-run2-models');
    choose(document.querySelector('select[data-filter=size]'), 'medium');
    return [before, cellsOf('table-run2-models'), names(), submitted.defaultPrevented, by('shown').textContent];"""
    before, after, names, stays, said = seen_by(page, shown, "#?precision=bf16")
    assert ("bf16" in before, "fp32" in before, "small" in before) == (True, False, True)
    assert ("medium" in after, "small" in after) == (True, False)
    assert {name.partition(",")[0] for name in names} == {"medium", "roofline of medium", "launch floor of medium"}
    assert stays, "Enter in the search opens no other page"
    assert said.endswith("rows fit")


def test_a_table_is_searched_sorted_and_saved_as_it_is_shown_and_a_figure_saved_with_its_labels(page: Path) -> None:
    """What has no value comes last either way, and a CSV holds no formula."""
    figure, counts, up, down, direction, lines, last, formula = seen_by(page, """
    document.querySelector('button[data-figure=run2-context-forward]').click();
    const figure = saved, table = by('table-run2-models');
    const first = rowsOf(table).length;
    table.querySelector('button.more').click();
    const counts = [first, rowsOf(table).length, table.querySelectorAll('tbody tr').length];
    by('search').value = 'medium backward';
    by('search').dispatchEvent(new Event('input'));
    await later(1000);
    const place = headOf(table, 'median (ms)'), head = table.querySelectorAll('th')[place];
    const medians = () => rowsOf(table).map((row) => Number(row.cells[place].textContent));
    const sort = () => head.querySelector('button').click();
    sort();
    const up = medians();
    sort();
    const down = medians();
    table.querySelector('button.csv').click();
    const lines = saved.trim().split('\\n').length, [row] = rowsOf(table);
    row.cells[0].textContent = '=1+1, "x"';
    row.cells[place].textContent = '-';
    const last = () => { sort(); return rowsOf(table).pop().cells[place].textContent; };
    const lasts = [last(), last()];
    table.querySelector('button.csv').click();
    return [figure, counts, up, down, head.getAttribute('aria-sort'), lines, lasts, saved.trim().split('\\n').pop()];
    """)  # fmt: skip
    header, *rows = figure.splitlines()
    assert header.startswith("series,tokens in a sequence,median of the rounds (ms),low,high,what,size,context,d,")
    assert any(row.startswith('"small, fp32 naive",128,') and ",small,128,,,forward,fp32,naive," in row for row in rows)
    assert counts[0] < counts[1] == counts[2], "a long table shows its first rows until a reader asks for all"
    assert up == sorted(up) == down[::-1]
    assert len(up) == lines - 1 == 4, "two contexts in two precisions"
    assert (direction, last) == ("descending", ["-", "-"])
    assert formula.startswith('"\'=1+1, ""x""",')


@pytest.mark.parametrize("scheme, background", [(LIGHT, "rgb(255, 255, 255)"), (DARK, "rgb(20, 24, 29)")])
def test_the_page_takes_the_theme_of_its_reader(scheme: int, background: str, page: Path) -> None:
    assert seen_by(page, "return getComputedStyle(document.body).backgroundColor;", scheme=scheme) == background


def test_no_column_is_hidden_and_nothing_is_wider_than_a_telephone(page: Path) -> None:
    """The page is in a frame, because a window of Chromium is at least 500 pixels wide."""
    narrow, inner = page.with_name("narrow.html"), html.escape(page.read_text())
    narrow.write_text(f'<title></title><iframe style="width:390px;height:2000px" srcdoc="{inner}"></iframe></body>')
    view, *found = seen_by(narrow, """
    const inside = document.querySelector('iframe').contentDocument, view = inside.documentElement.clientWidth;
    const isShown = (one) => one.getClientRects().length && !one.closest('[hidden], svg');
    const over = [...inside.querySelectorAll('main *')].filter(isShown)
      .filter((one) => one.getBoundingClientRect().right > view + 1).map((one) => one.tagName + '.' + one.className);
    const cells = [...inside.querySelectorAll('tbody tr:not([hidden]) td')].filter((one) => one.textContent);
    const lost = cells.filter((one) => !one.getClientRects().length).length;
    const linesOf = (one) => {
      const words = inside.createRange();
      words.selectNodeContents(one);
      return words.getClientRects().length;
    };
    const phases = cells.filter((one) => one.textContent === 'forward_backward').map(linesOf);
    return [view, over.slice(0, 5), cells.length > 500, lost, [...new Set(phases)]];""")  # fmt: skip
    assert found == [[], True, 0, [1]], view
    assert view <= 390


def test_a_reader_chooses_two_commits_and_the_case_to_draw_over_them(page: Path) -> None:
    first, (none, said), again, linked, picked, places = seen_by(page, """
    const section = by('changed1'), base = section.querySelector('[data-side=base]');
    const count = () => section.querySelectorAll('tbody tr').length, first = count();
    choose(base, base.options[0].value);
    const equal = [count(), section.querySelector('.said').textContent];
    choose(base, base.options[1].value);
    const link = section.querySelector('tbody tr:not([hidden]) a');
    location.hash = link.hash;
    await later(3000);
    const drawn = by('plot-since1'), picked = drawn.previousElementSibling.selectedOptions[0].textContent;
    return [first, equal, count(), link.textContent, picked, drawn.data[0].x];""")  # fmt: skip
    assert first == again > 10
    assert (none, said) == (0, "Choose a base that is older than the head.")
    assert linked == picked
    assert places == [0, 1]


def test_a_commits_point_has_its_interval_and_its_name_as_text(tmp_path: Path) -> None:
    launches = [
        launch(7 * commit + turn, 1 + commit + 0.01 * turn, name)
        for commit, name in enumerate(("<b>000000000", name_of(1)))
        for turn in range(7)
    ]
    texts, milliseconds, ends, csv = seen_by(page_of(tmp_path, *launches), """
    const { hovertext: text, y, error_y } = by('plot-since1').data[0];
    document.querySelector('button[data-figure=since1]').click();
    return [text, y, [...error_y.array, ...error_y.arrayminus], saved];""")  # fmt: skip
    header, first, _ = csv.splitlines()
    assert header == "case,commit,date,subject,launches,median of launches (ms),low,high"
    assert first.startswith("forward tiny-ctx8-fp32-naive,<b>000000000,2030-01-01,,7,1030,")
    assert texts[0].startswith("&lt;b&gt;000")
    assert milliseconds == pytest.approx([1030, 2030])
    assert all(0 < length < 31 for length in ends)


def test_between_any_two_commits_stand_their_medians_and_the_steps_between(tmp_path: Path) -> None:
    """One case steps at commit 14, one never does, and one is of the first of 24 commits alone."""
    records = with_step(0.2)
    for data in records:
        data["benchmarks"].append(timed(FULL_STEP, phase="full_step"))
    records[0]["benchmarks"].append(timed(BACKWARD, phase="backward"))
    (across, still), after, (gone, *unmoved) = seen_by(page_of(tmp_path, *records), """
    const section = by('changed1');
    const rows = (base, head) => {
      choose(section.querySelector('[data-side=base]'), base);
      choose(section.querySelector('[data-side=head]'), head);
      return [...section.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
    };
    return [rows(10, 20), rows(14, 20), rows(0, 5)];""")  # fmt: skip
    assert (across[0], still[0]) == ("forward tiny-ctx8-fp32-naive", "full_step tiny-ctx8-fp32-naive")
    assert f"since {name_of(START)[:12]} (2030-01-01)" in across[-1]
    ratio = records[20]["benchmarks"][0]["stats"]["median"] / records[10]["benchmarks"][0]["stats"]["median"]
    assert across[4] == f"{ratio:.3f}"
    assert {row[-1] for row in (still, *after, *unmoved)} == {""}
    assert (gone[0], gone[3:]) == ("backward tiny-ctx8-fp32-naive", ["", "", ""])


@pytest.fixture(scope="module")
def twenty_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One case over twenty commits, with a step."""
    return page_of(tmp_path_factory.mktemp("twenty"), *with_step(0.2, 20))


AXE = find_spec("axe_playwright_python")


@pytest.mark.skipif(AXE is None, reason="no axe-core: pip install --no-deps axe-playwright-python")
@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("of", ["page", "twenty_commits"])
def test_axe_finds_nothing_serious(of: str, scheme: int, request: pytest.FixtureRequest) -> None:
    page: Path = request.getfixturevalue(of)
    assert AXE is not None
    assert AXE.origin is not None
    axe = (Path(AXE.origin).parent / "axe.min.js").read_text().replace("</script", r"<\/script")
    passes, serious = seen_by(page, f"""{axe};
    const found = await axe.run(document);
    const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
    return [found.passes.length, serious.map((one) => [one.id, one.nodes[0].html])];""", scheme=scheme)  # fmt: skip
    assert passes > 10
    assert serious == []


def test_a_figure_over_commits_has_its_step_no_interval_of_five_launches_and_fits_paper(tmp_path: Path) -> None:
    eight_commits(tmp_path)
    storage, page = tmp_path / ".benchmarks", tmp_path / "page.html"
    assert main(["report", f"--storage={storage}", f"--output={page}"]) == 0
    names, bars, levels, share, said, printed = seen_by(page, """
        const plot = by('plot-worst-case'), [points, level] = plot.data;
        const steady = by('plot-since2').layout.yaxis.range;
        dispatchEvent(new Event('beforeprint'));
        await later(2000);
        const printed = [...document.querySelectorAll('.js-plotly-plot .main-svg')].map((svg) => svg.clientWidth);
        return [points.x.length, points.error_y || null, level.y.length, steady[1] / steady[0],
                [...points.text, plot.layout.yaxis.title.text.split('<br>')[1]], Math.max(...printed)];
    """)  # fmt: skip
    assert (names, bars, levels) == (8, None, 6), "two levels of two ends and a gap"
    assert share >= 1.1
    assert said == [*["launches: 5"] * 8, "(the axis starts above 0)"]
    assert printed <= 680
    named = [str(path) for path in sorted(storage.glob("epyc*/*"))[:25]]
    assert main(["report", *named, f"--output={page}"]) == 0
    assert seen_by(page, "return document.documentElement.scrollHeight;") < 15_000
