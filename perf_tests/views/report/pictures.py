"""What the README shows of a record: one figure drawn here, one part of the page taken by a browser.

The bytes of a browser's picture depend on the browser, so a note beside it holds the digests of what it was made from:
the record, the page, and the picture itself. Whoever changes one of them without the others is told.
"""

import hashlib
import json
import re
from pathlib import Path

from perf_tests.records.store import StoredRecord
from perf_tests.views.report import page
from perf_tests.views.report.attention import attention_time
from perf_tests.views.report.run import machines_of
from perf_tests.views.report.svg import svg_of

FIGURE, PICTURE, NOTE = "attention.svg", "page.png", "made-from.json"

SHOWN = "#run1, #run1-by-size, #run1-attention"
"""The sections of the page that are shown, below its head."""


def figure_of(record: StoredRecord) -> str:
    """Attention's forward pass over its length, as SVG. Raises ValueError where the record has none."""
    (machine,) = machines_of([record], keeps_all=True)
    found = attention_time(machine.newest)
    if not found:
        raise ValueError(f"{record.name} has no attention alone, of which the figure is.")
    return svg_of(found[0])


def shown_part(record: StoredRecord) -> str:
    """The page over one record with few of its sections, since a picture is no place to scroll."""
    machines = machines_of([record], keeps_all=True)
    text = page.page_of(machines, [machines[0].newest], [])
    hidden = f"<style>section:not({SHOWN}), .figures ~ * {{ display: none; }}</style>"
    return text.replace("</head>", f"{hidden}</head>", 1)


def note_of(record: StoredRecord, figure: str, shown: str, folder: Path) -> str:
    """What the two were made from, as JSON."""
    return json.dumps(digests(record, figure, shown, folder), indent=1) + "\n"


def digests(record: StoredRecord, figure: str, shown: str, folder: Path) -> dict[str, str]:
    """SHA-256 of each, of the page without the library that draws it: a new version of that is no new page."""
    own = re.sub(r"<script>/\*.*?</script>", "", shown, count=1, flags=re.DOTALL)
    return {
        "record": record.path.name,
        "record_sha256": _digest(record.path.read_bytes()),
        "page_sha256": _digest(own.encode()),
        "figure_sha256": _digest(figure.encode()),
        "picture_sha256": _digest((folder / PICTURE).read_bytes()),
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
