"""Text out of a record stays text in every view: it moves no cursor, opens no markup, and is no formula or command."""

import csv
import io
import json
import math
import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import read_record
from tests.support import synthetic
from tests.support.report_pages import Page
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, record, timed, timed_attention, timed_collective

COMMITTED = Path(__file__).parents[2] / ".benchmarks/epyc-2core/0001_9e03909d2d18.json.xz"

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
        changed = {name: hostile(value, text, name) for name, value in tree.items()}
        return changed | ({text: text} if key in ("environment", "peak_by_category_bytes") else {})
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


def in_csv(said: str) -> None:
    header, *rows = csv.reader(io.StringIO(said, newline=""))
    assert {len(row) for row in rows} == {len(header)}
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t", "\r"))]


def in_json(said: str) -> None:
    """No NaN, which is none of JSON's."""
    assert json.loads(said, parse_constant=pytest.fail)


def in_json_lines(said: str) -> None:
    for line in said.split("\n"):
        assert not line or json.loads(line, parse_constant=pytest.fail)


def in_a_page(said: str) -> None:
    """Every element and attribute is one that a page over plain records has, and no text of a figure is markup."""
    page, plain = Page(said), plain_page()
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements}
    assert {name for _, one in page.elements for name in one} <= {name for _, one in plain.elements for name in one}
    assert len(page.scripts) == 3
    assert "<" not in page.scripts[0]
    plotted = [[{**trace, "tags": [], "hovertemplate": ""} for trace in traces] for traces in page.figures.values()]
    assert "<" not in json.dumps([plotted, [figure["layout"] for figure in page.data["figures"]]])


PAGE = "report {file} {other} {elsewhere} -o {folder}/page"
NAMES = ("file", "other", "elsewhere")
VIEWS: dict[str, Callable[[str], None]] = {
    "compare {file} {other}": in_a_terminal,
    "history {file} {other} --case a": in_a_terminal,
    "history {file} {other} --json": in_json,
    "history {file} {other} --export otava": in_csv,
    "history {file} {other} --export github-action-benchmark": in_json,
    "kernels {file}": in_a_terminal,
    "kernels {file} --json": in_json,
    PAGE: in_a_page,
    "tables {file}": in_markdown,
    "tables {file} --only cases": in_markdown,
    "tables {file} --format latex": in_latex,
    "tables {file} --format latex --only cases": in_latex,
    "tables {file} --format csv": in_csv,
    "tables {file} --format jsonl": in_json_lines,
    "tables {file} --json": in_json,
    **{
        f"tables {{file}} --format csv --only {kind}": in_csv
        for kind in ("timing", "attention", "kernels", "memory_pass", "warmup")
    },
}
"""What is typed, and what must hold of what is printed or written."""


@cache
def base() -> Json:
    """A record with every pass, a lost case, attention alone, several ranks, collectives, and numbers that are none."""
    sent: Json = {
        "sent_by_part": {"backward": {"collectives": {"all_reduce": 2}, "sent_bytes": 12345}},
        "sent_bytes": 12345,
    }
    rows = [
        timed(FORWARD, [1.0, 1.1] * 50, flags=["trend"], bound="memory"), timed("b", precision="bf16"),
        timed(BACKWARD, phase="backward"), timed("a[16]", context_length=16, roofline_seconds=0.5, bytes_touched=9),
        timed(FULL_STEP, phase="full_step", parallel="ddp", world=2, backend="gloo", **sent),
        *(timed_attention(sequence_length=length) for length in (256, 512)), timed_collective(1000), timed_collective(),
    ]  # fmt: skip
    kernels = (row for row in read_record(COMMITTED).data["passes"] if row["values"].get("attention"))
    studies = [min(kernels, key=lambda row: len(str(row))), synthetic.remembered(), synthetic.warmed()]
    data = synthetic.with_passes(record(rows, [synthetic.untimed("lost")]), *studies)
    studies[0]["values"]["unheard_of"] = data["benchmarks"][1]["extra_info"]["vocab_size"] = math.nan
    return data


def records(around: Callable[[Any], Any]) -> list[Json]:
    """The record of two commits, and of a third on another machine."""
    found = []
    for number, threads in enumerate((2, 2, 64)):
        one: Json = json.loads(json.dumps(base()))
        one |= {"datetime": f"203{number}", "commit_info": {"id": f"{number}" * 40, "dirty": False}}
        one["suite"]["run"], one["machine_info"]["torch"]["threads"] = f"run{number}", threads
        found.append(around(one))
    return found


def seen(view: str, around: Callable[[Any], Any]) -> str:
    """What the view prints or writes of these records; standard error is held to be fit for a terminal."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as streams:
        out, error = (streams.enter_context(to(io.StringIO())) for to in (redirect_stdout, redirect_stderr))
        paths = {name: Path(folder, f"machine/000{number}_a.json") for number, name in enumerate(NAMES, 1)}
        for path, data in zip(paths.values(), records(around), strict=True):
            synthetic.write_record(path, data)
        assert main([word.format(folder=folder, **paths) for word in view.split()]) in (0, 1)
        in_a_terminal(error.getvalue())
        return Path(folder, "page").read_text() if "{folder}" in view else out.getvalue()


@cache
def plain_page() -> Page:
    return Page(seen(PAGE, lambda tree: tree))


@pytest.mark.usefixtures("no_plotly")
@pytest.mark.parametrize("view", VIEWS)
@given(st.sampled_from(HOSTILE), st.text(max_size=9))
@example(HOSTILE[0], "")
@example(HOSTILE[1], "")
@settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.generate))
def test_no_text_of_a_record_is_more_than_text(view: str, text: str, more: str) -> None:
    VIEWS[view](seen(view, lambda tree: hostile(tree, text + more)))
