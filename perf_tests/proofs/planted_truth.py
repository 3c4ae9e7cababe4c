"""A pytest plugin that measures what planted extra work takes in fact, as a share of a round's time.

The file that PLANTED_TRUTH names holds the planted benchmarks, and in the end their shares. Each of them plays its
rounds with the extra work and without it, in turns within one process, by CPU time and apart from any gate.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf_tests.bench.stash import OTHER_MEASURE
from perf_tests.instruments.clock import Clock
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.proofs.paired_ratio import FEWEST_PAIRS, paired_ratio_of_turns
from perf_tests.records.record import Json

WARMUP_TURNS = 3
MOST_TURNS = 1000
SECONDS = 5.0
"""Of one benchmark; a step of 15 ms is played 80 times with and without."""

SHARES = pytest.StashKey[Json]()


@dataclass
class TurnsMeasure(Measure):
    """Rounds with, without, without, with extra work."""

    item: pytest.Item
    clock: Clock

    def look(self, rounds: Rounds) -> None:
        for _ in range(WARMUP_TURNS):
            self._turn(rounds)
        self.clock.forget()
        start, turns = time.perf_counter(), 0
        while turns < FEWEST_PAIRS or (turns < MOST_TURNS and time.perf_counter() - start < SECONDS):
            self._turn(rounds)
            turns += 1
        self.item.config.stash[SHARES][self.item.name] = share_of(self.clock.cpu_seconds)

    def _turn(self, rounds: Rounds) -> None:
        extra_work = sys.modules["model.extra_work"]
        for is_on in (True, False, False, True):
            extra_work.is_on = is_on  # type: ignore[attr-defined]
            rounds.play(around_target=self.clock.round)


def share_of(seconds: Sequence[float]) -> float:
    """Of rounds in turns: with, without, without, with."""
    with_it = [value for turn in zip(seconds[::4], seconds[3::4], strict=True) for value in turn]
    without = [value for turn in zip(seconds[1::4], seconds[2::4], strict=True) for value in turn]
    return paired_ratio_of_turns(with_it, without).ratio - 1


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SHARES] = {}
    session.config.stash[OTHER_MEASURE] = lambda item, workbench: TurnsMeasure(item, workbench.clock)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    planted = json.loads(_file().read_text())
    items[:] = [item for item in items if item.name in planted]


def pytest_sessionfinish(session: pytest.Session) -> None:
    _file().write_text(json.dumps(session.config.stash[SHARES]))


def _file() -> Path:
    return Path(os.environ["PLANTED_TRUTH"])
