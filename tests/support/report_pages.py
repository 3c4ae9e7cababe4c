"""Pages over records made up for a test, and what a reader finds on them."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from tests.support.synthetic import record, write_record

HOSTILE = "<!-- ]]></script><script>pwned()</script><img src=x onerror=pwned()> \" ' & %{x} é \u202e \ud800"


class Reader(HTMLParser):
    """What a browser would make of the page: elements with their attributes, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.text).append(data)

    def having(self, attribute: str) -> Iterator[dict[str, str | None]]:
        return (attributes for _, attributes in self.elements if attribute in attributes)


def store(storage: Path, *records: Json | str) -> Path:
    for number, data in enumerate(records, 1):
        write_record(storage / "machine" / f"{number:04}_run.json", data)
    return storage


def written(storage: Path, *words: str, code: int = 0) -> str:
    out = storage.parent / "page.html"
    assert main(["report", f"--storage={storage}", f"--output={out}", *words]) == code
    return out.read_text()


def page_over(tmp_path: Path, *records: Json | str, code: int = 0) -> str:
    return written(store(tmp_path / "records", *records), code=code)


def stored_in(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def figures(text: str) -> dict[str, Any]:
    stored = stored_in(text)
    for figure in stored["figures"]:
        for trace in figure["data"]:
            trace |= stored["looks"][trace.pop("look")]
            trace["tags"] = [stored["tags"][number] for number in trace["tags"]]
            if "x_from" in trace:
                first = trace.pop("x_from")
                trace["x"] = [first + place for place in range(len(trace["y"]))]
    return {figure["name"]: figure for figure in stored["figures"]}


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', text)


def of_commit(commit: str, **changes: Any) -> Json:
    return {**record(**changes), "commit_info": {"id": commit * 40, "dirty": False}}
