"""`docs/reference.md` is generated; what its text says beside the tables is what the program has."""

import json
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import pytest

from perf_tests_suite.perf_tests import phases as exit_codes
from perf_tests_suite.perf_tests.gate.verdicts import EXIT_CODES
from tests.pages.reference import PAGE
from tests.pages.reference import page as generated
from tests.support.documents import indented
from tests.support.synthetic import passed, record, timed, with_passes, write_record

TEXT = PAGE.read_text()
IN_PANDAS = [line for line in indented(TEXT) if "benchmarks" in line]
"""The lines that read a folder of records."""


def test_the_page_is_what_its_command_writes() -> None:
    """With every verb, option and column, each in its table."""
    assert generated() == TEXT, "make pages"
    assert len(re.findall(r"^\| `--", TEXT, re.MULTILINE)) > 40
    assert len(TEXT.partition("\n| column |")[2].splitlines()) > 100


def codes_below(heading: str) -> set[int]:
    rows = TEXT.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", rows, re.MULTILINE)}


def test_the_page_has_the_exit_codes_of_the_verbs_and_of_the_gate() -> None:
    assert codes_below("exit code of a verb") == {value for value in vars(exit_codes).values() if type(value) is int}
    assert set(EXIT_CODES.values()) <= codes_below("exit code of pytest")


def test_the_options_of_pytest_benchmark_on_the_page_exist(pytestconfig: pytest.Config) -> None:
    named = set(re.findall(r"`--(benchmark-[a-z-]+)", TEXT))
    assert len(named) > 5
    assert [name for name in named if not hasattr(pytestconfig.option, name.replace("-", "_"))] == []


def test_the_lines_for_pandas_skip_a_record_of_passes_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for pandas, which is not installed here; `make readers` runs them with pandas itself."""
    rows = timed()
    write_record(tmp_path / ".benchmarks/machine/0001_x.json", record([rows]))
    write_record(tmp_path / ".benchmarks/machine/0002_x.json", with_passes(record([]), passed(rows["fullname"])))
    monkeypatch.chdir(tmp_path)
    pandas = SimpleNamespace(json_normalize=list, concat=lambda frames: list(frames))
    names: dict[str, Any] = {"json": json, "pathlib": pathlib, "pandas": pandas}
    exec("\n".join(IN_PANDAS), names)
    assert (len(IN_PANDAS), len(names["records"]), names["rows"]) == (2, 2, [[rows]])
