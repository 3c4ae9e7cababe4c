"""The README of the numerics suite names its test files, and its commands select something."""

import re

from numerics_tests.harness.claims import PROFILES
from tests.support.documents import ROOT

TEXT = (ROOT / "numerics_tests/README.md").read_text()
FILES = sorted((ROOT / "numerics_tests").glob("test_*.py"))


def test_the_readme_lists_every_test_file() -> None:
    assert set(re.findall(r"`(test_\w+\.py)`", TEXT)) == {path.name for path in FILES}


def test_the_readmes_commands_select_something() -> None:
    """Profiles are known, and each word after -k is part of a test's name."""
    names = re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in FILES), re.MULTILINE)
    assert set(re.findall(r"--hypothesis-profile (\w+)", TEXT)) <= set(PROFILES)
    for selection in re.findall(r"-k (\w+)", TEXT):
        assert any(selection in name for name in names), f"no test is called like {selection}"
