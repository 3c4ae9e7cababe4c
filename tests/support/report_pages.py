"""Pages over records made up for a test, and what a reader finds on them."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.synthetic import record, timed, with_passes, write_record


class Page(HTMLParser):
    """What a browser makes of a page: elements, texts by section, tables as rows of texts, the data of its figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, str] = {"": ""}
        self.scripts: list[str] = []
        self.rows: list[list[str]] = []
        self.section = self.tag = ""
        self.feed(text)
        self.data = json.loads(self.scripts[0])
        for trace in (trace for figure in self.data["figures"] for trace in figure["data"]):
            trace |= self.data["looks"][trace["look"]]
            trace["tags"] = [self.data["tags"][number] for number in trace["tags"]]
            trace.setdefault("x", [trace.get("x_from", 0) + place for place in range(len(trace["y"]))])
        self.figures: dict[str, list[Json]] = {figure["name"]: figure["data"] for figure in self.data["figures"]}
        self.sections = [attributes["id"] for tag, attributes in self.elements if tag == "section"]
        self.counts = re.findall("<dd>([^<]*)</dd>", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tag = tag
        self.elements.append((tag, attributes))
        name = attributes.get("id", "")
        if tag == "section":
            self.section = name
            self.texts[name] = ""
        if name.startswith("table-"):
            self.rows = self.tables.setdefault(name.removeprefix("table-"), [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.tag = ""
        self.rows = [] if tag == "table" else self.rows

    def handle_data(self, data: str) -> None:
        if self.tag == "script":
            self.scripts.append(data)
        elif self.tag != "style":
            self.texts[self.section] += data
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data

    def having(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]

    def column(self, table: str, name: str) -> list[str]:
        head, *rows = self.tables[table]
        return [row[head.index(name)] for row in rows]

    def traces(self, figure: str) -> dict[str, Any]:
        return {trace["name"]: trace for trace in self.figures[figure]}


def page_over(folder: Path, *records: Json | str, words: tuple[str, ...] = (), code: int = 0) -> Page:
    """The page over these runs of one machine and those that the folder has already."""
    for number, data in enumerate(records, 1):
        write_record(folder / f"records/machine/{number:04}_run.json", data)
    assert main(["report", f"--storage={folder}/records", f"--output={folder}/page.html", *words]) == code
    return Page((folder / "page.html").read_text())


def page_with(folder: Path, *passes: Json) -> Page:
    return page_over(folder, with_passes(record([timed()]), *passes))


def of_commit(commit: str, written: str, *rows: Json, **changes: Any) -> Json:
    return {**record(rows, written=written, **changes), "commit_info": {"id": commit * 40, "dirty": False}}
