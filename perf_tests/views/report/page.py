"""The page: its sections in order, the figures' data, and Plotly."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from perf_tests.records.record import Json, without_nan
from perf_tests.views.report import compared_runs, memory, passes, ratios, scaling
from perf_tests.views.report.figure import Figure, plotly_of, tags_of, with_shared_looks
from perf_tests.views.report.markup import notes, paragraph, table, text
from perf_tests.views.report.run import MachineRuns, RecordedRun
from perf_tests.views.report.timings import timings
from perf_tests.views.tables import kernels as kernel_tables
from perf_tests.views.tables import timing as tables
from perf_tests.views.tables.cells import Cell, distinct, lost_lines, order
from perf_tests.views.tables.conditions import date_of
from perf_tests.views.tables.memory import MEMORY_TABLES
from perf_tests.views.tables.table import Table
from perf_tests.views.tables.warmup import WARMUP_TABLES

HERE = Path(__file__).parent
TAGS = ("size", "context", "precision", "phase")


class Page:
    """Collects the HTML of sections, links to them, and the data of the figures in them."""

    def __init__(self) -> None:
        self.links = self.body = ""
        self.figures: list[Json] = []

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
            f'<figure><h4>{text(figure.title)}</h4><div class="plot" id="plot-{name}" role="img" '
            f'aria-label="{text(figure.title)}"></div>'
            f"<figcaption>{notes([note for note in figure.notes if note])}"
            f'<button type="button" class="csv" data-figure="{name}" hidden>CSV</button></figcaption></figure>'
        )

    def drawn(self, figures: Sequence[Figure]) -> str:
        return f'<div class="figures">{"".join(map(self.figure, figures))}</div>' if figures else ""


def page_of(machines: Sequence[MachineRuns], shown: Sequence[RecordedRun], left_out: Sequence[str]) -> str:
    page = Page()
    page.add("runs", "What ran and where", _what_ran(machines, left_out))
    for run in shown:
        _add_run(page, run)
    for place, machine in enumerate(machines, 1):
        _add_history(page, machine, f"history{place}")
        found = compared_runs.verdict_table(machine)
        if found is not None:
            page.add(f"verdicts{place}", f"Verdicts: {machine.name}", table(found, f"verdicts{place}"))
    _add_pairs(page, machines, shown)
    return _document(page, _filters(shown))


def _plotly() -> str:
    """The smallest of Plotly's published bundles that draws every figure: it knows scatter, bar and pie."""
    return (HERE / "plotly" / "plotly-basic.min.js").read_text(encoding="utf-8")


def _what_ran(machines: Sequence[MachineRuns], left_out: Sequence[str]) -> str:
    runs = sorted((run for machine in machines for run in machine.runs), key=lambda run: run.number)
    of = {id(run): place for place, machine in enumerate(machines, 1) for run in machine.runs}
    rows = tuple(
        (f"{run.number}", run.name, f"{of[id(run)]}", date_of(run.record), run.commit, f"{run.timed}", f"{run.untimed}",
         f"{run.flags}")
        for run in runs
    )  # fmt: skip
    header = ("Run", "Record", "Machine", "Written", "Commit", "measured", "without timing", "flags")
    lines = [f"machine {place}: {machine.newest.conditions}" for place, machine in enumerate(machines, 1)]
    if len(machines) > 1:
        lines.append(
            f"{len(machines)} machines, builds or settings are shown separately: their times are not comparable"
        )
    content = table(Table("runs", "Recorded runs", header, 5, rows, tuple(lines)), "runs")
    return content + "".join(paragraph(f"Left out: {sentence}", "warning") for sentence in left_out)


def _add_run(page: Page, run: RecordedRun) -> None:
    start = f"run{run.number}"
    page.add(start, f"Run {run.number}: {run.name}", paragraph(f"{run.conditions}; {date_of(run.record)}"))
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
        ("roofline", "Roofline", scaling.roofline(run), ""),
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


TableOf = Callable[[Sequence[Cell]], Table | None]


def _of_pass(builders: Sequence[TableOf], run: RecordedRun, name: str) -> str:
    return _tables(run, run.passed(name), builders)


def _of_cells(run: RecordedRun, *builders: TableOf) -> str:
    """Without the reasons for cases without a timing, which the run's first table has."""
    return _tables(run, run.cells, builders, lost_lines(run.cells))


def _tables(run: RecordedRun, cells: Sequence[Cell], builders: Sequence[TableOf], said: Sequence[str] = ()) -> str:
    """The tables with the run's machine below them, without the notes in `said`."""
    built = [one for build in builders if (one := build(cells)) is not None]
    notes_of = {one.name: [*(note for note in one.notes if note not in said), run.conditions] for one in built}
    return "".join(table(replace(one, notes=tuple(notes_of[one.name])), f"run{run.number}-{one.name}") for one in built)


def _add_history(page: Page, machine: MachineRuns, anchor: str) -> None:
    found = compared_runs.histories(machine) if len(machine.runs) > 1 else []
    if found:
        drawn = page.drawn([compared_runs.history_figure(found, machine, anchor)])
        folded = table(compared_runs.history_table(found, machine), anchor)
        page.add(anchor, f"History: {machine.name}", drawn + folded)


def _add_pairs(page: Page, machines: Sequence[MachineRuns], shown: Sequence[RecordedRun]) -> None:
    """Successive runs of one machine, and the newest of each two machines."""
    pairs = [(before, now, True) for machine in machines for before, now in pairwise(machine.runs)]
    newest = [machine.newest for machine in machines]
    pairs += [(before, now, False) for before, now in pairwise(newest) if before in shown and now in shown]
    for before, now, is_one_machine in pairs:
        rows = compared_runs.rows_of(before, now, is_one_machine)
        figure = compared_runs.side_by_side_figure(rows, before, now, is_one_machine)
        if figure is None:
            continue
        content = page.drawn([figure])
        content += table(compared_runs.side_by_side_table(rows, before, now, is_one_machine), figure.name)
        page.add(figure.name, f"Side by side: run {before.number} and run {now.number}", content)


def _filters(shown: Sequence[RecordedRun]) -> str:
    """A choice for each label with more than one value; hidden until page.js runs."""
    cells = [cell for run in shown for cell in run.cells]
    choices = []
    for place, name in enumerate(TAGS):
        values = distinct(tags_of(cell)[place] for cell in cells if tags_of(cell)[place])
        if name == "context":
            values.sort(key=lambda value: order(int(value) if value.isdigit() else value))
        if len(values) > 1:
            options = "".join(f'<option value="{text(value)}">{text(value)}</option>' for value in values)
            choices.append(
                f'<label>{name} <select data-filter="{name}"><option value="">all</option>{options}</select></label>'
            )
    return f'<form id="filters" hidden>{"".join(choices)}</form>' if choices else ""


def _document(page: Page, filters: str) -> str:
    title = "Recorded runs"
    drawing = f"<script>{_plotly()}</script>" if page.figures else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data: blob:\">"
        f"<title>{title}</title><style>{(HERE / 'page.css').read_text()}</style>"
        "<noscript><style>.figures { display: none; }</style></noscript></head><body>"
        f"<header><h1>{title}</h1><nav>{page.links}</nav>{filters}</header><main>{page.body}</main>"
        f'<script type="application/json" id="figures">{embedded(with_shared_looks(page.figures))}</script>{drawing}'
        f"<script>{(HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def embedded(data: object) -> str:
    """JSON for a script element, which no text in it can end."""
    encoded = json.dumps(without_nan(data), separators=(",", ":"), allow_nan=False)
    return encoded.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
