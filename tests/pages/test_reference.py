"""`docs/reference.md` is generated; what its text says beside the tables is what the program has."""

import re

import pytest

from perf_tests import phases as exit_codes
from perf_tests.gate.verdicts import EXIT_CODES
from tests.pages.reference import PAGE
from tests.pages.reference import page as generated

TEXT = PAGE.read_text()


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
