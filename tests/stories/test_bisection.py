"""The search for the commit that made a case slower: git's part, with a fake gate that finds what a commit says."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perf_tests.__main__ import main
from perf_tests.bisect import FOLDERS, Asked, Found, RevisionsError, SearchError, found_json, found_lines, search
from perf_tests.gate.samples import End, Rules, SamplesFile
from perf_tests.gate.verdicts import next_step
from perf_tests.interleaved.sides import TreeError
from perf_tests.records.record import Json
from perf_tests.verbs import bisect
from tests.support import fake_gate
from tests.support.fake_sides import snapshot, workers_in
from tests.support.git_repository import git
from tests.support.launch import ROOT
from tests.support.simulated_launches import SimulatedCase, header, line

CASE = "perf_tests/test_attention.py::test_attention_forward[d16-seq64-fp32-naive]"
FAST, SLOW, FASTER, NOISY = "fast", "slow", "faster", "noisy"
RUNS = {
    FAST: SimulatedCase(CASE),
    SLOW: SimulatedCase(CASE, slowdown=0.1),
    FASTER: SimulatedCase(CASE, slowdown=-0.2),
    NOISY: SimulatedCase(CASE, pair_spread=0.3),
}
QUADRUPLES = 4
BROKEN: Json = {"cannot": "ImportError while loading conftest"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("FAKE_GATE_LOG", str(tmp_path / "asked.jsonl"))
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the gate writes of each of `RUNS`, to its last look."""
    paths = {}
    for name, case in RUNS.items():
        rules, draw = Rules(), np.random.default_rng(1)
        paths[name] = tmp_path_factory.mktemp("samples") / name
        file = SamplesFile(paths[name], header([case], rules))
        while (step := next_step(file.samples, rules)) is not None:
            file.append(line(draw, case, step.stage, len(file.samples.measurements), QUADRUPLES, False))
        file.append(End("finished").to_line())
        file.close()
    return paths


@pytest.fixture
def repository(tmp_path: Path, samples: dict[str, Path]) -> Path:
    """With the tag `good`; `runs` beside it holds the samples."""
    (tmp_path / "runs").mkdir()
    for name, path in samples.items():
        (tmp_path / "runs" / name).symlink_to(path)
    folder = tmp_path / "repository"
    for name in ("model", "perf_tests", "docs"):
        (folder / name).mkdir(parents=True)
    (folder / "perf_tests/measuring.py").write_text("of an old commit")
    git(folder, "init", "-q", "-b", "main")
    add(folder, FAST, "good")
    return folder


def add(folder: Path, behaviour: str | Json, name: str) -> str:
    """A commit, tagged with its subject, whose gate run is one of `RUNS` or something else."""
    if isinstance(behaviour, str):
        behaviour = {"samples": str(folder.parent / "runs" / behaviour)}
    (folder / "model/case.json").write_text(json.dumps({**behaviour, "name": name}))
    return committed(folder, name)


