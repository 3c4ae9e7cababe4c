"""pytest inside a worker: a plugin that hands in the run's settings and another measure, and notes what comes of it."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import pytest

from perf_tests.bench.outcomes import outcome_of_report
from perf_tests.bench.stash import OTHER_MEASURE, OUTCOME, SETTINGS
from perf_tests.bench.workbench import Workbench
from perf_tests.measures.rounds import Measure
from perf_tests.options import Settings
from perf_tests.records.record import Json
from perf_tests.workers.channel import Channel

_ARGUMENTS = (
    "--quiet",
    "--benchmark-disable",
    *("-p", "no:cacheprovider"),
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    *("-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


def channel_to_the_suite() -> Channel:
    """Of a process that was started as `python -m MODULE READ WRITE`."""
    return Channel(int(sys.argv[1]), int(sys.argv[2]))


@dataclass(eq=False)  # pytest keeps its plugins in sets
class WorkerPlugin(ABC):
    """Runs benchmarks as pytest runs them, but under a measure of its own."""

    settings: Settings
    outcome: Json | None = None
    """What took the place of the rounds of the case at hand, if anything did."""
    trouble: str = ""
    """Why pytest collected nothing or stopped, in its own words."""

    @abstractmethod
    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        """What the benchmark of `item` is to call with its rounds."""

    def run(self, selection: Sequence[str]) -> None:
        """Run the files or node ids of `selection`."""
        pytest.main([*_ARGUMENTS, *selection], plugins=[self])

    def stopped(self, reason: str) -> None:
        """pytest was told to exit: what --model names is no language model."""
        self.outcome = {"outcome": "error", "reason": reason}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        make: Callable[[pytest.Item, Workbench], Measure] = self.measure
        session.config.stash[SETTINGS] = self.settings
        session.config.stash[OTHER_MEASURE] = make

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble = report.longreprtext.strip().splitlines()[-1]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """`pytest.exit` comes here too."""
        self.stopped(str(excinfo.value))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            self.outcome = dict(vars(item.stash.get(OUTCOME, None) or outcome_of_report(report)))
        return report
