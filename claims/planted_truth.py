"""A pytest plugin for a gate run that measures planted benchmarks alone, in a fixed number of launch pairs.

What they show is the truth of a trial: launches of its clone that decided nothing, and in which nothing decided when to
stop. Rounds with and without the extra work in turns within one process would show too little: a round is slower also
where the one before it had extra work.

PLANTED_TRUTH names a file, {"benchmarks": [name, ...], "launch_pairs": number}.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf_tests.bench.session import session_of
from perf_tests.gate.samples import Rules

VARIABLE = "PLANTED_TRUTH"

LAUNCH_PAIRS = 20
"""Of which the mean is known to half a point where they scatter by 2 %, and that of fifty benchmarks to a tenth."""


@dataclass(frozen=True)
class Planted:
    benchmarks: frozenset[str]
    launch_pairs: int

    @classmethod
    def of_environment(cls) -> "Planted":
        values = json.loads(Path(os.environ[VARIABLE]).read_text())
        return cls(frozenset(values["benchmarks"]), values["launch_pairs"])


def rules(launch_pairs: int) -> Rules:
    """One stage without a look, after which no slowdown is suspected."""
    return Rules(first_look=None, second_share=0.0, screen_pairs=launch_pairs, screen_above=0.98, matters=0.99)


def pytest_configure(config: pytest.Config) -> None:
    session_of(config).gate_rules = rules(Planted.of_environment().launch_pairs)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    planted = Planted.of_environment().benchmarks
    if missing := planted.difference(item.name for item in items):
        raise pytest.UsageError(f"{', '.join(sorted(missing))} cannot be measured: there is no such benchmark.")
    items[:] = [item for item in items if item.name in planted]
