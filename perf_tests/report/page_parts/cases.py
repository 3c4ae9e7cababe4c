"""A table with a row for each case of a run: its labels, and its figures or why it has none."""

from collections.abc import Callable, Mapping, Sequence

from perf_tests.records.columns import Cell
from perf_tests.records.format import DASH
from perf_tests.records.record import OUTCOMES
from perf_tests.report.page_parts.markup import Html, Row, rows_table, text
from perf_tests.report.tables import CONTEXT, HEAD_DIM, IMPLEMENTATION, PHASE, PRECISION, SEQUENCE, SIZE, Label

Column = Callable[[Cell], str | None]
"""A figure of a timed case as text, None for an unknown one; a column without any is left out."""

LABELS = {False: (SIZE, CONTEXT, PHASE, PRECISION, IMPLEMENTATION),
          True: (HEAD_DIM, SEQUENCE, PHASE, PRECISION, IMPLEMENTATION)}  # fmt: skip
"""By whether a case is of attention alone."""


def number(name: str, form: str) -> Column:
    return lambda cell: None if (value := cell.number(name)) is None else format(value, form)


def case_rows(
    name: str, title: str, cells: Sequence[Cell], labels: Sequence[Label], columns: Mapping[str, Column],
    said: Sequence[str], anchors: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """`anchors` are those of the rows, by id of the case."""
    timed = [cell for cell in cells if cell.is_timed]
    figures = {name: of for name, of in columns.items() if any(of(cell) is not None for cell in timed)}
    rows = [_row(cell, labels, list(figures.values()), (anchors or {}).get(cell.id, "")) for cell in cells]
    header = [*(label.name for label in labels), *(figures or ("outcome",))]
    return rows_table(name, title, header, len(labels), rows, said)


def _row(cell: Cell, labels: Sequence[Label], figures: Sequence[Column], anchor: str) -> Row:
    names = [label.of(cell) for label in labels]
    if not cell.is_timed:
        return Row(names, anchor, Html(f"<strong>{text(OUTCOMES[cell.outcome])}</strong>: {text(cell.reason)}"))
    return Row([*names, *(figure(cell) or DASH for figure in figures)], anchor)
