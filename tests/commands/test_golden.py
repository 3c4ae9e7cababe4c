"""Users see what they saw: some thirty commands against values kept beside them; golden/__main__.py says which, and how
the values are made anew where a change is meant."""

import json
from typing import Any

import pytest

from tests.commands.golden.__main__ import COMMANDS, EXPECTED, differences, kept, seen
from tests.support.forked_python import forked_python


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(EXPECTED.read_text())
    return kept


@pytest.mark.parametrize("name", COMMANDS)
def test_users_see_what_they_saw(name: str, expected: dict[str, Any]) -> None:
    found = differences(expected[name], seen(COMMANDS[name], forked_python()))
    assert not found, "\n".join([*found, "where this is meant: python -m tests.commands.golden"])


def test_a_difference_is_any_value_that_is_new_gone_or_another_or_another_order_and_no_last_digit() -> None:
    rows = kept("csv", 'id,size,seconds\na,"x,y",\n')
    assert rows == {"header": ["id", "size", "seconds"], "rows": [{"id": "a", "size": "x,y"}]}
    one: dict[str, Any] = {"a": [1.0, "b", True], "c": {"d": 2}}
    lists = [["b", 1.0, True], [1.0, "b"], [1.0, "b", 1], [1.0, "b", True, 3], [1.1, "b", True]]
    for other in ({"a": one["a"]}, one | {"e": 1}, one | {"c": {"d": 2.1}}, *(one | {"a": other} for other in lists)):
        assert differences(one, other)
    assert differences(one, one | {"a": [1.0000001, "b", True]}) == []


def test_every_value_kept_is_of_a_command(expected: dict[str, Any]) -> None:
    assert expected.keys() == COMMANDS.keys()
