"""HTML out of plain data. Every text is escaped here, once."""

import base64
import html
from collections.abc import Sequence

from perf_tests.views.screens.lines import printable
from perf_tests.views.tables.flat_figures import as_csv
from perf_tests.views.tables.table import Table

WORDS = "reading"
"""The column that holds sentences."""


def text(value: object) -> str:
    """Escaped for an element or a quoted attribute; control characters and lone surrogates become spaces."""
    return html.escape(printable(value), quote=True)


def paragraph(content: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(content)}</p>"


def notes(lines: Sequence[str]) -> str:
    """The conditions below a table or a figure."""
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
    return (
        f'<div class="scroll"><table class="labels{shown.label_columns}"><caption>{text(shown.title)}</caption>'
        f"<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{notes(shown.notes)}{csv_link(csv_name, as_csv(rows, shown.header))}"
    )


def csv_link(name: str, content: str) -> str:
    """A link that needs neither a server nor a program: the file is in it."""
    encoded = base64.b64encode(content.encode()).decode()
    return (
        f'<p class="note"><a download="{text(name)}.csv" href="data:text/csv;base64,{encoded}">{text(name)}.csv</a></p>'
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
