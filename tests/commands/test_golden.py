"""Users see what they saw: some fifty commands against values kept beside them; golden/__main__.py says which, and how
the values are made anew where a change is meant."""

import json
from typing import Any

import pytest

from tests.commands.golden.__main__ import COMMANDS, EXPECTED, differences, seen
from tests.support.forked_python import forked_python


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(EXPECTED.read_text())
    return kept


@pytest.mark.parametrize("name", COMMANDS)
def test_users_see_what_they_saw(name: str, expected: dict[str, Any]) -> None:
    found = list(differences(expected[name], seen(COMMANDS[name], forked_python())))
    assert not found, "\n".join([*found, "where this is meant: python -m tests.commands.golden"])


def test_every_value_kept_is_of_a_command(expected: dict[str, Any]) -> None:
    assert expected.keys() == COMMANDS.keys()
