"""The pages of the numerics suite: test files that are there, commands that select something, examples that run."""

import re

import pytest
import torch

from perf_tests_suite.numerics_tests.harness import within
from perf_tests_suite.numerics_tests.harness.claims import PROFILES
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


BOUNDS_PAGE = (ROOT / "numerics_tests/within_bounds.md").read_text()
IMPORTS, *EXAMPLES = re.findall(r"```python\n(.*?)```", BOUNDS_PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.partition("(")[0].removeprefix("def test_"))
def test_an_example_of_bounds_runs(example: str) -> None:
    scope: dict[str, object] = {}
    torch.manual_seed(0)
    exec(f"{IMPORTS}\n{example}", scope)
    (run,) = (value for name, value in scope.items() if name.startswith("test_"))
    assert callable(run)
    run()


def test_the_page_of_bounds_names_every_kernel_and_has_six_examples() -> None:
    assert re.findall(r"^\| `(\w+)` \|", BOUNDS_PAGE, re.MULTILINE) == list(within.KERNELS)
    assert len(EXAMPLES) == 6
