"""Cases that an option or pytest's cache left out are not gone, and a resumed run keeps the cases of its beginning."""

from pathlib import Path

import pytest

from tests.support.launch import MODELS, Launch, copied, finish, start_command, suite

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
