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
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    return names


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


def test_nothing_reaches_into_pytest_benchmark() -> None:
    everywhere = imported("perf_tests") | imported("model") | imported("numerics_tests")
    assert {name for name in everywhere if name.startswith("pytest_benchmark")} == set()
