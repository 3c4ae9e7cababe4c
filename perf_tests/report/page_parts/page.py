"""The page: its sections in order, the figures' data, and Plotly."""

import json
import lzma
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from perf_tests.history.series import Era
from perf_tests.records.columns import Cell, case_name, date_of, lost_lines, machine_line, machine_name
from perf_tests.records.format import Table
from perf_tests.records.record import Json, how_many, without_nan
from perf_tests.report import tables
from perf_tests.report import tables as kernel_tables
from perf_tests.report.page_parts import limits, machines, memory, passes, ratios, scaling
from perf_tests.report.page_parts.axes import Tags, filter_form, shared_tags, tags_of
from perf_tests.report.page_parts.changed import changed_section
from perf_tests.report.page_parts.commits import pairs_of
from perf_tests.report.page_parts.figure import Figure, plotly_of, with_shared_looks
from perf_tests.report.page_parts.first_screen import first_screen
from perf_tests.report.page_parts.markup import STYLE, notes, paragraph, table, text
from perf_tests.report.page_parts.run import Numbers, RecordedRun
from perf_tests.report.page_parts.since import era_data, since_section, tags_of_series
from perf_tests.report.page_parts.timings import timings
from perf_tests.report.tables import MEMORY_TABLES, WARMUP_TABLES

HERE = Path(__file__).parent
PROGRAMS = ("text", "filters", "tables", "ticks", "figures", "commits", "start")
"""In `js/`, in the order in which the page runs them."""


class Page:
    """Collects the HTML of sections, links to them, and the data of the figures in them."""

    def __init__(self) -> None:
        self.links = self.body = ""
        self.figures: list[Json] = []
        self.eras: list[Json] = []
        self.cases: dict[str, Tags] = {}

    def add(self, anchor: str, title: str, content: str, level: int = 2) -> None:
        """A heading and its content; a subsection without content is left out."""
        if level == 2:
            self.links += f'<a href="#{text(anchor)}">{text(title)}</a>'
        if level == 2 or content:
            self.body += f'<section id="{text(anchor)}"><h{level}>{text(title)}</h{level}>{content}</section>'

    def figure(self, figure: Figure) -> str:
        self.figures.append(plotly_of(figure))
        name = text(figure.name)
        return (
            f'<figure><p class="title">{text(figure.title)}</p><div class="plot" id="plot-{name}" role="group" '
            f'aria-label="{text(figure.title)}"></div>'
            f"<figcaption>{notes([note for note in figure.notes if note])}"
            f'<button type="button" class="csv" data-figure="{name}" hidden>CSV</button></figcaption></figure>'
        )

    def drawn(self, figures: Sequence[Figure]) -> str:
        return f'<div class="figures">{"".join(map(self.figure, figures))}</div>' if figures else ""

    def know(self, run: RecordedRun) -> None:
        self.cases |= {case_name(cell.id): tags_of(cell) for cell in run.cells}


def page_of(eras: Sequence[Era], numbers: Numbers, shown: Sequence[RecordedRun], left_out: Sequence[str]) -> str:
    """`eras` newest first; `shown` are the runs in full, the newest of the first era among them."""
    page, unreadable = Page(), [*left_out]
    for run in shown:
        page.know(run)
    _add_changes(page, eras, shown, unreadable)
    for run in reversed(shown):
        _add_limits(page, run)
    for place, era in enumerate(eras, 1):
        if len(era.timed_places) > 1:
            page.add(f"since{place}", f"Since when: {_era_name(era, eras)}", since_section(era, f"since{place}"))
    for run in reversed(shown):
        _add_run(page, run)
    _add_machines(page, shown)
    page.add("runs", "What ran and where", _what_ran(eras, numbers, unreadable))
    return _document(page, filter_form(cell for run in shown for cell in run.cells))


