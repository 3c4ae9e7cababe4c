"""What the suite sees of a collected benchmark, without pytest's collection."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from perf_tests.bench.workbench import CASE, PASS
from perf_tests.cases.case import Case


@dataclass(eq=False)
class Benchmark:
    nodeid: str
    stash: pytest.Stash


def benchmark(case: Case, extra_pass: str | None = None, nodeid: str = "") -> Any:
    stash = pytest.Stash()
    stash[CASE], stash[PASS] = case, extra_pass
    return cast(pytest.Item, Benchmark(nodeid or f"test.py::test_{case.phase}[{extra_pass}]", stash))
