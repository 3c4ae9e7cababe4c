"""The rooms keep to themselves: models know torch alone, instruments no pytest and no records, records no torch."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(folder: str) -> set[str]:
    """Full names of every module imported anywhere in the folder."""
    names: set[str] = set()
    for path in (ROOT / folder).glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names |= names_of(node)
    return names


def names_of(node: ast.AST) -> set[str]:
    """Modules that an import statement may mean: `from a import b` is a, and a.b where that is a module."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


@pytest.mark.parametrize(
    "folder, forbidden",
    [
        ("model", ("pytest", "perf_tests", "numerics_tests", "numpy")),
        ("perf_tests/instruments", ("pytest", "perf_tests.records", "perf_tests.plugin", "perf_tests.measure")),
        ("perf_tests/records", ("torch", "pytest", "model", "perf_tests.instruments", "perf_tests.cases")),
        ("perf_tests/verbs", ("torch", "pytest", "model", "perf_tests.instruments", "perf_tests.cases")),
    ],
)
def test_a_room_imports_nothing_from_beyond_its_door(folder: str, forbidden: tuple[str, ...]) -> None:
    trespassers = {
        name for name in imported(folder) for beyond in forbidden if name == beyond or name.startswith(f"{beyond}.")
    }
    assert trespassers == set()


def test_one_verb_counts_what_a_model_does_and_only_when_it_is_called() -> None:
    """`predict` needs torch, cases and instruments by way of these modules; at its top they would slow every verb."""
    beyond = {"perf_tests.prediction", "perf_tests.prediction_lines", "perf_tests.prediction_request"}
    for path in (ROOT / "perf_tests/verbs").glob("*.py"):
        anywhere = {name for node in ast.walk(ast.parse(path.read_text())) for name in names_of(node)}
        at_the_top = {name for node in ast.parse(path.read_text()).body for name in names_of(node)}
        assert anywhere & beyond == (beyond if path.name == "predict.py" else set())
        assert at_the_top & beyond == set()


def test_nothing_reaches_into_pytest_benchmark() -> None:
    everywhere = imported("perf_tests") | imported("model") | imported("numerics_tests")
    assert {name for name in everywhere if name.startswith("pytest_benchmark")} == set()