def _add_changes(page: Page, eras: Sequence[Era], shown: Sequence[RecordedRun], unreadable: list[str]) -> None:
    """The first screen, of the machine that ran last, then two commits of each machine against each other."""
    for place, era in enumerate(eras, 1):
        since = f"since{place}"
        pairs = pairs_of(era, unreadable)
        page.cases |= {case_name(one.case): tags_of_series(one) for one in era.series}
        if place == 1:
            first = pairs[0] if pairs else None
            content = first_screen(era, since, first, newest_of(era, shown), len(eras) - 1)
            page.add("answer", "Is anything slower?", content)
        if pairs:
            title = f"What changed: {_era_name(era, eras)}"
            page.add(f"changed{place}", title, changed_section(era, since, f"changed{place}-cases", pairs[0]))
            page.eras.append(era_data(era, since, pairs))


def newest_of(era: Era, shown: Sequence[RecordedRun]) -> RecordedRun:
    """The era's newest run among those in full, one with cases where there is any."""
    names = {launch.name for code in era.codes for launch in code.launches}
    runs = [run for run in shown if run.name in names] or shown[:1]
    return next((run for run in reversed(runs) if run.cells), runs[-1])


def _era_name(era: Era, eras: Sequence[Era]) -> str:
    """Its machine, with what else tells it apart from another of that name."""
    name = machine_name(era.machine.record)
    if sum(machine_name(other.machine.record) == name for other in eras) == 1:
        return name
    sentinel = "" if era.has_sentinel else ", before a product was timed beside the cases"
    return f"{machine_line(era.machine.record)}{sentinel}"


def _add_limits(page: Page, run: RecordedRun) -> None:
    content = limits.limit_tables(run)
    figures = limits.roofline(run)
    if content or figures:
        title = f"How close to the limits: run {run.number}"
        page.add(f"run{run.number}-roofline", title, page.drawn(figures) + content)


def _plotly() -> str:
    """The smallest of Plotly's published bundles that draws every figure: it knows scatter, bar and pie."""
    return lzma.decompress((HERE / "plotly" / "plotly-basic.min.js.xz").read_bytes()).decode()


def _what_ran(eras: Sequence[Era], numbers: Numbers, left_out: Sequence[str]) -> str:
    found = [(place, code) for place, era in enumerate(eras, 1) for code in era.codes]
    launches = [(numbers[launch.path], place, code, launch) for place, code in found for launch in code.launches]
    rows = tuple(
        (f"{number}", launch.name, f"{place}", launch.written[:16].replace("T", " "), code.name,
         f"{len(launch.figures)}", f"{len(launch.outcomes)}", code.subject)
        for number, place, code, launch in sorted(launches, key=lambda row: row[0])
    )  # fmt: skip
    header = ("Run", "Record", "Machine", "Written", "Commit", "measured", "without timing", "subject")
    lines = [f"machine {place}: {machine_line(era.machine.record)}" for place, era in enumerate(eras, 1)]
    if len(eras) > 1:
        lines.append(f"{len(eras)} machines, builds or settings are shown separately: their times are not comparable")
    content = table(Table("runs", "Recorded runs", header, 5, rows, tuple(lines)), "runs")
    return content + "".join(paragraph(f"Left out: {sentence}", "warning") for sentence in left_out)


