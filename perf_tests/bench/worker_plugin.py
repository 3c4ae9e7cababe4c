"""Benchmarks inside a worker: the run's settings as plain JSON, and a pytest plugin with another measure."""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.bench.loop import Measure
from perf_tests_suite.perf_tests.bench.outcomes import Outcome, outcome_of_report
from perf_tests_suite.perf_tests.bench.session import benchmark_of, is_benchmark, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.cases.options import EXECUTIONS, SHAPE
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.hardware.bound import bind
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.given import is_configuration, is_user_function
from perf_tests_suite.perf_tests.user_code.named import absolute, check_name, names_code, why_not_there

# A run's settings as plain JSON, sent to a worker and received there.


def sent(settings: Settings) -> Json:
    """Return them without passes, ranges and shares: a worker runs what it is given, under one measure."""
    return asdict(replace(settings, passes=(), memory_snapshot=False, nvtx=False))


def sent_elsewhere(settings: Settings) -> Json:
    """Return the same for a worker that runs elsewhere than the user typed."""
    return sent(
        replace(
            settings,
            model=None if settings.model is None else absolute(settings.model),
            optimizer=absolute(settings.optimizer),
            attentions=tuple(map(absolute, settings.attentions)),
            attention_alone_implementations=tuple(map(absolute, settings.attention_alone_implementations)),
        )
    )


def received(values: Json) -> Settings:
    """Read them without the values that this tree does not know or hold, so that their cases are not collected."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, known in (
        ("precisions", PRECISIONS),
        ("attention_alone_precisions", PRECISIONS),
        ("executions", EXECUTIONS),
    ):
        fields[name] = tuple(value for value in fields[name] if value in known)
    for name in ("attentions", "attention_alone_implementations"):
        fields[name] = tuple(value for value in fields[name] if value == "own" or _is_here(value))
    if not is_configuration(fields["model"] or ""):
        fields["sizes"] = tuple(size for size in fields["sizes"] if size in SIZES or SHAPE.fullmatch(size))
    return Settings(**fields)


def _is_here(attention: str) -> bool:
    """Whether this tree has it: an older base lacks a file that head added."""
    if not is_user_function(attention):
        return attention in ATTENTION
    if why_not_there(attention) is not None:
        return False
    with suppress(ValueError):
        check_name("--attention", attention)
        return True
    return False


# pytest inside a worker: a plugin that sets the run's settings and another measure, and notes what ended a case.


_ARGUMENTS = (
    "--quiet",
    "--benchmark-disable",
    *("-p", "no:cacheprovider"),
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    *("-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(eq=False)  # pytest keeps its plugins in sets
class WorkerPlugin:
    """Runs benchmarks as pytest runs them, under another measure."""

    settings: Settings
    make: Callable[[pytest.Item, Workbench], Measure] | None = None
    """A maker of what a benchmark calls with its rounds, where `measure` is not overridden."""
    made: Measure | None = None
    outcome: Json | None = None
    """Why the current case has no rounds; None while it has."""
    trouble: str = ""
    """Why pytest could not collect, in its own words."""

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        """Return what the benchmark of `item` calls with its rounds."""
        assert self.make is not None
        self.made = self.make(item, workbench)
        return self.made

    def run(self, files_or_ids: Sequence[str]) -> None:
        pytest.main([*_ARGUMENTS, *files_or_ids], plugins=[self])

    def stopped(self, reason: str) -> None:
        """`pytest.exit` was called, for example because --model names no language model."""
        self.outcome = asdict(Outcome("error", reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        suite = session_of(session.config)
        suite.settings, suite.other_measure = self.settings, self.measure
        of_attention = (*self.settings.attentions, *self.settings.attention_alone_implementations)
        if names_code((self.settings.model, self.settings.optimizer, *of_attention)):
            bind()

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

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep what a hook raised, for example because the model of base cannot be imported."""
        self.trouble = str(excinfo.value).partition("\n")[0]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End the worker; called for `pytest.exit` too."""
        self.stopped(str(excinfo.value))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            known = benchmark_of(item).outcome if is_benchmark(item) else None
            self.outcome = asdict(known or outcome_of_report(report))
        return report


def examined(task: Json, make: Callable[[pytest.Item, Workbench], Measure]) -> Json | None:
    """Run the task's benchmark under a measure of one's own.

    Returns the `values` of the measure, or an `outcome`; None where pytest did not run it.
    """
    plugin = WorkerPlugin(received(task["settings"]), make)
    plugin.run([task["benchmark"]])
    if plugin.outcome is None and plugin.trouble:
        plugin.stopped(plugin.trouble)
    if plugin.outcome is not None:
        return {"outcome": plugin.outcome}
    return {"values": plugin.made.values} if plugin.made is not None and plugin.made.values else None
