"""`diff` on a repository of the suite's own: the five slowdowns that the gate's page names, and sides that cannot be
played."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.planted import REAL_SLOWDOWNS
from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.interleaved.sides import environment_without_the_suite
from perf_tests_suite.perf_tests.predict.difference import Lines, difference
from perf_tests_suite.perf_tests.predict.operations import FakeRound, SideToRun, run_side, sent_case
from tests.support.example_cases import language_model_case
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit

STEP = language_model_case(phase="full_step", optimizer="fused")


def play(tree: Path) -> FakeRound:
    where = {"root": str(tree), "folder": str(tree), "holds_suite": True, "named": []}
    variables = environment_without_the_suite(tree / "perf_tests/importable")
    (found,) = run_side(SideToRun(tree, tree, variables, where), [sent_case(STEP)])
    assert isinstance(found, FakeRound), found
    return found


@pytest.fixture(scope="module", autouse=True)
def forked_sides() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python())
        yield


@pytest.fixture(scope="module")
def base(repository: Path) -> FakeRound:
    return play(repository)


@pytest.mark.parametrize("name", REAL_SLOWDOWNS)
def test_the_first_row_names_the_line_of_a_slowdown(name: str, base: FakeRound, repository: Path, clone: Path) -> None:
    slowdown = REAL_SLOWDOWNS[name]
    slowdown.change(clone)
    before, after = ((tree / slowdown.file).read_text().splitlines() for tree in (repository, clone))
    changed = [number for number, line in enumerate(after, 1) if line not in before]
    first = difference(base, play(clone), Lines(repository, clone)).rows[0]
    assert first.file == slowdown.file
    assert first.line in changed


def test_a_base_that_cannot_be_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is a user's own, in a repository that did not hold it at first."""
    kernel, text = tmp_path / "kernel.py", "def attend(q, k, v):\n    return q + k + v\n"
    for content in (text, f"import nothing_there\n\n\n{text}"):
        kernel.write_text(content)
        commit(tmp_path)
    kernel.write_text(text.replace("+ v", "+ v.clone()"))
    monkeypatch.chdir(tmp_path)
    case = "attention_forward d16-seq64-fp32-kernel.attend"
    words = ["--attention=kernel.py:attend", "--head-dim=16", "--sequence-length=64", f"--case={case}", "--json"]
    found = []
    for base, code in (("main", 3), ("main~1", 1)):
        assert main(["diff", base, *words]) == code
        found += json.loads(capsys.readouterr().out).values()
    assert re.match("base is not compared: .*kernel.py:attend", found[0]["why_not"])
    assert [(row["kind"], row["line"]) for row in found[1]["rows"]] == [("added", 2)]
