"""Every case of a run on a line: its figures and their spread, or why it has none."""

from collections.abc import Callable, Sequence

from perf_tests.audit.row_flags import FLAGS
from perf_tests.records.compare import median_interval
from perf_tests.records.record import OUTCOMES
from perf_tests.views.report.markup import csv_link, html_table, notes, text
from perf_tests.views.report.run import RecordedRun
from perf_tests.views.screens.lines import DASH, case_name
from perf_tests.views.tables.cells import Cell
from perf_tests.views.tables.conditions import machine_name, rounds_line
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.flat_figures import COLUMNS, as_csv, flat_rows
from perf_tests.views.tables.timing import (
    CONTEXT,
    HEAD_DIM,
    IMPLEMENTATION,
    PHASE,
    PRECISION,
    SEQUENCE,
    SIZE,
    SPREAD_NOTE,
    milliseconds,
)

INTERVAL_NOTE = "interval: 95 % confidence interval of the median within this launch, by order statistics"

Column = Callable[[Cell], str | None]
"""A figure of a timed case as text, None for an unknown one; a column without any is left out."""


def _interval(cell: Cell) -> str | None:
    found = median_interval(cell.rounds, 0.95)
    return None if found is None else f"{significant(found[0] * 1e3)} to {significant(found[1] * 1e3)}"


def _number(name: str, form: str) -> Column:
    return lambda cell: None if (value := cell.number(name)) is None else format(value, form)


LABELS = {False: (SIZE, CONTEXT, PHASE, PRECISION, IMPLEMENTATION),
          True: (HEAD_DIM, SEQUENCE, PHASE, PRECISION, IMPLEMENTATION)}  # fmt: skip
FIGURES: dict[str, Column] = {
    "median (ms)": lambda cell: significant(cell.median_seconds * 1e3),
    "95 % interval (ms)": _interval,
    "mean ± std (ms)": milliseconds,
    "rounds": lambda cell: str(len(cell.rounds)),
    "tokens/s": _number("tokens_per_second", ",.0f"),
    "TFLOP/s": lambda cell: None if (rate := cell.number("tflops_per_second")) is None else significant(rate, 3),
    "of matmul ceiling": _number("share_of_matmul_ceiling", ".0%"),
    "MFU": _number("mfu", ".1%"),
    "of roofline": _number("roofline_fraction", ".0%"),
    "bound by": lambda cell: str(cell.info.get("bound") or "") or None,
    "launches": _number("kernel_launches", ",.0f"),
    "flags": lambda cell: ", ".join(cell.flags) or None,
}


def timings(run: RecordedRun) -> str:
    """One table for models and one for attention alone, with the columns that the filters compare."""
    cells = run.cells
    parts = [_table([cell for cell in cells if cell.is_attention == alone], alone) for alone in (False, True)]
    sentences = [
        f"{name}: {flag.sentence}" for name, flag in FLAGS.items() if any(name in cell.flags for cell in cells)
    ]
    lines = [run.conditions, rounds_line(cells), SPREAD_NOTE, INTERVAL_NOTE, *sentences]
    return "".join(parts) + notes([line for line in lines if line]) + _links(run)


def _table(cells: Sequence[Cell], alone: bool) -> str:
    if not cells:
        return ""
    timed = [cell for cell in cells if cell.is_timed]
    figures = {name: of for name, of in FIGURES.items() if any(of(cell) is not None for cell in timed)}
    header = "".join(
        f'<th scope="col">{text(name)}</th>' for name in (*(label.name for label in LABELS[alone]), *figures)
    )
    body = "".join(_row(cell, alone, list(figures.values())) for cell in cells)
    caption = "Attention alone" if alone else "Language models"
    return html_table(caption, len(LABELS[alone]), header, body)


def _row(cell: Cell, alone: bool, figures: Sequence[Column]) -> str:
    start = f'<tr title="{text(case_name(cell.id))}">'
    start += "".join(f"<td>{text(label.of(cell))}" for label in LABELS[alone])
    if not cell.is_timed:
        said = f"<strong>{text(OUTCOMES[cell.outcome])}</strong>: {text(cell.reason)}"
        return f'{start}<td class="outcome" colspan="{max(len(figures), 1)}">{said}'
    return start + "".join(f"<td>{text(figure(cell) or DASH)}" for figure in figures)


def _links(run: RecordedRun) -> str:
    rows = flat_rows(run.cells, run.name, machine_name(run.record), run.passes)
    return "".join(csv_link(f"{run.name}-{kind}", as_csv(rows[kind], COLUMNS[kind])) for kind in COLUMNS if rows[kind])
