"""What the suite sees of a collected benchmark, and of pytest's config, without pytest's collection."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.bench.session import BENCHMARK, SESSION, BenchmarkItem, Session
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.user_code.named import Repository


@dataclass(eq=False)
class Benchmark:
    nodeid: str
    stash: pytest.Stash


def benchmark(case: Case, extra_pass: str | None = None, nodeid: str = "") -> Any:
    stash = pytest.Stash()
    stash[BENCHMARK] = BenchmarkItem(case, extra_pass)
    return Benchmark(nodeid or f"test.py::test_{case.phase}[{extra_pass}]", stash)


def stash_of(folder: Path = Path("nowhere"), **known: Any) -> pytest.Stash:
    """The stash of a config whose session knows what is given, by the names of its fields."""
    stash, suite = pytest.Stash(), Session(Repository(folder))
    for name, value in known.items():
        setattr(suite, name, value)
    stash[SESSION] = suite
    return stash
