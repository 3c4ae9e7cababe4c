"""README.md names files, profiles and selections that exist."""

import re
from pathlib import Path

from numerics_tests.harness.claims import PROFILES

HERE = Path(__file__).parent
TEXT = (HERE / "README.md").read_text()


def test_readme_lists_every_test_file() -> None:
    """Each named file exists, and the table of questions has each test of precision."""
    named = set(re.findall(r"`(test_\w+\.py)`", TEXT))
    about_the_suite = {"test_readme.py", "test_environment.py", "test_checks.py", "test_mutants.py"}
    assert named == {path.name for path in HERE.glob("test_*.py")} - about_the_suite


def test_readme_commands_select_something() -> None:
    """Profiles are known, and each word after -k is part of a test's name."""
    names = re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in HERE.glob("test_*.py")), re.MULTILINE)
    assert set(re.findall(r"--hypothesis-profile (\w+)", TEXT)) <= set(PROFILES)
    for selection in re.findall(r"-k (\w+)", TEXT):
        assert any(selection in name for name in names), f"no test is called like {selection}"
