"""What a benchmark checks holds under `python -O` too, which drops every `assert`."""

import ast

from tests.support.documents import ROOT

FILES = [*sorted((ROOT / "perf_tests").glob("test_*.py")), ROOT / "perf_tests/cases/language_model.py"]


def test_no_check_of_a_result_is_an_assert() -> None:
    """But for what tells a type checker of a type."""
    asserts = [
        (path.name, ast.unparse(node.test))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert [one for one in asserts if not one[1].startswith("isinstance(") and not one[1].endswith("is not None")] == []
    assert len(FILES) > 10
