"""The page in a real browser: figures drawn, filters and downloads at work, hostile names text, no error said."""

import html
import json
import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from tests.support.browser import DARK, LIGHT, chromium, opened, title
from tests.support.launches_over_commits import START, launch, name_of, with_step
from tests.support.synthetic import BACKWARD, FULL_STEP, timed, write_record
from tests.support.synthetic_grid import grid_record, with_every_pass

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"> <script>document.title='pwned'</script> &amp; <b>"


SAVING = """
let saved;
Blob = class extends Blob {
  constructor(parts, options) { super(parts, options); saved = parts.join(''); }
};
URL.createObjectURL = () => '#';"""
"""Keeps the text of a download; reading it back from its blob takes real time, which the browser does not wait for."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a small grid, one case of which has a name that would like to be more."""
    folder = tmp_path_factory.mktemp("page")
    for number in (1, 2):
        data = {**grid_record(number), "commit_info": {"id": f"{number}" * 40, "dirty": False}}
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
    if identity["phase"] == "forward_backward":  # the longest word in a narrow column
        return place == ("small", 128) and identity["precision"] == "fp32"
    return place in product(("small", "medium"), (128, 256)) and identity["phase"] in ("forward", "backward")


@pytest.fixture(scope="module")
def seen(page: Path) -> tuple[str, list[str]]:
    return opened(page, page.parent / "profile")


def shown_rows(dom: str, name: str) -> list[str]:
    """Ids of the rows of the newest run's timings that are shown and hold a cell with this text."""
    rows = re.findall(r'<tr id="(run2-c[0-9]+)"([^>]*)>(.*?)</tr>', dom)
    return [anchor for anchor, attributes, cells in rows if f">{name}</td>" in cells and "hidden" not in attributes]


def test_every_figure_is_drawn_and_nothing_said_on_the_console(seen: tuple[str, list[str]]) -> None:
    assert seen[1] == []
    places = re.findall(r'<div class="plot[^"]*" id="([^"]+)"', seen[0])
    assert len(places) > 10
    assert len(re.findall(r'<div class="plot[^"]* js-plotly-plot"', seen[0])) == len(places)
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
    assert shown_rows(dom, "bf16")
    assert not shown_rows(dom, "fp32")
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
    assert not shown_rows(dom, "small")
    assert shown_rows(dom, "medium")
    names = {name.partition(",")[0] for name in json.loads(title(dom))}
    assert names == {"medium", "roofline of medium", "launch floor of medium"}
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
      document.querySelector('button[data-figure=run2-context-forward]').click();
      document.title = saved;
    }, 3000);"""
    dom, _ = opened(page, page.parent / "profile", driver=SAVING + driver)
    header, *rows = title(dom).splitlines()
    assert header.startswith("series,tokens in a sequence,median of the rounds (ms),low,high,what,size,context,d,")
    assert any(row.startswith('"small, fp32 naive",128,') and ",small,128,,,forward,fp32,naive," in row for row in rows)


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


def test_a_table_is_searched_sorted_and_saved_as_it_is_shown(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const search = document.getElementById('search');
      search.value = 'medium backward';
      search.dispatchEvent(new Event('input'));
    }, 2000);
    setTimeout(() => {
      const table = document.getElementById('table-run2-models');
      const heads = [...table.querySelectorAll('th')];
      const place = heads.findIndex((head) => head.textContent === 'median (ms)');
      const medians = () => [...table.querySelectorAll('tbody tr')].filter((row) => !row.hidden)
        .map((row) => Number(row.cells[place].textContent));
      heads[place].querySelector('button').click();
      const up = medians();
      heads[place].querySelector('button').click();
      const said = [up, medians(), heads[place].getAttribute('aria-sort')];
      table.querySelector('button.csv').click();
      document.title = JSON.stringify([...said, saved.trim().split('\\n').length]);
    }, 4000);"""
    dom, console = opened(page, page.parent / "profile", driver=SAVING + driver)
    assert console == []
    up, down, direction, lines = json.loads(title(dom))
    assert up == sorted(up)
    assert down == up[::-1]
    assert direction == "descending"
    assert len(up) == lines - 1 == 4, "two contexts in two precisions"


def test_what_has_no_value_comes_last_either_way_and_a_csv_holds_no_formula(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const table = document.getElementById('table-run2-models');
      const heads = [...table.querySelectorAll('th')];
      const place = heads.findIndex((head) => head.textContent === 'median (ms)');
      const [row] = table.querySelectorAll('tbody tr');
      row.cells[0].textContent = '=1+1, "x"';
      row.cells[place].textContent = '-';
      const last = () => {
        heads[place].querySelector('button').click();
        return [...table.querySelectorAll('tbody tr')].pop().cells[place].textContent;
      };
      const said = [last(), last()];
      table.querySelector('button.csv').click();
      document.title = JSON.stringify([...said, saved.trim().split('\\n').pop()]);
    }, 3000);"""
    dom, console = opened(page, page.parent / "profile", driver=SAVING + driver)
    assert console == []
    up, down, line = json.loads(title(dom))
    assert (up, down) == ("-", "-")
    assert line.startswith('"\'=1+1, ""x""",')


