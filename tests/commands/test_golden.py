"""Users see what they saw: some fifty commands against values kept beside them; golden/__main__.py says which, and how
the values are made anew where a change is meant."""

import json
from typing import Any

import pytest

from tests.commands.golden.__main__ import COMMANDS, EXPECTED, Command, differences, kept, seen
from tests.support.forked_python import forked_python


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(EXPECTED.read_text())
    return kept


@pytest.mark.parametrize("name", COMMANDS)
def test_users_see_what_they_saw(name: str, expected: dict[str, Any]) -> None:
    found = list(differences(expected[name], seen(COMMANDS[name], forked_python())))
    assert not found, "\n".join([*found, "where this is meant: python -m tests.commands.golden"])


def test_a_new_column_is_one_name_and_its_field_of_each_row() -> None:
    before, after, changed = (
        kept(Command("", "csv"), text)
        for text in ("id,size\na,tiny\n", 'id,kind,size\na,"x,y",tiny\n', "id,size\na,small\n")
    )
    assert list(differences(before, after)) == ["/header: 1 new ['kind']", "/rows[0]/kind is new"]
    assert list(differences(before, changed)) == ["/rows[0]/size: tiny -> small"]
    assert list(differences({"header": ["a", "b"]}, {"header": ["b", "a"]})) == ["/header: another order"]


def test_every_value_kept_is_of_a_command(expected: dict[str, Any]) -> None:
    assert expected.keys() == COMMANDS.keys()
