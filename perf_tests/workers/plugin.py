"""pytest inside a worker: a plugin that sets the run's settings and another measure, and notes what ended a case."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass

import pytest

from perf_tests.bench.outcomes import Outcome, outcome_of_report
from perf_tests.bench.stash import OTHER_MEASURE, OUTCOME, SETTINGS
from perf_tests.bench.workbench import Workbench
from perf_tests.measures.rounds import Measure
from perf_tests.options.settings import Settings
from perf_tests.records.record import Json
from perf_tests.workers.settings import received

_ARGUMENTS = (
    "--quiet",
    "--benchmark-disable",
    *("-p", "no:cacheprovider"),
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    *("-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(eq=False)  # pytest keeps its plugins in sets
class WorkerPlugin(ABC):
    """Runs benchmarks as pytest runs them, under another measure."""

    settings: Settings
    outcome: Json | None = None
    """Why the current case has no rounds; None while it has."""
    trouble: str = ""
    """Why pytest could not collect, in its own words."""

    @abstractmethod
    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        """What the benchmark of `item` calls with its rounds."""

    def run(self, files_or_ids: Sequence[str]) -> None:
        pytest.main([*_ARGUMENTS, *files_or_ids], plugins=[self])

    def stopped(self, reason: str) -> None:
        """`pytest.exit` was called, for example because --model names no language model."""
        self.outcome = asdict(Outcome("error", reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[SETTINGS] = self.settings
        session.config.stash[OTHER_MEASURE] = self.measure

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Keep why nothing is measured, for example because the device cannot be used."""
        try:
            return (yield)
        except pytest.UsageError as error:
            self.trouble = str(error).partition("\n")[0]
            raise

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble = report.longreprtext.strip().splitlines()[-1]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Called for `pytest.exit` too."""
        self.stopped(str(excinfo.value))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            self.outcome = asdict(item.stash.get(OUTCOME, None) or outcome_of_report(report))
        return report


@dataclass(eq=False, kw_only=True)
class _OneBenchmark(WorkerPlugin):
    make: Callable[[pytest.Item, Workbench], Measure]
    made: Measure | None = None

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        self.made = self.make(item, workbench)
        return self.made


def examined(task: Json, make: Callable[[pytest.Item, Workbench], Measure]) -> Json | None:
    """The `values` of the measure of the task's benchmark, or an `outcome`; None where pytest did not run it."""
    plugin = _OneBenchmark(settings=received(task["settings"]), make=make)
    plugin.run([task["benchmark"]])
    if plugin.outcome is None and plugin.trouble:
        plugin.stopped(plugin.trouble)
    if plugin.outcome is not None:
        return {"outcome": plugin.outcome}
    return {"values": plugin.made.values} if plugin.made is not None and plugin.made.values else None