def test_a_long_table_shows_its_first_rows_until_a_reader_asks_for_all(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const table = document.getElementById('table-run2-models');
      const shown = () => table.querySelectorAll('tbody tr:not([hidden])').length;
      const first = shown();
      table.querySelector('button.more').click();
      document.title = JSON.stringify([first, shown(), table.querySelectorAll('tbody tr').length]);
    }, 1000);"""
    first, shown, rows = json.loads(title(opened(page, page.parent / "profile", driver=driver)[0]))
    assert first < shown == rows


def test_enter_in_the_search_stays_on_the_page(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const asked = new Event('submit', { cancelable: true });
      document.getElementById('filters').dispatchEvent(asked);
      document.title = String(asked.defaultPrevented);
    }, 1000);"""
    assert title(opened(page, page.parent / "profile", driver=driver)[0]) == "true"


def test_a_commits_point_has_its_interval_and_its_name_as_text(tmp_path: Path) -> None:
    names = ("<b>000000000", name_of(1))
    for commit, name in enumerate(names):
        for turn in range(7):
            number = 7 * commit + turn
            data = launch(number, 1 + commit + 0.01 * turn, name)
            write_record(tmp_path / f"records/machine/{number:04}_run.json", data)
    assert main(["report", f"--storage={tmp_path / 'records'}", f"--output={tmp_path / 'page.html'}"]) == 0
    driver = """
    setTimeout(() => {
      const { text, y, error_y } = document.getElementById('plot-since1').data[0];
      document.querySelector('button[data-figure=since1]').click();
      document.title = JSON.stringify([text, y, error_y.array, error_y.arrayminus, saved]);
    }, 3000);"""
    dom, console = opened(tmp_path / "page.html", tmp_path / "profile", driver=SAVING + driver)
    assert console == []
    texts, milliseconds, above, below, csv = json.loads(title(dom))
    header, first, _ = csv.splitlines()
    assert header == "case,commit,date,subject,launches,median of launches (ms),low,high"
    assert first.startswith("forward tiny-ctx8-fp32-naive,<b>000000000,2030-01-01,,7,1030,")
    assert texts[0].startswith("&lt;b&gt;000")
    assert milliseconds == pytest.approx([1030, 2030])
    assert all(0 < length < 31 for length in (*above, *below))