def _add_run(page: Page, run: RecordedRun) -> None:
    start = f"run{run.number}"
    said = paragraph(f"{run.conditions}; {date_of(run.record)}") + _collectives_left_out(run)
    page.add(start, f"Run {run.number}: {run.name}", said)
    for anchor, title, figures, text_below in (
        ("timings", "Timings", [], timings(run) if run.cells else ""),
        ("by-size", "By size and context", [], _of_cells(run, tables.timing_table)),
        ("context", "Scaling over context", scaling.context_scaling(run), ""),
        ("size", "Scaling over size", scaling.size_scaling(run), ""),
        ("precision", "Precision", ratios.speed_up(run), _of_cells(run, tables.precision_table)),
        (
            "passes", "Backward over forward", ratios.backward_over_forward(run),
            _of_cells(run, ratios.passes_table),
        ),
        (
            "memory", "Memory", [*memory.peaks(run), *memory.memory_categories(run), *memory.timelines(run)],
            _of_cells(run, tables.memory_table) + _of_pass(MEMORY_TABLES, run, "memory"),
        ),
        (
            "attention", "Attention alone", [*scaling.attention_time(run), *scaling.attention_memory(run)],
            _of_cells(run, tables.attention_table, tables.attention_memory_table),
        ),
        (
            "kernels", "Where the device time goes", passes.kernel_shares(run),
            _of_pass((kernel_tables.share_table, kernel_tables.kernel_table), run, "kernels"),
        ),
        (
            "kernels-layer", "One attention layer", [*passes.attention_lanes(run), *passes.attention_layer(run)],
            _of_pass((kernel_tables.attention_part_table,), run, "kernels"),
        ),
        (
            "warmup", "Warm-up", [*passes.warmup_series(run), *passes.first_rounds(run)],
            _of_pass(WARMUP_TABLES, run, "warmup"),
        ),
    ):  # fmt: skip
        page.add(f"{start}-{anchor}", title, page.drawn(figures) + text_below, level=3)


def _collectives_left_out(run: RecordedRun) -> str:
    if not run.collectives:
        return ""
    rows = how_many(run.collectives, "measurement")
    said = f"{rows} of collectives alone, of data between ranks without a model"
    return paragraph(f"Not shown here: {said}. Read them with `python -m perf_tests scaling RECORD`.", "note")


TableOf = Callable[[Sequence[Cell]], Table | None]


def _of_pass(builders: Sequence[TableOf], run: RecordedRun, name: str) -> str:
    return _tables(run, run.passed(name), builders)


def _of_cells(run: RecordedRun, *builders: TableOf) -> str:
    """Without the reasons for cases without a timing, which the run's first table has."""
    return _tables(run, run.cells, builders, frozenset(lost_lines(run.cells)))  # of which there may be thousands


def _tables(run: RecordedRun, cells: Sequence[Cell], builders: Sequence[TableOf], said: Set[str] = frozenset()) -> str:
    """The tables with the run's machine below them, without the notes in `said`."""
    built = [one for build in builders if (one := build(cells)) is not None]
    notes_of = {one.name: [*(note for note in one.notes if note not in said), run.conditions] for one in built}
    return "".join(table(replace(one, notes=tuple(notes_of[one.name])), f"run{run.number}-{one.name}") for one in built)


def _add_machines(page: Page, shown: Sequence[RecordedRun]) -> None:
    """The newest run of each machine beside that of the next one."""
    newest = {run.conditions: run for run in shown}
    for before, now in pairwise(newest.values()):
        rows = machines.rows_of(before, now)
        figure = machines.side_by_side_figure(rows, before, now)
        if figure is not None:
            beside = table(machines.side_by_side_table(rows, before, now), figure.name)
            page.add(
                figure.name, f"Side by side: run {before.number} and run {now.number}", page.drawn([figure]) + beside
            )


def _document(page: Page, filters: str) -> str:
    title = "Recorded runs"
    drawing = f"<script>{_plotly()}</script>" if page.figures or page.eras else ""
    programs = "".join((HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in PROGRAMS)
    first, rest = page.body.split("</section>", 1)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data: blob:\">"
        f"<title>{title}</title><style>{STYLE.read_text(encoding='utf-8')}</style>"
        "<noscript><style>.figures { display: none; }</style></noscript></head><body>"
        f'<header><h1>{title}</h1></header><main>{first}</section><nav aria-label="Sections">{page.links}</nav>'
        f'{filters}{rest}</main><script type="application/json" id="data">{embedded(_data(page))}</script>{drawing}'
        f"<script>(() => {{{programs}}})();</script></body></html>\n"
    )


def _data(page: Page) -> Json:
    looks, figures = with_shared_looks(page.figures)
    return {"looks": looks, **shared_tags(figures, page.cases.items()), "eras": page.eras}


def embedded(data: object) -> str:
    """JSON for a script element, which no text in it can end."""
    encoded = json.dumps(without_nan(data), separators=(",", ":"), allow_nan=False)
    return encoded.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
