"""Cases that an option or pytest's cache left out are not gone, and a resumed run keeps the cases of its beginning."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests import plugin
from perf_tests.run.before import is_restricted
from tests.support.items import stash_of
from tests.support.launch import MODELS, ROOT, Launch, copied, finish, start_command, suite

INFERENCE = ("--context=8,16,24", "--phase=inference")
HEALTHY, FAILS_AT_16 = f"--model={MODELS}:Healthy", f"--model={MODELS}:FailsWithoutGraph"


def launch_with_cache(storage: Path, cache: Path, *arguments: str) -> Launch:
    words = list(suite(storage, *INFERENCE, "-o", f"cache_dir={cache}", *arguments))
    place = words.index("no:cacheprovider")
    del words[place - 1 : place + 1]
    return finish(start_command(words), storage)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stopped(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """At the second of three cases, after a record of all three."""
    storage = tmp_path_factory.mktemp("stepwise")
    assert launch_with_cache(storage, cache, HEALTHY).exit_code == 0
    return launch_with_cache(storage, cache, FAILS_AT_16, "--stepwise")


def test_a_case_that_stepwise_passes_over_is_not_gone(stopped: Launch, cache: Path, tmp_path: Path) -> None:
    assert stopped.exit_code == 2
    assert "Incomplete: 2 of 3 cases are kept" in stopped.output
    rest = launch_with_cache(copied(stopped, tmp_path), cache, HEALTHY, "--stepwise", "--benchmark-compare=0001")
    assert rest.exit_code == 0
    assert "1 deselected" in rest.output
    assert "Not selected, so not counted as gone: 1 case of these axes." in rest.output


def test_a_resumed_run_has_the_cases_of_its_beginning(stopped: Launch, cache: Path, tmp_path: Path) -> None:
    """Which --last-failed and --stepwise would now choose others than."""
    (command,) = (line for line in stopped.output.splitlines() if "resume with `" in line)
    assert "--stepwise --resume`" in command
    for option in ("--stepwise", "--lf"):
        resumed = launch_with_cache(copied(stopped, tmp_path / option), cache, FAILS_AT_16, option, "--resume")
        assert "Resumed" in resumed.output
        assert ": 2 of 3 cases were done." in resumed.output
        assert resumed.journals == []
        assert sum(len(resumed.records[1][rows]) for rows in ("benchmarks", "outcomes")) == 3


def config(*arguments: str, **options: object) -> Any:
    known = {"keyword": "", "markexpr": "", "deselect": None, "ignore": None, "ignore_glob": None, **options}
    place = Mock(dir=ROOT)
    return Mock(option=SimpleNamespace(**known), args=list(arguments), invocation_params=place, stash=stash_of())


@pytest.mark.parametrize(
    "options",
    [{"keyword": "x"}, {"markexpr": "x"}, {"deselect": ["x"]}, {"lf": True}, {"ignore": ["x"]}, {"ignore_glob": ["*"]}],
    ids=lambda options: next(iter(options)),
)
def test_what_chooses_among_the_cases_of_the_axes_restricts_a_run(options: dict[str, object]) -> None:
    assert not is_restricted(config("perf_tests"))
    assert is_restricted(config("perf_tests", **options))


def test_a_plugin_that_deselects_restricts_a_run() -> None:
    chosen = config("perf_tests")
    plugin.pytest_deselected([])
    assert not is_restricted(chosen)
    plugin.pytest_deselected([Mock(config=chosen)])
    assert is_restricted(chosen)


@pytest.mark.parametrize("argument", ["perf_tests/test_forward.py", "perf_tests::test_forward", "numerics_tests"])
def test_a_file_or_a_test_restricts_a_run_and_a_folder_above_does_not(argument: str) -> None:
    assert is_restricted(config(argument))
    assert not is_restricted(config("."))