def committed(folder: Path, name: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", name)
    git(folder, "tag", name)
    return git(folder, "rev-parse", "HEAD")


def asked(good: str = "good", bad: str = "main") -> Asked:
    return Asked(good, bad, CASE, ("--head-dim=16",), minutes=3)


def found_in(repository: Path, good: str = "good", bad: str = "main") -> Found:
    return search(repository, asked(good, bad), lambda news: None, fake_gate.COMMAND)


def asked_of_the_gate(repository: Path) -> list[Json]:
    return [json.loads(line) for line in (repository.parent / "asked.jsonl").read_text().splitlines()]


def test_the_first_slower_commit_is_found_over_merges_and_commits_that_do_not_import(repository: Path) -> None:
    add(repository, FAST, "second")
    git(repository, "checkout", "-q", "-b", "side")
    for name in ("broken", "broken-too"):
        add(repository, BROKEN, name)
    culprit = add(repository, FAST, "mended") and add(repository, SLOW, "slow")
    git(repository, "checkout", "-q", "main")
    (repository / "docs/page.md").touch()
    committed(repository, "page")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
    add(repository, SLOW, "later")
    found = found_in(repository)
    assert found.suspects == [culprit]
    lines = found_lines(found, asked())
    assert lines[-1].startswith(f"{culprit[:12]} is the first commit that is slower than good (")
    assert lines[-1].endswith("at 95 %, 6 launch pairs): slow")
    assert json.loads(json.dumps(found_json(found, asked())))["suspects"] == [culprit]
    assert bisect.exit_code(found) == 1


def test_the_repository_is_left_as_it_was_and_measures_every_commit_with_its_own_benchmarks(
    repository: Path, temporary: Path
) -> None:
    culprit = add(repository, SLOW, "slow")
    add(repository, SLOW, "later")
    git(repository, "bisect", "start", "main", "good")
    (repository / "model/case.json").write_text("stashed")
    git(repository, "stash")
    (repository / "perf_tests/measuring.py").write_text("changed")
    git(repository, "add", "--all")
    (repository / "perf_tests/measuring.py").write_text("of the working tree")
    (repository / "untracked").touch()
    before = snapshot(repository)
    assert found_in(repository).suspects == [culprit]
    assert snapshot(repository) == before
    assert [path for path in temporary.iterdir() if path.is_dir()] == []
    runs = asked_of_the_gate(repository)
    assert {run["by"] for run in runs} == {"of the working tree"}
    assert all(
        {CASE, "--head-dim=16", f"--against={git(repository, 'rev-parse', 'good')}"} <= {*run["words"]} for run in runs
    )


def test_commits_that_cannot_be_judged_leave_several_suspects(repository: Path) -> None:
    broken, slow = add(repository, BROKEN, "broken"), add(repository, SLOW, "slow")
    found = found_in(repository)
    assert found.suspects == [slow, broken]
    assert [step.state for step in found.steps] == ["slower", "absent"]
    assert found_lines(found, asked())[-1].startswith("One of 2 commits made attention_forward")
    assert bisect.exit_code(found) == 1


def test_a_commit_that_changes_no_code_takes_the_verdict_of_the_same_code(repository: Path) -> None:
    for page in ("a", "b", "c"):
        (repository / f"docs/{page}.md").touch()
        committed(repository, page)
    slow = add(repository, SLOW, "slow")
    found = found_in(repository)
    assert found.suspects == [slow]
    assert {run["commit"] for run in asked_of_the_gate(repository)} == {slow}
    same = found_in(repository, bad="c")
    good = git(repository, "rev-parse", "good")[:12]
    assert bisect.exit_code(same) == 0
    assert f": the same code as {good}; there is nothing to search." in found_lines(same, asked())[-1]


@pytest.mark.parametrize(
    "behaviour, state, exit_code, words",
    [
        (FAST, "not slower", 0, "there is nothing to search"),
        (FASTER, "not slower", 0, "is not slower than GOOD good"),
        ({"cannot": "not found: such a case"}, "absent", 2, "d16-seq64-fp32-naive: not found: such a case."),
    ],
)
def test_without_a_slowdown_at_bad_nothing_is_searched(
    behaviour: str | Json, state: str, exit_code: int, words: str, repository: Path
) -> None:
    add(repository, SLOW, "between")
    add(repository, behaviour, "bad")
    found = found_in(repository)
    assert [step.state for step in found.steps] == [state]
    assert bisect.exit_code(found) == exit_code
    assert words in found_lines(found, asked())[-1]


def test_an_undecided_commit_is_measured_once_more_for_twice_as_long(repository: Path) -> None:
    add(repository, NOISY, "bad")
    found = found_in(repository)
    (step,) = found.steps
    assert (step.state, bisect.exit_code(found)) == ("undecided", 3)
    assert found_lines(found, asked())[-1].endswith("give it more --gate-minutes.")
    minutes = [word for run in asked_of_the_gate(repository) for word in run["words"] if "minutes" in word]
    assert minutes == ["--gate-minutes=3", "--gate-minutes=6"]
    assert step.launch_pairs == 2 * (Rules().screen_pairs + Rules().confirm_looks[-1])


def test_what_no_commit_is_to_blame_for_ends_the_search_in_a_sentence(repository: Path) -> None:
    add(repository, {"refuses": "Another gate, process 7, is measuring"}, "bad")
    with pytest.raises(SearchError, match=r"^The search stopped at .*: Another gate, process 7, is measuring\.$"):
        found_in(repository)


def test_a_search_whose_step_is_killed_blames_no_commit(repository: Path) -> None:
    for name in ("one", "two", "three"):
        add(repository, {"kills": True}, name)
    add(repository, SLOW, "bad")
    with pytest.raises(SearchError, match=r"^git bisect ended before its last commit: "):
        found_in(repository)


def test_revisions_between_which_there_is_nothing_to_search_are_told(repository: Path) -> None:
    add(repository, FAST, "second")
    git(repository, "checkout", "-q", "-b", "side", "good")
    add(repository, FAST, "other")
    for good, bad, words in (
        ("main", "good", "exchanged: BAD is older"),
        ("main", "second", "are one commit"),
        (
            "main",
            "side",
            f"two branches; give a GOOD that BAD contains, such as {git(repository, 'rev-parse', 'good')[:12]}",
        ),
    ):
        with pytest.raises(RevisionsError, match=words):
            found_in(repository, good, bad)
    for unknown in ("nothing", ""):
        with pytest.raises(TreeError, match=r"^bisect \S+ names no revision of this repository"):
            found_in(repository, unknown)


def test_a_killed_search_ends_with_its_gate_and_the_next_one_removes_what_it_left(
    repository: Path, temporary: Path
) -> None:
    add(repository, {"hangs": True}, "bad")
    program = (
        "import sys; from pathlib import Path; from perf_tests.bisect import *; "
        "from tests.support import fake_gate; "
        f"search(Path({str(repository)!r}), Asked('good', 'main', {CASE!r}, (), 1), print, fake_gate.COMMAND)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    wait_until(lambda: (repository.parent / "asked.jsonl").exists())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not workers_in(temporary))
    assert len(list(temporary.glob(f"{FOLDERS}*"))) == 1
    with pytest.raises(RevisionsError):
        found_in(repository, "main", "good")
    assert list(temporary.glob(f"{FOLDERS}*")) == []


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120  # beside others on a busy machine; a hang alone reaches it
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    "words",
    [
        "HEAD HEAD --case nothing",
        "HEAD HEAD --case=",
        "HEAD HEAD --case perf_tests/test_attention.py",
        f"HEAD HEAD --case {CASE} --gate-minutes 0",
        f"nothing-of-the-kind HEAD --case {CASE}",
        f"HEAD HEAD --case {CASE}",
    ],
)
def test_what_cannot_be_searched_is_one_sentence_and_a_usage_error(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
