"""A table as data: a header, rows of text, and notes below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import LABELS, Cell, labels_of, lost_row

Columns = dict[str, Callable[[Json], str]]
"""Each column's heading, and what it shows of a row's values."""


@dataclass(frozen=True)
class Table:
    """The first `label_columns` say what a row is, the others hold figures."""

    name: str
    title: str
    header: tuple[str, ...]
    label_columns: int
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def pass_table(
    name: str, title: str, columns: Columns, rows: Sequence[tuple[Cell, Json]], notes: Sequence[str], words: int = 0
) -> Table | None:
    """Rows of an extra pass, each case's labels first; the first `words` columns are labels too. None without rows."""
    if not rows:
        return None
    header = (*LABELS, *columns)
    texts = tuple(
        lost_row(cell, len(header))
        if cell.outcome
        else (*labels_of(cell), *(text(values) for text in columns.values()))
        for cell, values in rows
    )
    return Table(name, title, header, len(LABELS) + words, texts, tuple(notes))