def test_a_reader_chooses_two_commits_and_the_case_to_draw_over_them(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const section = document.getElementById('changed1');
      const first = section.querySelectorAll('tbody tr').length;
      const base = section.querySelector('[data-side=base]');
      base.value = base.options[0].value;
      base.dispatchEvent(new Event('change', { bubbles: true }));
      const equal = [section.querySelectorAll('tbody tr').length, section.querySelector('.said').textContent];
      base.value = base.options[1].value;
      base.dispatchEvent(new Event('change', { bubbles: true }));
      const link = section.querySelector('tbody tr:not([hidden]) a');
      location.hash = link.hash;
      setTimeout(() => {
        const drawn = document.getElementById('plot-since1');
        const picked = drawn.previousElementSibling.selectedOptions[0].textContent;
        const again = section.querySelectorAll('tbody tr').length;
        document.title = JSON.stringify([first, equal, again, link.textContent, picked, drawn.data[0].x]);
      }, 3000);
    }, 3000);"""
    dom, console = opened(page, page.parent / "profile", driver=driver)
    assert console == []
    first, (none, said), again, linked, picked, places = json.loads(title(dom))
    assert first == again > 10
    assert (none, said) == (0, "Choose a base that is older than the head.")
    assert linked == picked
    assert places == [0, 1]


def test_between_any_two_commits_stand_their_medians_and_the_steps_between(tmp_path: Path) -> None:
    """Of a case that steps at commit 14, of one that never does, and of one that only the first of 24 commits has."""
    records = with_step(0.2)
    for data in records:
        data["benchmarks"].append(timed(FULL_STEP, phase="full_step"))
    records[0]["benchmarks"].append(timed(BACKWARD, phase="backward"))
    for number, data in enumerate(records, 1):
        write_record(tmp_path / f"records/machine/{number:04}_run.json", data)
    assert main(["report", f"--storage={tmp_path / 'records'}", f"--output={tmp_path / 'page.html'}"]) == 0
    driver = """
    setTimeout(() => {
      const section = document.getElementById('changed1');
      const choose = (side, place) => {
        const select = section.querySelector(`[data-side=${side}]`);
        select.value = place;
        select.dispatchEvent(new Event('change', { bubbles: true }));
      };
      const rows = (base, head) => {
        choose('base', base);
        choose('head', head);
        return [...section.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
      };
      document.title = JSON.stringify([rows(10, 20), rows(14, 20), rows(0, 5)]);
    }, 3000);"""
    dom, console = opened(tmp_path / "page.html", tmp_path / "profile", driver=driver)
    assert console == []
    (across, still), after, (gone, *unmoved) = json.loads(title(dom))
    assert (across[0], still[0]) == ("forward tiny-ctx8-fp32-naive", "full_step tiny-ctx8-fp32-naive")
    assert f"since {name_of(START)[:12]} (2030-01-01)" in across[-1]
    ratio = records[20]["benchmarks"][0]["stats"]["median"] / records[10]["benchmarks"][0]["stats"]["median"]
    assert across[4] == f"{ratio:.3f}"
    assert {row[-1] for row in (still, *after, *unmoved)} == {""}
    assert (gone[0], gone[3:]) == ("backward tiny-ctx8-fp32-naive", ["", "", "", ""])


def test_no_column_is_hidden_and_nothing_is_wider_than_a_telephone(page: Path) -> None:
    """In a frame, because a window of Chromium is at least 500 pixels wide."""
    inner = html.escape(page.read_text())
    narrow = page.with_name("narrow.html")
    narrow.write_text(
        f'<title></title><body><iframe style="width:390px;height:2000px" srcdoc="{inner}"></iframe></body>'
    )
    driver = """
    setTimeout(() => {
      const inside = document.querySelector('iframe').contentDocument;
      const view = inside.documentElement.clientWidth;
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
      document.title = JSON.stringify([view, over.slice(0, 5), cells.length > 500, lost, [...new Set(phases)]]);
    }, 12000);"""
    dom, _ = opened(narrow, page.parent / "profile", driver=driver)
    view, *found = json.loads(title(dom))
    assert found == [[], True, 0, [1]], view
    assert view <= 390


def test_a_predicted_peak_is_a_circle_in_the_middle_of_its_bar(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const plot = document.getElementById('plot-run2-memory-categories');
      const middle = (one) => { const { left, right } = one.getBoundingClientRect(); return (left + right) / 2; };
      const middles = (marks) => [...plot.querySelectorAll(marks)].map(middle);
      document.title = JSON.stringify([middles('.scatterlayer .point'), middles('.barlayer .point path')]);
    }, 8000);"""
    circles, bars = json.loads(title(opened(page, page.parent / "profile", driver=driver)[0]))
    assert circles
    assert all(min(abs(circle - bar) for bar in bars) < 1 for circle in circles)


def test_a_logarithmic_axis_is_labelled_at_1_2_and_5(page: Path) -> None:
    driver = """
    setTimeout(() => {
      const { ticktext } = document.getElementById('plot-run2-context-forward').layout.yaxis;
      document.title = JSON.stringify(ticktext);
    }, 8000);"""
    labels = json.loads(title(opened(page, page.parent / "profile", driver=driver)[0]))
    assert len(labels) >= 3
    assert {label.strip("0.k")[:1] for label in labels} <= {"1", "2", "5"}


@pytest.fixture(scope="module")
def twenty_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One case over twenty commits, with a step."""
    folder = tmp_path_factory.mktemp("twenty")
    for number, data in enumerate(with_step(0.2, 20), 1):
        write_record(folder / f"records/machine/{number:04}_run.json", data)
    assert main(["report", f"--storage={folder / 'records'}", f"--output={folder / 'page.html'}"]) == 0
    return folder / "page.html"


AXE = find_spec("axe_playwright_python")


@pytest.mark.skipif(AXE is None, reason="no axe-core: pip install --no-deps axe-playwright-python")
@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("of", ["page", "twenty_commits"])
def test_axe_finds_nothing_serious(of: str, scheme: int, request: pytest.FixtureRequest) -> None:
    page: Path = request.getfixturevalue(of)
    assert AXE is not None
    assert AXE.origin is not None
    axe = (Path(AXE.origin).parent / "axe.min.js").read_text().replace("</script", r"<\/script")
    driver = f"""{axe};
    setTimeout(() => axe.run(document).then((found) => {{
      const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
      document.title = JSON.stringify([found.passes.length, serious.map((one) => [one.id, one.nodes[0].html])]);
    }}), 12000);"""
    passes, serious = json.loads(title(opened(page, page.parent / "profile", scheme=scheme, driver=driver)[0]))
    assert passes > 10
    assert serious == []
