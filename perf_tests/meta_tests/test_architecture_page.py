"""`docs/architecture.md` names the rooms that are there, in the order that imports keep to."""

import re

from perf_tests.meta_tests.documents import ROOT, page
from perf_tests.meta_tests.test_import_rules import ROOMS, WITHOUT_TORCH

ROWS = [line for line in page("architecture").splitlines() if line.startswith("| `")]
SHOWN = [re.split(r"`", line)[1] for line in ROWS]


def is_there(room: str) -> bool:
    """Whether the room is a folder or a file; all benchmarks together are one room."""
    package = ROOT / "perf_tests"
    return room == "tests" or (ROOT / room).is_dir() or (package / room).is_dir() or (package / f"{room}.py").is_file()


def test_the_rooms_are_those_of_the_import_rules_in_their_order() -> None:
    assert [room for room in ROOMS if is_there(room)] == SHOWN


def test_the_rooms_without_torch_are_marked() -> None:
    marked = {room for room, line in zip(SHOWN, ROWS, strict=True) if "*no torch*" in line}
    assert marked == set(WITHOUT_TORCH)
