"""The rooms of the house stand on floors: imports go to one's own room or a lower floor, and some load no torch."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, page

FLOORS = (
    ("model", "phases"),
    ("hardware",),
    ("records", "user_code"),
    ("cases",),
    ("gate", "audit", "traces"),
    ("predict",),
    ("bench", "history"),
    ("passes", "interleaved", "report"),
    ("run",),
    ("plugin", "conftest", "benchmarks", "verbs"),
)
"""Floors from what is measured up to what is typed. A room is a folder of `perf_tests/` or a lone file of it."""

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

TOP = FLOOR_OF["verbs"]

WITHOUT_TORCH = (
    "phases", "cases.gate_options", "hardware.clocks", "hardware.cores", "hardware.datasheets", "hardware.limits",
    "records", "gate", "user_code.given", "audit", "traces", "predict.request", "history", "report", "verbs",
    "run.bisection",
)  # fmt: skip
"""Rooms and files that read records or replay counts, or answer `--help`: importing torch would cost them a second."""

WITHOUT = {
    "model": ("pytest", "perf_tests", "numerics_tests", "numpy"),
    "hardware": ("pytest",),
    "records": ("pytest",),
    "gate": ("pytest",),
    "history": ("pytest",),
}
"""What is none of a room's business."""

SHARED = ("perf_tests_suite.perf_tests",)

FILES = [*(ROOT / "model").rglob("*.py"), *(ROOT / "perf_tests").rglob("*.py")]
FILES.remove(ROOT / "perf_tests/importable/perf_tests_suite/__init__.py")


def dotted(path: Path) -> str:
    inside = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"perf_tests_suite.{inside}"


MODULES = {dotted(path): path for path in FILES}


def room_of(module: str) -> str:
    """The room that a module belongs to; `perf_tests` itself, which every import runs, is the ground."""
    _, package, name, *_ = [*module.split("."), "", ""]
    if package == "model" or not name:
        return "model"
    return "benchmarks" if name.startswith("test_") else {"__main__": "verbs"}.get(name, name)


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that import statements may mean: `from a import b` is a, and a.b where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `model/` alone imports relatively.
            module = f"perf_tests_suite.model.{node.module or ''}" if node.level else node.module or ""
            names = (f"{module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else module for name in names)


IMPORTS = [(module, name) for module, path in MODULES.items() for name in imported(ast.parse(path.read_text()))]


def sideways_or_up(imports: Iterable[tuple[str, str]]) -> list[str]:
    """Imports that lead to another room of the same floor or to a higher one; the top floor is one story."""
    found = []
    for importer, name in imports:
        here, there = room_of(importer), room_of(name)
        if name in MODULES and here != there and FLOOR_OF[there] >= FLOOR_OF[here] and FLOOR_OF[here] != TOP:
            found.append(f"{importer} imports {name}, but {there} is no floor below {here}")
    return found


def test_a_file_imports_from_its_own_room_or_a_lower_floor() -> None:
    assert len(IMPORTS) > 500
    assert sideways_or_up(IMPORTS) == []
    wrong = {
        (
            "perf_tests_suite.perf_tests.records.record",
            "perf_tests_suite.perf_tests.cases.case",
        ): "cases is no floor below records",
        (
            "perf_tests_suite.perf_tests.gate.samples",
            "perf_tests_suite.perf_tests.audit.figures",
        ): "audit is no floor below gate",
    }
    assert [line.partition(", but ")[2] for line in sideways_or_up(wrong)] == list(wrong.values())


AT_LOAD = [
    (module, name)
    for module, path in MODULES.items()
    for statement in ast.parse(path.read_text()).body
    if isinstance(statement, ast.Import | ast.ImportFrom)
    for name in imported(statement)
]
"""What a file imports as it is loaded; a late import, within a function, closes no circle."""


def files_in_a_circle(imports: Iterable[tuple[str, str]]) -> set[str]:
    """Modules that import one another: what is left once those that import none of the rest are taken away."""
    left = {module: set[str]() for module in MODULES}
    for importer, name in imports:
        if name in MODULES and name != importer:
            left[importer].add(name)
    while leaves := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in leaves}
    return set(left)


def test_no_files_import_one_another() -> None:
    assert files_in_a_circle(AT_LOAD) == set()
    two = ("perf_tests_suite.perf_tests.gate.samples", "perf_tests_suite.perf_tests.gate.statistics")
    assert files_in_a_circle([*AT_LOAD, two, (two[1], two[0])]) >= set(two)


def test_every_folder_and_lone_file_is_a_room_on_one_floor() -> None:
    assert {room_of(module) for module in MODULES} == set(FLOOR_OF)


def test_the_page_draws_each_floor_with_its_rooms() -> None:
    drawn = page("developing").partition("```text")[2].partition("```")[0]
    rows = [re.split(r"\s{2,}", line.strip()) for line in drawn.strip().splitlines()]
    numbered = {int(row[0].split()[0]): tuple(row[0].split()[1:]) for row in rows}
    assert numbered == dict(enumerate(FLOORS, 1))


LOADS_TORCH = """
import importlib, os, sys
for room, modules in ROOMS.items():
    if os.fork() == 0:
        list(map(importlib.import_module, modules))
        os._exit("torch" in sys.modules)
    if os.wait()[1]:
        print(room)
"""


def test_what_reads_files_loads_no_torch() -> None:
    """Each room in a process that has loaded no other."""
    rooms = {
        room: [
            name
            for name in MODULES
            if f"{name}.".startswith(f"perf_tests_suite.perf_tests.{room}.") and not name.endswith("__main__")
        ]
        for room in WITHOUT_TORCH
    }
    assert all(rooms.values())
    program = LOADS_TORCH.replace("ROOMS", repr(rooms))
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT) == b""


ONE_DEVICE = """
import sys
import perf_tests_suite.perf_tests.plugin, perf_tests_suite.perf_tests.conftest
suite = "perf_tests_suite.perf_tests"
of_ranks = (f"{suite}.bench.ranks", f"{suite}.run.ranks", "torch.distributed.tensor")
print(*(name for name in sys.modules if name.startswith(of_ranks)), end="")
"""


def test_a_run_on_one_device_loads_nothing_of_ranks() -> None:
    assert subprocess.check_output([sys.executable, "-c", ONE_DEVICE], cwd=ROOT) == b""


@pytest.mark.parametrize("room", WITHOUT)
def test_a_room_does_without_what_is_not_its_business(room: str) -> None:
    forbidden = tuple(f"{place}{name}." for place in ("", "perf_tests_suite.") for name in WITHOUT[room])
    names = [name for module, name in IMPORTS if room_of(module) == room]
    assert names
    assert [name for name in names if f"{name}.".startswith(forbidden) and name not in SHARED] == []


def test_the_suite_imports_nothing_of_its_tests_or_claims() -> None:
    assert [
        pair for pair in IMPORTS if pair[1].removeprefix("perf_tests_suite.").startswith(("tests.", "claims."))
    ] == []


def test_nothing_reaches_into_pytest_benchmark_but_what_serves_tests_written_for_it() -> None:
    rooms = ("model", "perf_tests", "numerics_tests", "claims")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    reach = {
        (path.name, name)
        for path in paths
        for name in imported(ast.parse(path.read_text()))
        if name.startswith("pytest_benchmark")
    }
    assert reach == {("their_side.py", f"pytest_benchmark.{part}") for part in ("fixture", "stats")}
