"""`docs/options.md` lists the options, sizes and exit codes that the program has."""

import re
from unittest.mock import Mock

import pytest

from model.sizes import SIZES
from perf_tests import phases as exit_codes
from perf_tests.cases.options import add_options
from perf_tests.gate.verdicts import EXIT_CODES
from tests.support.documents import page

TEXT = page("options")


def option_table() -> list[str]:
    """The rows that the page must have, in the order of `--help`; print them to write the page's table again."""
    parser = Mock()
    add_options(parser)
    calls = parser.getgroup.return_value.addoption.call_args_list
    return [
        f"| `{' '.join(filter(None, [call.args[0], call.kwargs.get('metavar')]))}` | {call.kwargs['help']} |"
        for call in calls
    ]


def test_the_page_has_each_option_with_the_sentence_of_help_and_no_other() -> None:
    expected = option_table()
    assert len(expected) > 20
    assert [line for line in TEXT.splitlines() if line.startswith("| `--")] == expected


def test_the_page_has_every_size() -> None:
    assert f"Sizes: {', '.join(f'`{name}`' for name in SIZES)}." in " ".join(TEXT.split())


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
