"""What a launch leaves, shows and chooses, wherever and however it is started."""

import os
import pty
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.forked_python import forked_python
from tests.support.git_repository import git, make_repository
from tests.support.launch import (
    ROOT,
    SMALL,
    Launch,
    finish,
    inherited,
    launch,
    launch_all,
    record_files,
    short,
    start_command,
    suite,
)

ONE_CASE = ("--phase=forward", "-k=not attention")


@pytest.fixture(scope="module")
def from_below(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Started in a folder below the root, with no storage named and every cache as it comes."""
    plugin = ("-p", "tests.support.quick_ceiling")
    command = (sys.executable, "-m", "pytest", "..", *plugin, *SMALL, *ONE_CASE)
    checkout = make_repository(tmp_path_factory.mktemp("checkout"))
    process = start_command(command, cwd=checkout / "perf_tests" / "records", root=checkout)
    return finish(process, checkout / ".benchmarks")


def test_the_record_goes_to_the_repository_root_and_leaves_the_checkout_clean(from_below: Launch) -> None:
    assert from_below.exit_code == 0, from_below.output + from_below.errors
    assert from_below.measured.keys() == {"test_forward[tiny-ctx8-fp32-naive]"}
    assert not (from_below.storage.parent / "perf_tests" / "records" / ".benchmarks").exists()
    assert git(from_below.storage.parent, "status", "--porcelain") == ""


def test_a_record_names_the_commit_it_measured(from_below: Launch) -> None:
    commit = git(from_below.storage.parent, "rev-parse", "HEAD")
    assert from_below.record["commit_info"]["id"] == commit
    assert from_below.record["commit_info"]["dirty"] is False
    assert [path.name for path in record_files(from_below.storage)] == [f"0001_{commit[:12]}.json"]


@pytest.mark.parametrize("package", ["perf_tests", "perf_tests.test_forward"])
def test_a_package_named_in_another_folder_is_refused_with_what_to_type(package: str, tmp_path: Path) -> None:
    """pytest reads the suite's options only where it is told the folder."""
    command = (forked_python(), "-m", "pytest", "--pyargs", package)
    refused = finish(start_command(command, cwd=tmp_path), tmp_path)
    assert refused.exit_code == 4
    assert f"instead of --pyargs type the folder, `pytest {ROOT / 'perf_tests'}`" in refused.errors
    assert list(tmp_path.rglob("*.json*")) == []


def test_benchmarks_that_are_disabled_run_and_write_nothing(tmp_path: Path) -> None:
    disabled = launch(tmp_path / "storage", *ONE_CASE, "--benchmark-disable")
    assert disabled.exit_code == 0
    assert "1 passed" in disabled.output
    assert [path for path in disabled.storage.rglob("*") if path.is_file()] == []


REVERSED = "tests.support.reversed_items"


@pytest.fixture(scope="module")
def collections() -> list[list[str]]:
    """The cases of one grid in the order of collection, asked for in four ways."""
    files = [f"perf_tests/{name}.py" for name in ("test_forward", "test_backward", "test_full_step", "test_attention")]
    asked = [
        (*files, "--size=tiny,small", "--context=8,16", "--precision=fp32,bf16"),
        (*reversed(files), "--size=small,tiny", "--context=16,8", "--precision=bf16,fp32"),
        ("perf_tests", "--size=small,tiny,small", "--context=16,8,16", "--precision=bf16,fp32"),
        (*files, "--size=tiny,small", "--context=8,16", "--precision=fp32,bf16", "-p", REVERSED),
    ]
    collect = ("--phase=all", "--collect-only", "-q", "-p", "no:cacheprovider")
    ends = launch_all([*arguments, *collect] for arguments in asked)
    return [[line for line in output.splitlines() if "::" in line] for _, output, _ in ends]


def test_a_grid_has_one_order_however_it_is_asked_for(collections: list[list[str]]) -> None:
    first, *others = collections
    assert len(first) >= 48
    assert others == [first, first, first]


def test_cases_that_share_a_model_stand_side_by_side(collections: list[list[str]]) -> None:
    names = [short(case) for case in collections[0] if "attention_" not in case]
    models = ["-".join(name.partition("[")[2].split("-")[:2]) for name in names]
    changes = sum(here != there for here, there in pairwise(models))
    assert changes == len(set(models)) - 1


def watched(storage: Path, **environment: str) -> str:
    """What appears on the terminal of a person who watches."""
    terminal, inside = pty.openpty()
    variables = inherited(TERM="xterm", **environment)
    command = suite(storage, "--phase=forward")
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=inside, stderr=inside)
    os.close(inside)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # every writer has gone
            break
    os.close(terminal)
    assert process.wait() == 0
    return shown.decode()


def test_a_person_who_watches_sees_the_case_the_round_and_the_time_left(tmp_path: Path) -> None:
    shown = watched(tmp_path)
    assert "\rcase 1 of 2  warm-up 1 of 1  test_forward[tiny-ctx8-fp32-naive]" in shown
    assert "\rcase 1 of 2  round 2 of 2  test_forward[tiny-ctx8-fp32-naive]" in shown
    assert re.search(r"\rcase 2 of 2  about \d+ s left  round 2 of 2  test_attention", shown)


def test_a_log_of_continuous_integration_shows_no_progress(tmp_path: Path) -> None:
    shown = watched(tmp_path, CI="true")
    assert "2 passed" in shown
    assert "round 2 of 2" not in shown
