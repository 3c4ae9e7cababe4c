"""What a launch leaves, shows and chooses, wherever and however it is started. Eight processes."""

import os
import pty
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.git_repository import git
from tests.support.launch import MODELS, ROOT, SMALL, Launch, finish, inherited, launch_all, short, start_command, suite


def test_a_record_of_the_commit_goes_to_the_repository_root_from_a_folder_below(clone: Path) -> None:
    """With no storage named and every cache as it comes."""
    command = (sys.executable, "-m", "pytest", "..", "-p", "tests.support.quick_ceiling", *SMALL, "--phase=forward")
    process = start_command((*command, "-k=not attention"), cwd=clone / "perf_tests" / "records", root=clone)
    ended = finish(process, clone / ".benchmarks", exits=0)
    assert ended.measured.keys() == {"test_forward[tiny-ctx8-fp32-naive]"}
    commit = git(clone, "rev-parse", "HEAD")
    assert (ended.record["commit_info"]["id"], ended.record["commit_info"]["dirty"]) == (commit, False)
    assert [path.name for path in ended.paths] == [f"0001_{commit[:12]}.json"]
    assert git(clone, "status", "--porcelain") == "", "the checkout stays clean"
    beside = "measures on this machine at the same time"  # other tests, each named once
    lines = [line for line in ended.output.splitlines() if line.strip() and beside not in line]
    assert len(lines) <= 10 + len(ended.measured), ended.output
    assert not any(words in ended.output for words in ("====", "----", "plugins: ", "collected")), "pytest's own words"
    assert lines[-1].startswith("1 case measured, 0 failed, ")


def test_a_package_named_in_another_folder_is_refused_with_what_to_type(tmp_path: Path) -> None:
    """pytest reads the suite's options only where it is told the folder."""
    for code, _, errors in launch_all(
        [["--pyargs", "perf_tests"], ["--pyargs", "perf_tests_suite.perf_tests.test_forward"]], tmp_path
    ):
        assert code == 4
        assert f"instead of --pyargs type the folder, `pytest {ROOT / 'perf_tests'}`" in errors
    assert list(tmp_path.rglob("*.json*")) == []


def test_a_grid_has_one_order_however_it_is_asked_for_with_the_cases_of_a_model_side_by_side() -> None:
    files = [f"perf_tests/{name}.py" for name in ("test_forward", "test_backward", "test_full_step", "test_attention")]
    first, *others = launch_all(
        [*asked, "--phase=all", "--collect-only", "-q", "-p", "no:cacheprovider"]
        for asked in (
            (*files, "--size=tiny,small", "--context=8,16", "--precision=fp32,bf16"),
            (*reversed(files), "--size=small,tiny", "--context=16,8", "--precision=bf16,fp32"),
            ("perf_tests", "--size=small,tiny,small", "--context=16,8,16", "--precision=bf16,fp32"),
            (*files, "--size=tiny,small", "--context=8,16", "--precision=fp32,bf16", "-ptests.support.reversed_items"),
        )
    )
    listed, *again = ([line for line in output.splitlines() if "::" in line] for _, output, _ in (first, *others))
    assert len(listed) >= 48
    assert again == [listed] * 3
    names = [short(case) for case in listed if "attention_" not in case]
    models = ["-".join(name.partition("[")[2].split("-")[:2]) for name in names]
    assert sum(here != there for here, there in pairwise(models)) == len(set(models)) - 1


def test_a_person_who_watches_sees_the_case_the_round_and_the_time_left(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    command = suite(tmp_path, "--phase=forward")
    process = subprocess.Popen(command, cwd=ROOT, env=inherited(TERM="xterm"), stdout=inside, stderr=inside)
    os.close(inside)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # every writer has gone
            break
    os.close(terminal)
    assert process.wait() == 0
    for line in (
        r"\rcase 1 of 2  warm-up 1 of 1  test_forward\[tiny-ctx8-fp32-naive\]",
        r"\rcase 1 of 2  round 2 of 2  test_forward\[tiny-ctx8-fp32-naive\]",
        r"\rcase 2 of 2  about \d+ s left  round 2 of 2  test_attention",
    ):
        assert re.search(line, shown.decode())


# Cases that pytest's cache leaves out.


HEALTHY, FAILS_AT_16 = f"--model={MODELS}:Healthy", f"--model={MODELS}:FailsWithoutGraph"


def launch_with_cache(storage: Path, cache: Path, *arguments: str, exits: int | None = None) -> Launch:
    axes = ("--context=8,16,24", "--phase=inference", "-o", f"cache_dir={cache}")
    words = list(suite(storage, *axes, *arguments))
    place = words.index("no:cacheprovider")
    del words[place - 1 : place + 1]
    return finish(start_command(words), storage, exits)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stopped(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A run stopped at the second of three cases, after a record of all three."""
    storage = tmp_path_factory.mktemp("stepwise")
    launch_with_cache(storage, cache, HEALTHY, exits=0)
    return launch_with_cache(storage, cache, FAILS_AT_16, "--stepwise", exits=2)


def test_a_case_that_stepwise_passes_over_is_not_gone(stopped: Launch, cache: Path, tmp_path: Path) -> None:
    assert "Incomplete: 2 of 3 cases are kept" in stopped.output
    options = ("--stepwise", "--benchmark-compare=0001")
    rest = launch_with_cache(stopped.copied(tmp_path), cache, HEALTHY, *options, exits=0)
    assert "1 case of these axes not selected, so not reported as missing." in rest.output


def test_a_resumed_run_has_the_cases_of_its_beginning(stopped: Launch, cache: Path, tmp_path: Path) -> None:
    """Which --last-failed and --stepwise would now choose others than."""
    (command,) = (line for line in stopped.output.splitlines() if "resume with `" in line)
    assert "--stepwise --resume`" in command
    resumed = launch_with_cache(stopped.copied(tmp_path), cache, FAILS_AT_16, "--stepwise", "--lf", "--resume")
    assert ": 2 of 3 cases were done." in resumed.output
    assert resumed.journals == []
    assert sum(len(resumed.records[1][rows]) for rows in ("benchmarks", "outcomes")) == 3
