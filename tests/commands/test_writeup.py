"""The write-up as a page: every question once, in its section, with one sentence why."""

import argparse
import re
import shlex
from importlib import import_module
from itertools import pairwise

import pytest

from perf_tests.__main__ import main
from perf_tests.cases.options import OPTIONS
from perf_tests.report.cs336_parts.answer import Answer, Figure, Question, table_of
from perf_tests.report.cs336_parts.sources import ROOT
from tests.support.writeup_sources import QUESTIONS


def test_the_page_is_what_its_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """With all steps played, as `make writeup` does."""
    assert main(["writeup"]) == 0
    written = (ROOT / "WRITEUP.md").read_text()
    assert written == capsys.readouterr().out, "python -m perf_tests writeup -o WRITEUP.md"
    known, asked, ours = map(int, re.findall(r"(\d+) of (\d+) are\s+answered, (\d+) with", written)[0])
    assert (known, ours) >= (60, 45)
    assert asked == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_why_is_one_sentence_without_a_figure(question: Question) -> None:
    assert not re.search(r"(?<!\w)\d", question.why)
    assert question.why.count(". ") == 0
    assert question.why.endswith(".")


@pytest.mark.parametrize("command", sorted({question.command for question in QUESTIONS}))
def test_a_command_has_known_files_options_and_values(command: str) -> None:
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "perf_tests"]:
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--json", action="store_true")  # of every verb
        import_module(f"perf_tests.verbs.{words[3]}").add_arguments(parser)
        parser.parse_args(words[4:])
        return
    program, *rest = words
    assert program == "pytest"
    files = [word for word in rest if word.endswith(".py")]
    assert files
    assert all((ROOT / name).exists() for name in files)
    known = {option.name: option.parse for option in OPTIONS}
    for name, value in pairwise([*rest, "--end"]):
        if name.startswith("--"):
            parse = known[name]
            assert (parse is None) == value.startswith("--")
            if parse is not None:
                parse(name, value)


def test_a_command_of_several_sizes_names_its_contexts() -> None:
    """The default context is another one on a CPU than on a GPU; the rows are the same."""
    words = [shlex.split(question.command) for question in QUESTIONS if question.command.startswith("pytest")]
    several = [one for one in words if "--size" in one and one[one.index("--size") + 1] != "small"]
    assert len(several) > 5
    assert all("--context" in one for one in several)


def test_questions_differ_and_read_in_their_section() -> None:
    asked = [question.asked for question in QUESTIONS]
    again = [one for one in asked if asked.count(one) > 1]
    assert all(one.startswith("And ") for one in again)


def test_rows_are_in_the_order_of_sizes_and_numbers() -> None:
    rows = [("large", "128"), ("small", "1024"), ("small", "256"), ("small", "not stated")]
    found = table_of(Answer(("Size", "Context"), [Figure(row, "here", "1") for row in rows]))
    assert found is not None
    assert [row[:2] for row in found.rows] == [rows[2], rows[1], rows[3], rows[0]]
