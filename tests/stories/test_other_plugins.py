"""Plugins that run benchmarks in another way, where they are installed: one sentence before anything is measured."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perf_tests.run.before import read_run_options
from tests.support.launch import ROOT


def config(argument: str, **options: object) -> Mock:
    known = SimpleNamespace(retry=False, resume=False, resume_any_driver=False, **options)
    stash = pytest.Stash()
    return Mock(
        option=known, args=[argument], invocation_params=Mock(dir=ROOT), stash=stash, getoption=lambda name: None
    )


@pytest.mark.parametrize(
    "options, words",
    [({"dist": "load"}, "drop -n"), ({"codspeed": True}, "pytest-codspeed replaces pytest-benchmark")],
    ids=["pytest-xdist", "pytest-codspeed"],
)
@pytest.mark.parametrize("argument", [".", "perf_tests", "perf_tests/test_forward.py::test_forward"])
def test_a_plugin_that_runs_benchmarks_in_another_way_is_refused(
    argument: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(pytest.UsageError, match=words):
        read_run_options(config(argument, **options))


@pytest.mark.parametrize("argument", ["numerics_tests", "tests", "tests/rules/test_gate.py"])
def test_tests_that_time_nothing_may_run_side_by_side(argument: str) -> None:
    read_run_options(config(argument, dist="load", codspeed=False))


def test_an_installed_plugin_that_is_not_asked_for_changes_nothing() -> None:
    read_run_options(config("perf_tests", dist="no", codspeed=False))
