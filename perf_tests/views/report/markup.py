"""HTML from plain data. Every text is escaped here, once."""

import base64
import html
from collections.abc import Sequence

from perf_tests.views.screens.lines import printable
from perf_tests.views.tables.flat_figures import as_csv
from perf_tests.views.tables.table import Table

WORDS = "reading"
"""The column that holds sentences."""


def text(value: object) -> str:
    """Escaped for an element or a quoted attribute, control characters and lone surrogates as spaces."""
    return html.escape(printable(value), quote=True)


def paragraph(content: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(content)}</p>"


def notes(lines: Sequence[str]) -> str:
    return "".join(paragraph(line, "note") for line in lines)


def table(shown: Table, csv_name: str) -> str:
    """A table with its title, its conditions and a link that holds its rows as CSV."""
    kinds = [_class("words" if name == WORDS else "") for name in shown.header]
    header = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for kind, name in zip(kinds, shown.header, strict=True))
    # HTML lets the ends of cells and rows be left out; in a page of tables they are a tenth of it.
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text(value)}" for kind, value in zip(kinds, row, strict=True))
        for row in shown.rows
    )
    rows = [dict(zip(shown.header, row, strict=True)) for row in shown.rows]
    shown_table = html_table(shown.title, shown.label_columns, header, body)
    return f"{shown_table}{notes(shown.notes)}{csv_link(csv_name, as_csv(rows, shown.header))}"


def html_table(caption: str, label_columns: int, header: str, body: str) -> str:
    """The first `label_columns` are text, the others figures; `header` and `body` are HTML."""
    return (
        f'<div class="scroll"><table class="labels{label_columns}"><caption>{text(caption)}</caption>'
        f"<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def csv_link(name: str, content: str) -> str:
    """A link that contains its file, so it works without a server."""
    encoded = base64.b64encode(content.encode()).decode()
    return (
        f'<p class="note"><a download="{text(name)}.csv" href="data:text/csv;base64,{encoded}">{text(name)}.csv</a></p>'
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
