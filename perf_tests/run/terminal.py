"""Where a run shows its progress, and how long it will take."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from perf_tests.bench.progress import Line, Log
from perf_tests.bench.stash import WORKBENCH
from perf_tests.run.pace import announcement


def terminal_line(config: pytest.Config) -> Line | None:
    """The line that shows progress; None where the output is no terminal."""
    is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    reporter, uncaptured = _output(config)
    return None if reporter is None or not is_terminal or os.environ.get("CI") else Line(reporter, uncaptured)


def log(config: pytest.Config) -> Log | None:
    reporter, uncaptured = _output(config)
    return None if reporter is None else Log(reporter, uncaptured)


def _output(config: pytest.Config) -> tuple[pytest.TerminalReporter | None, Callable[[], AbstractContextManager[None]]]:
    """Pytest's, and what switches its capture off."""
    capture = config.pluginmanager.getplugin("capturemanager")
    uncaptured = nullcontext if capture is None else capture.global_and_fixture_disabled
    return config.pluginmanager.getplugin("terminalreporter"), uncaptured


def how_long(config: pytest.Config) -> list[str]:
    """Before the first case of a run that measures, how long it will take here."""
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is None or workbench.session is None or not workbench.session.progress.predicted_seconds:
        return []
    return [announcement(workbench.session.progress.predicted_seconds, workbench.device)]
