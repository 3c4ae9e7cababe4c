"""A plugin with a measure of its own, in one file: it counts the rounds of each benchmark and prints them."""

from dataclasses import dataclass

import pytest

from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds
from perf_tests_suite.perf_tests.bench.session import session_of


@dataclass
class CountedMeasure(Measure):
    name: str

    def run_rounds(self, rounds: Rounds) -> None:
        played = 0
        for _ in range(3):
            rounds.run_round()
            played += 1
        print(f"{self.name}: {played} rounds")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session_of(session.config).other_measure = lambda item, workbench: CountedMeasure(item.name)
