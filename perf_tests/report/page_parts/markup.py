"""HTML from plain data. Every text is escaped here, once; there is one table."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perf_tests.records.format import Table, printable

STYLE = Path(__file__).with_name("page.css")

WORDS = ("verdict", "flags", "trend", "bound by", "counter", "since", "date")
"""Columns that hold no figures."""
SENTENCES = ("reading", "why", "subject")


@dataclass(frozen=True)
class Html:
    """A cell that is HTML, of parts that this package escaped."""

    markup: str


@dataclass(frozen=True)
class Row:
    """`words` stand in place of the cells that are missing."""

    cells: Sequence[str | Html]
    anchor: str = ""
    words: Html | None = None


def text(value: object) -> str:
    """Escaped for an element or a quoted attribute, control characters and lone surrogates as spaces."""
    return html.escape(printable(value), quote=True)


def link(words: str, anchor: str) -> Html:
    return Html(f'<a href="#{text(anchor)}">{text(words)}</a>')


def paragraph(content: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(content)}</p>"


def notes(lines: Sequence[str]) -> str:
    return "".join(paragraph(line, "note") for line in lines)


def table(shown: Table, name: str) -> str:
    """A table of text with its title and its conditions."""
    return rows_table(
        name, shown.title, shown.header, shown.label_columns, [Row(row) for row in shown.rows], shown.notes
    )


def rows_table(
    name: str, title: str, header: Sequence[str], label_columns: int, rows: Sequence[Row], said: Sequence[str] = (),
    keeps_columns: bool = False,
) -> str:  # fmt: skip
    """The first `label_columns` are text, the others figures; one without any is left out unless it `keeps_columns`.

    The page's program adds sorting and the rows as CSV.
    """
    used = [place for place in range(len(header)) if keeps_columns or place < label_columns or _is_used(rows, place)]
    header = [header[place] for place in used]
    rows = [replace(row, cells=[row.cells[place] for place in used if place < len(row.cells)]) for row in rows]
    kinds = [_class(_kind(column, place < label_columns)) for place, column in enumerate(header)]
    heads = "".join(f'<th scope="col"{kind}>{text(column)}</th>' for kind, column in zip(kinds, header, strict=True))
    body = "".join(_row(row, kinds) for row in rows)
    caption = f"<caption>{text(title)}</caption>" if title else ""
    return (
        f'<div class="scroll" id="table-{text(name)}"><table class="labels{label_columns}">'
        f"{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{notes([line for line in said if line])}"
    )


def _kind(column: str, is_label: bool) -> str:
    """Figures end their column; sentences have a line of their own on a card."""
    return "w" if column in SENTENCES else "" if is_label or column in WORDS else "n"


def _is_used(rows: Sequence[Row], place: int) -> bool:
    """Whether any row has a text in this column; of a table without figures, every column."""
    full = [row for row in rows if row.words is None]
    return not full or any(row.cells[place] not in ("", Html("")) for row in full)


def _row(row: Row, kinds: Sequence[str]) -> str:
    """HTML lets the ends of cells and rows be left out; in a page of tables they are a tenth of it."""
    anchor = f' id="{text(row.anchor)}"' if row.anchor else ""
    cells = "".join(
        f"<td{kind}>{cell.markup if isinstance(cell, Html) else text(cell)}"
        for kind, cell in zip(kinds, row.cells, strict=False)
    )
    if row.words is None:
        return f"<tr{anchor}>{cells}"
    return f'<tr{anchor}>{cells}<td class="outcome" colspan="{len(kinds) - len(row.cells)}">{row.words.markup}'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
