"""A plugin with a way of looking of its own, in one file: it counts the rounds of each benchmark and prints them."""

from dataclasses import dataclass

import pytest

from perf_tests.bench.loop import Measure, Rounds
from perf_tests.bench.workbench import OTHER_MEASURE


@dataclass
class CountedMeasure(Measure):
    name: str

    def look(self, rounds: Rounds) -> None:
        played = 0
        for _ in range(3):
            rounds.play()
            played += 1
        print(f"{self.name}: {played} rounds")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[OTHER_MEASURE] = lambda item, workbench: CountedMeasure(item.name)
