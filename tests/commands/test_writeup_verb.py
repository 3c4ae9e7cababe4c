"""`python -m perf_tests writeup`: its outputs, and what it says of bad input."""

import json
import re
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from tests.support.synthetic import record, timed, traced
from tests.support.writeup_sources import QUESTIONS, with_record


@pytest.mark.usefixtures("quick_writeup")
def test_json_has_every_question_once_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["writeup", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["question"] for row in rows] == [question.asked for question in QUESTIONS]
    assert all(figure["text"] for row in rows for figure in (*row["here"], *row["published"]))


@pytest.mark.usefixtures("quick_writeup")
def test_a_broken_record_is_named_and_the_exit_code_says_so(
    writeup_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_record(writeup_root, record([timed()]))
    (writeup_root / ".benchmarks/some-machine/0002_run.json").write_text("{")
    assert main(["writeup", f"--root={writeup_root}"]) == 1
    assert "0002_run.json" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_writeup")
def test_without_its_tables_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["writeup", f"--root={tmp_path}"]) == 3
    assert capsys.readouterr().err == f"--root {tmp_path} holds no folder `published`; name a checkout of this suite.\n"
    (tmp_path / "published").mkdir()
    assert main(["writeup", f"--root={tmp_path}"]) == 3
    said = f"need: {tmp_path}/published/e2e_timing.csv cannot be read: No such file or directory.\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.usefixtures("quick_writeup")
@pytest.mark.parametrize("output, said", [
    ("./no/such/page.md", "./no/such/page.md cannot be written: No such file or directory; name another file"),
    ("page.pdf", "page.pdf: the page is Markdown or HTML"),
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_named_as_typed(
    output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["writeup", "--output", output]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_an_output_in_no_folder_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf_tests.verbs.writeup._played", lambda: pytest.fail("computed"))
    assert main(["writeup", "--output", "./no/such/page.html"]) == 2
    assert capsys.readouterr().err.startswith("./no/such/page.html cannot be written: No such file or directory")


@pytest.mark.usefixtures("quick_writeup")
def test_html_is_whole_escaped_and_loads_nothing(writeup_root: Path, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    forward = traced(size="small", context_length=128)
    forward["values"]["kernels"][0]["name"] = name
    with_record(writeup_root, {**record([timed(size="<b>", context_length=128)]), "passes": [forward]})
    path = tmp_path / "page.html"
    assert main(["writeup", f"--root={writeup_root}", f"--output={path}"]) == 0
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    assert name not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>" not in page
    assert not re.search(r"<script|https?://|url\(", page)
    assert page.count("<h3>") == len(QUESTIONS)
    assert page.count('<p class="command">') == len(QUESTIONS)
    assert "<code><span>pytest</span> <span>perf_tests/test_forward.py</span> <span>--phase</span>" in page
