"""The write-up as one HTML file that opens from disk: the report page's style, tables and escaping, and no script."""

from collections.abc import Sequence
from itertools import groupby

from perf_tests.records.format import Table
from perf_tests.report.blocks import Rows
from perf_tests.report.cs336_parts.page import TITLE, UNKNOWN, Entry, entries, introduction, where
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.page import macros, style

OWN_STYLE = """
.command { margin: 4px 0; padding: 6px 10px; background: var(--panel); border-radius: 4px; overflow-wrap: anywhere; }
.command span { white-space: nowrap; }
.unknown { color: var(--faint); }
.scroll { max-height: none; }
th { min-width: 6.5rem; }
details { margin: 12px 0; }
li { margin: 2px 0; }
"""


def html_page(sources: Sources) -> str:
    found = entries(sources)
    sections = {title: list(of) for title, of in groupby(found, lambda entry: entry.section)}
    links = "".join(f'<a href="#{_anchor(title)}">{text(title)}</a>' for title in sections)
    body = "".join(map(paragraph, introduction(found))) + table(where(sources), "where")
    for title, of in sections.items():
        anchors = [f"{_anchor(title)}-{number}" for number in range(1, len(of) + 1)]
        listed = "".join(
            f'<li><a href="#{anchor}">{text(entry.question.asked)}</a></li>'
            for anchor, entry in zip(anchors, of, strict=True)
        )
        body += f'<section id="{_anchor(title)}"><h2>{text(title)}</h2><details><summary>{len(of)} questions</summary>'
        body += f"<ul>{listed}</ul></details>{''.join(map(_entry, of, anchors))}</section>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{TITLE}</title><style>{style()}{OWN_STYLE}</style></head><body>"
        f"<header><h1>{TITLE}</h1><nav>{links}</nav></header><main>{body}</main></body></html>\n"
    )


def _entry(entry: Entry, anchor: str) -> str:
    shown = table(entry.table, anchor) if entry.table else paragraph(UNKNOWN, "unknown")
    asked = text(entry.question.asked)
    command = " ".join(f"<span>{text(word)}</span>" for word in entry.question.command.split())
    return (
        f'<section id="{anchor}"><h3>{asked}</h3><p class="command"><code>{command}</code></p>{shown}'
        f"{''.join(map(paragraph, entry.sentences))}{notes(entry.origin)}</section>"
    )


def _anchor(title: str) -> str:
    """The name of a section in links and in the names of its CSV files."""
    return title.lower().replace(" ", "-")


def table(shown: Table, name: str) -> str:
    return str(macros().table(Rows.of(shown, name)))


def paragraph(content: str, kind: str = "") -> str:
    return str(macros().paragraph(content, kind))


def notes(lines: Sequence[str]) -> str:
    return "".join(paragraph(line, "note") for line in lines)


def text(content: str) -> str:
    return str(macros().cell(content))
