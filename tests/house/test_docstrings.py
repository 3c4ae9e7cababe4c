"""Docstrings begin with a verb in the imperative or with what they name: none is a fragment."""

import ast
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.pages.words import PREPOSITION
from tests.support.documents import ROOT

RELATIVE = re.compile(r"and|because|but|if|nor|not|that|when|which|while|who|whose|only|once|likewise", re.IGNORECASE)
"""Words that go on from a sentence which is not there; questions, such as whether, name what is returned."""
THIRD_PERSON = re.compile(r"Raises|Returns|Reads|Writes|Makes|Leaves|Adds|Does|Becomes|Grows|Restores|Halves|Called")
ROOMS = ("model", "perf_tests", "numerics_tests", "claims", "examples", "tests")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of classes, of functions but tests, whose names say what is so, and of what is assigned."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None and not node.name.startswith("test_"):
                yield node.lineno, text
        body = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
        for name, said in pairwise(body):
            is_assigned = isinstance(name, ast.Assign | ast.AnnAssign)
            if is_assigned and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                yield said.lineno, str(said.value.value)


def is_fragment(text: str) -> bool:
    """Whether its first word is a preposition, goes on from nothing, or is a verb that lacks its subject."""
    first = re.search(r"\w+", text)
    assert first is not None
    found = (kind.fullmatch(first[0]) for kind in (PREPOSITION, RELATIVE, THIRD_PERSON))
    return any(found)


def test_no_docstring_is_a_fragment() -> None:
    files = subprocess.check_output(["git", "ls-files", *(f"{room}/*.py" for room in ROOMS)], cwd=ROOT, text=True)
    found = [(file, line, text) for file in files.split() for line, text in docstrings((ROOT / file).read_text())]
    assert len(found) > 3000
    assert [f"{file}:{line}: {text[:60]}" for file, line, text in found if is_fragment(text)] == []


@pytest.mark.parametrize("text, is_one", [
    ("Of models.", True), ("Raises ValueError.", True), ("`When` it ends.", True), ("Not that.", True),
    ("Return one.", False), ("Whether it fits.", False), ("Bytes of a round.", False), ("Android.", False),
])  # fmt: skip
def test_a_fragment_is_known_by_its_first_word(text: str, is_one: bool) -> None:
    assert is_fragment(text) is is_one
