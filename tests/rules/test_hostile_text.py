"""Text out of a record stays text in every view: it moves no cursor, opens no markup, and is no formula or command."""

import csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perf_tests.__main__ import main
from perf_tests.records.published import FLAT_COLUMNS
from perf_tests.records.record import Json
from tests.support.file_readers import ranked, record

HOSTILE = (
    "</script><img src=x onerror=pwned()>\u2028\u2029<!-- ' \" &",
    "\x1b[2J\x07\r\n\t=cmd|'a,b'\ud800",
    '=cmd|"a,b"\n\n# **x** `$(rm)` a|b & 50% $x_1$ #show {\\input} [c](d) @e ~^ é',
    "@SUM\x00</td></table>%s{0}\u202e",
)
KEPT = ("outcome", "pass", "phase", "flags", "collective", "datetime")
"""Fields whose words are the suite's own and select what is shown, and a date, which orders runs."""


def hostile(tree: Any, text: str, key: str = "") -> Any:
    """The same with the text around every string."""
    if isinstance(tree, dict):
        return {name: hostile(value, text, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [hostile(value, text, key) for value in tree]
    return f"{text}{tree}{text}" if isinstance(tree, str) and key not in KEPT else tree


def in_a_terminal(said: str) -> None:
    assert [line for line in said.splitlines() if not line.isprintable()] == []


def in_markdown(said: str) -> None:
    in_a_terminal(said)
    rows = [re.sub(r"\\.", "", line) for line in said.splitlines()]
    assert not [row for row in rows if set("<>`[]$#@") & set(row)]
    tables = "\n".join(rows).split("\n\n")
    assert all(len({row.count("|") for row in part.splitlines()}) == 1 for part in tables if part.startswith("|"))


def in_latex(said: str) -> None:
    in_a_terminal(said)
    tables = [re.findall(r"^\{\}.* \\\\$", part, re.M) for part in said.split(r"\end{tabular}")]
    rows = [row for table in tables for row in table]
    assert all(len({re.sub(r"\\.", "", row).count("&") for row in table}) <= 1 for table in tables)
    assert rows
    assert not [row for row in rows if r"\input" in row or re.search(r"(?<!\\)[#%_$](?!\\pm\$)(?<!\\pm\$)", row)]


def in_typst(said: str) -> None:
    in_a_terminal(said)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", said)
    assert not re.search(r"cmd|pwned|SUM|show", outside)


def in_csv(said: str) -> None:
    header, *rows = csv.reader(io.StringIO(said, newline=""))
    assert {len(row) for row in rows} == {len(header)}
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t", "\r"))]


def in_json_lines(said: str) -> None:
    assert [json.loads(line) for line in said.split("\n") if line]


def in_json(said: str) -> None:
    assert json.loads(said)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names += [tag, *(name for name, _ in attrs)]


def in_a_page(said: str) -> None:
    names = Elements(said).names
    assert names.count("script") == 3
    assert not [name for name in names if name == "img" or name.startswith("on")]


VIEWS: dict[str, Callable[[str], None]] = {
    "compare {file} {other}": in_a_terminal,
    "history {file} {other} --case a": in_a_terminal,
    "history {file} {other} --json": in_json,
    "history {file} {other} --export otava": in_csv,
    "history {file} {other} --export asv": in_json_lines,
    "history {file} {other} --export github-action-benchmark": in_json,
    "kernels {file}": in_a_terminal,
    "kernels {file} --json": in_json,
    "scaling {file}": in_a_terminal,
    "report {file} -o {folder}/page": in_a_page,
    "tables {file}": in_markdown,
    "tables {file} --only cases": in_markdown,
    "tables {file} --format latex": in_latex,
    "tables {file} --format latex --only cases": in_latex,
    "tables {file} --format typst": in_typst,
    "tables {file} --format typst --only cases": in_typst,
    "tables {file} --format csv": in_csv,
    "tables {file} --format jsonl": in_json_lines,
    "tables {file} --json": in_json,
    **{f"tables {{file}} --format csv --only {kind}": in_csv for kind in FLAT_COLUMNS},
}
"""What is typed, and what must hold of what is printed or written."""


@pytest.fixture(scope="module", params=HOSTILE, ids=range(len(HOSTILE)))
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A hostile record, and the same of another run."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = {name: folder / f"machine/000{number}_a.json" for number, name in enumerate(("file", "other"), 1)}
    for number, path in enumerate(paths.values()):
        data: Json = json.loads(record())
        data["benchmarks"] += json.loads(ranked())["benchmarks"]
        data = hostile(data, request.param)
        path.parent.mkdir(exist_ok=True)
        data["suite"]["run"] = f"{request.param}{number}"
        path.write_text(json.dumps(data))
    return {"folder": str(folder), **{name: str(path) for name, path in paths.items()}}


@pytest.mark.parametrize("view", VIEWS)
def test_no_text_of_a_record_is_more_than_text(
    view: str, words: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(**words) for word in view.split()]) in (0, 1)
    page = Path(words["folder"]) / "page"
    printed = capsys.readouterr()
    VIEWS[view](page.read_text() if "{folder}" in view else printed.out)
    in_a_terminal(printed.err)
