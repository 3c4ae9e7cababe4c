"""HTML out of plain data. Every text is escaped here, once."""

import base64
import html
from collections.abc import Sequence

from perf_tests.views.tables.flat_figures import as_csv
from perf_tests.views.tables.timing import Table

WORDS = "reading"
"""The column that holds sentences."""


def text(value: object) -> str:
    """Escaped for an element or a quoted attribute; control characters and lone surrogates become spaces."""
    clean = "".join(character if character.isprintable() else " " for character in str(value))
    return html.escape(clean, quote=True)


def paragraph(content: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(content)}</p>"


def notes(lines: Sequence[str]) -> str:
    """The conditions below a table or a figure."""
    return "".join(paragraph(line, "note") for line in lines)


def table(shown: Table, csv_name: str) -> str:
    """A table with its title, its conditions and a link that holds its rows as CSV."""
    body = "".join(_row(shown, row) for row in shown.rows)
    return (
        f'<div class="scroll"><table class="labels{shown.label_columns}"><caption>{text(shown.title)}</caption>'
        f"<thead><tr>{_header(shown)}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{notes(shown.notes)}{csv_link(csv_name, _csv(shown))}"
    )


def _header(shown: Table) -> str:
    return "".join(
        f'<th scope="col"{_class(_kind(shown, place))}>{text(name)}</th>' for place, name in enumerate(shown.header)
    )


def _row(shown: Table, row: Sequence[str]) -> str:
    # HTML lets the ends of cells and rows be left out; in a page of tables they are a tenth of it.
    return "<tr>" + "".join(f"<td{_class(_kind(shown, place))}>{text(value)}" for place, value in enumerate(row))


def _kind(shown: Table, place: int) -> str:
    if shown.header[place] == WORDS:
        return "words"
    return ""


def _csv(shown: Table) -> str:
    rows = [dict(zip(shown.header, row, strict=True)) for row in shown.rows]
    return as_csv(rows, shown.header)


def csv_link(name: str, content: str) -> str:
    """A link that needs neither a server nor a program: the file is in it."""
    encoded = base64.b64encode(content.encode()).decode()
    return (
        f'<p class="note"><a download="{text(name)}.csv" href="data:text/csv;base64,{encoded}">{text(name)}.csv</a></p>'
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
