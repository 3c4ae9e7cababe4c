"""The rooms are ordered: a file imports from its own room or an earlier one, and some rooms never load torch."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, page

ROOMS = (
    "model", "phases", "identity", "limits", "records", "traces", "audit", "gate", "history", "views", "instruments",
    "own", "ranks", "options", "cases", "checks", "counting", "prediction", "published", "bench", "measures",
    "workers", "passes", "paired", "bisection", "run", "plugin", "conftest", "tests", "verbs", "launching",
    "proofs", "meta_tests",
)  # fmt: skip
"""From what is measured to what tests the tools."""

WITHOUT_TORCH = (
    "phases", "identity", "limits", "records", "traces", "audit", "gate", "history", "views", "bisection", "verbs",
)  # fmt: skip

FILES = [*(ROOT / "model").glob("**/*.py"), *(ROOT / "perf_tests").glob("**/*.py")]


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES}


def room_of(module: str) -> str:
    """`perf_tests` itself, which every import of a room runs, is the ground; its `__main__` leads to the verbs."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    if package == "model" or not name:
        return "model"
    return "tests" if name.startswith("test_") else {"__main__": "verbs"}.get(name, name)


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that import statements may mean: `from a import b` is a, and a.b where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (
                name if (name := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            )


def against_the_order(imports: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{importer} imports {name}, but {room_of(importer)} comes before {room_of(name)}"
        for importer, name in imports
        if name in MODULES and ROOMS.index(room_of(name)) > ROOMS.index(room_of(importer))
    ]


IMPORTS = [(module, name) for module, path in MODULES.items() for name in imported(ast.parse(path.read_text()))]


def test_a_file_imports_from_its_own_room_or_an_earlier_one() -> None:
    assert len(IMPORTS) > 1000
    assert against_the_order(IMPORTS) == []


def test_an_import_from_a_later_room_is_found() -> None:
    assert against_the_order([("perf_tests.records.record", "perf_tests.cases")]) == [
        "perf_tests.records.record imports perf_tests.cases, but records comes before cases"
    ]


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in (ROOT / "perf_tests").iterdir() if (path / "__init__.py").exists()}
    files = {"phases", "identity", "checks", "plugin", "conftest", "tests", "model"}
    assert folders == set(ROOMS) - files


def test_the_page_shows_the_rooms_in_their_order_and_marks_those_without_torch() -> None:
    rows = [line for line in page("architecture").splitlines() if line.startswith("| `")]
    assert tuple(line.split("`")[1] for line in rows) == ROOMS
    assert tuple(line.split("`")[1] for line in rows if "*no torch*" in line) == WITHOUT_TORCH


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_room_that_reads_files_loads_no_torch(room: str) -> None:
    modules = [module for module in MODULES if room_of(module) == room and not module.endswith("__main__")]
    program = f"import sys, importlib; list(map(importlib.import_module, {modules})); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


FORBIDDEN = {
    "model": ("pytest", "numerics_tests", "numpy"),
    "instruments": ("pytest", "perf_tests.records"),
    "gate": ("pytest",),
    "history": ("pytest",),
    "records": ("pytest",),
}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_does_without_what_is_not_its_business(room: str) -> None:
    forbidden = tuple(f"{name}." for name in FORBIDDEN[room])
    names = [name for module, name in IMPORTS if room_of(module) == room]
    assert [name for name in names if f"{name}.".startswith(forbidden)] == []


def test_nothing_reaches_into_pytest_benchmark() -> None:
    paths = [*FILES, *(ROOT / "numerics_tests").glob("**/*.py")]
    names = {name for path in paths for name in imported(ast.parse(path.read_text()))}
    assert {name for name in names if name.startswith("pytest_benchmark")} == set()
