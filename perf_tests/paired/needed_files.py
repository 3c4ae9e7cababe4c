"""Which files of a repository the gate copies into its trees, and which of them both sides take from head."""

from fnmatch import fnmatch
from pathlib import Path

from perf_tests.own.repository import Repository

MEASURING_CODE = ("perf_tests", "conftest.py", "pyproject.toml")
"""Both sides take these from head."""

RECORDS = ".benchmarks/*/*"
"""Folders in no tree; the accepted slowdowns beside them are."""

LEFT_OUT = (
    RECORDS,
    ".ci",
    ".github",
    "Makefile",
    "README.md",
    "WRITEUP.md",
    "docs",
    "examples/workflows",
    "numerics_tests",
    "pictures",
    "published",
    "perf_tests/audit/files",
    "perf_tests/bisection",
    "perf_tests/history",
    "perf_tests/launching",
    "perf_tests/measures/exchange.py",
    "perf_tests/measures/ranked.py",
    "perf_tests/measures/shared_step.py",
    "perf_tests/meta_tests",
    "perf_tests/prediction/lines.py",
    "perf_tests/prediction/order*.py",
    "perf_tests/prediction/rank*.py",
    "perf_tests/prediction/request.py",
    "perf_tests/prediction/step.py",
    "perf_tests/proofs",
    "perf_tests/published",
    "perf_tests/ranks/clock.py",
    "perf_tests/ranks/exchange.py",
    "perf_tests/ranks/groups.py",
    "perf_tests/ranks/peers.py",
    "perf_tests/ranks/sent.py",
    "perf_tests/records/merge.py",
    "perf_tests/run/joining.py",
    "perf_tests/run/starts.py",
    "perf_tests/run/together.py",
    "perf_tests/test_collectives.py",
    "perf_tests/verbs",
    "perf_tests/views/report",
    "perf_tests/views/writeup",
)
"""Folders and files of the suite in neither tree, unless an option names a file in one."""


def measures(file: Path, repository: Repository) -> bool:
    return repository.holds_suite and file.parts[0] in MEASURING_CODE


def is_needed(file: Path, repository: Repository) -> bool:
    if not repository.holds_suite:
        return not _is_in(file, RECORDS) and "__pycache__" not in file.parts
    return not any(
        _is_in(file, place) and not any(_is_in(named, place) for named in repository.files) for place in LEFT_OUT
    )


def _is_in(file: Path, place: str) -> bool:
    names = place.split("/")
    return len(file.parts) >= len(names) and all(map(fnmatch, file.parts, names))
