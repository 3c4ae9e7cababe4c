"""The search for the commit that made a case slower: git's part, with a fake gate that finds what a commit says."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from perf_tests import bisect
from perf_tests.bisect import FOLDERS, Asked, Found, RevisionsError, SearchError, found_json, found_lines, search
from perf_tests.gate.samples import Rules
from perf_tests.interleaved.sides import TreeError
from perf_tests.records.record import Json
from tests.support import fake_gate
from tests.support.fake_sides import snapshot, workers_in
from tests.support.git_repository import git
from tests.support.launch import ROOT, until
from tests.support.simulated_launches import SimulatedCase, gate_run

CASE = "perf_tests/test_attention.py::test_attention_forward[d16-seq64-fp32-naive]"
FAST, SLOW, FASTER, NOISY, SAME = "fast", "slow", "faster", "noisy", "same"
RUNS: dict[str, dict[str, float]] = {
    FAST: {}, SLOW: {"slowdown": 0.1}, FASTER: {"slowdown": -0.2}, NOISY: {"pair_spread": 0.3}
}  # fmt: skip
BROKEN: Json = {"cannot": "ImportError while loading conftest"}
ASKED = Asked("good", "main", CASE, ("--head-dim=16",), minutes=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the gate writes of each of `RUNS`, to its last look."""
    folder = tmp_path_factory.mktemp("runs")
    for name, facts in RUNS.items():
        gate_run([SimulatedCase(CASE, **facts)], quadruples=4, path=folder / name)
    header, *_ = (folder / FAST).read_text().splitlines()
    events: list[Json] = [{"event": "same", "case": CASE}, {"event": "end", "reason": "finished"}]
    (folder / SAME).write_text("\n".join([header, *map(json.dumps, events)]) + "\n")
    return folder


@pytest.fixture
def repository(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the tag `good`; temporary folders lie in `tmp` beside it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name, value in (("TMPDIR", tmp_path / "tmp"), ("FAKE_GATE_LOG", tmp_path / "asked.jsonl"), ("RUNS", runs)):
        monkeypatch.setenv(name, str(value))
    folder = tmp_path / "repository"
    for name in ("model", "perf_tests", "docs"):
        (folder / name).mkdir(parents=True)
    (folder / "perf_tests/measuring.py").write_text("of an old commit")
    git(folder, "init", "-q", "-b", "main")
    add(folder, FAST, "good")
    return folder


def add(folder: Path, behaviour: str | Json | None, name: str) -> str:
    """A commit, tagged with its subject: of a page, or of code whose gate run is one of `RUNS` or something else."""
    if behaviour is None:
        (folder / "docs" / name).touch()
    else:
        behaviour = {"run": behaviour} if isinstance(behaviour, str) else behaviour
        (folder / "model/case.json").write_text(json.dumps({**behaviour, "name": name}))
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", name)
    git(folder, "tag", name)
    return git(folder, "rev-parse", "HEAD")


def found_in(repository: Path, good: str = "good", bad: str = "main") -> tuple[Found, str]:
    """What is found and the last line of what is said of it."""
    found = search(repository, Asked(good, bad, CASE, ASKED.options, 3), lambda news: None, fake_gate.COMMAND)
    return found, found_lines(found, ASKED)[-1]


def asked_of_the_gate(repository: Path) -> list[Json]:
    return [json.loads(line) for line in (repository.parent / "asked.jsonl").read_text().splitlines()]


def test_the_first_slower_commit_is_found_and_the_repository_left_as_it_was(repository: Path) -> None:
    """There are merges, commits that do not import, pages, and a bisection, a stash and changes of the user's."""
    add(repository, FAST, "second")
    git(repository, "checkout", "-q", "-b", "side")
    for name in ("broken", "broken-too"):
        add(repository, BROKEN, name)
    add(repository, FAST, "mended")
    culprit = add(repository, SLOW, "slow")
    git(repository, "checkout", "-q", "main")
    add(repository, None, "page")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
    add(repository, SLOW, "later")
    git(repository, "bisect", "start", "main", "good")
    git(repository, "checkout", "-q", "main")
    (repository / "model/case.json").write_text("stashed")
    git(repository, "stash")
    for text in ("changed", "of the working tree"):
        git(repository, "add", "--all")
        (repository / "perf_tests/measuring.py").write_text(text)
    (repository / "untracked").touch()
    before = snapshot(repository)
    found, said = found_in(repository)
    assert (found.suspects, bisect.exit_code(found)) == ([culprit], 1)
    assert said.startswith(f"{culprit[:12]} is the first commit that is slower than good (")
    assert said.endswith("at 95 %, 6 launch pairs): slow")
    assert json.loads(json.dumps(found_json(found, ASKED)))["suspects"] == [culprit]
    assert snapshot(repository) == before
    assert [path for path in (repository.parent / "tmp").iterdir() if path.is_dir()] == []
    good = git(repository, "rev-parse", "good")
    for run in asked_of_the_gate(repository):
        assert run["by"] == "of the working tree"
        assert {CASE, "--head-dim=16"} <= {*run["words"]}
        # Another base than GOOD is only compared with.
        assert (f"--against={good}" in run["words"]) == ("--gate-minutes=3" in run["words"])
        assert ("--gate-minutes=3" in run["words"]) != ("--gate-minutes=0" in run["words"])


def test_a_model_of_another_repository_is_searched_by_the_suites_benchmarks(repository: Path) -> None:
    """A path of the model is that of each commit; a folder of theirs named as ours stays theirs."""
    (repository / "model/lm.py").touch()
    add(repository, FAST, "second")
    culprit = add(repository, SLOW, "slow")
    options = (f"--model={repository}/model/lm.py:make",)
    theirs = bisect._repository(options)
    assert theirs.root == repository
    asked = Asked("good", "main", CASE, options, 3)
    found = search(repository, asked, lambda news: None, fake_gate.COMMAND, theirs)
    assert found.suspects == [culprit]
    for run in asked_of_the_gate(repository):
        assert run["by"] == "of an old commit"
        assert str(ROOT / CASE) in run["words"]
        (model,) = (word for word in run["words"] if word.startswith("--model="))
        assert (FOLDERS in model, model.endswith("/clone/model/lm.py:make")) == (True, True)


def test_commits_that_cannot_be_judged_leave_several_suspects(repository: Path) -> None:
    page = add(repository, None, "page")
    broken, slow = add(repository, BROKEN, "broken"), add(repository, SLOW, "slow")
    found, said = found_in(repository)
    assert (found.suspects, bisect.exit_code(found)) == ([slow, broken], 1)
    assert {step.commit: step.state for step in found.steps} | {page: "not slower"} == {
        slow: "slower", broken: "absent", page: "not slower",
    }  # fmt: skip
    assert said.startswith("One of 2 commits made attention_forward")
    assert {run["commit"] for run in asked_of_the_gate(repository)} == {slow}
    same, said = found_in(repository, bad="page")
    good = git(repository, "rev-parse", "good")[:12]
    assert (bisect.exit_code(same), f": the same code as {good}; there is nothing to search." in said) == (0, True)


def test_a_commit_whose_model_cannot_be_imported_is_skipped(repository: Path) -> None:
    """It is collected, as one that the gate of another process refuses is, which ends the search."""
    refused = add(repository, {"refuses": "--model lm.py:make cannot be imported: SyntaxError"}, "refused")
    slow = add(repository, SLOW, "slow")
    found, _ = found_in(repository)
    assert found.suspects == [slow, refused]
    assert [step.state for step in found.steps] == ["slower", "absent"]


def test_a_commit_that_runs_the_same_program_as_a_judged_one_has_its_verdict(repository: Path) -> None:
    """The gate finds the same program wherever it is asked: of the first commit against BAD, which is slower."""
    culprit = add(repository, SAME, "first")
    bad = add(repository, {"run": SLOW}, "bad")
    found, _ = found_in(repository)
    assert {step.commit: (step.state, step.launch_pairs > 0) for step in found.steps} == {
        bad: ("slower", True), culprit: ("slower", False),
    }  # fmt: skip
    assert found.steps[-1].reason == f"the same program as {bad[:12]}"
    assert found.suspects == [culprit]
    asked = [run["words"] for run in asked_of_the_gate(repository) if run["commit"] == culprit]
    assert [f"--against={bad}" in words for words in asked] == [True]
    same, said = found_in(repository, bad="first")
    assert (bisect.exit_code(same), "the program is the same on both sides; there is nothing to search." in said) == (
        0,
        True,
    )


def test_a_file_that_an_option_names_counts_wherever_it_lies(repository: Path) -> None:
    """Pages and tests are passed over otherwise."""
    bad = add(repository, None, "kernel.py")
    assert found_in(repository, bad="kernel.py")[0].steps[0].reason.startswith("the same code as")
    asked = replace(ASKED, good="good", bad="kernel.py", options=("--attention", "docs/kernel.py:attend"))
    found = search(repository, asked, lambda news: None, fake_gate.COMMAND)
    assert [(step.commit, step.reason, step.launch_pairs > 0) for step in found.steps] == [(bad, "", True)]


@pytest.mark.parametrize(
    ("behaviour", "state", "code", "words"),
    [
        (FAST, "not slower", 0, "there is nothing to search"),
        (FASTER, "not slower", 0, "is not slower than GOOD good"),
        ({"cannot": "not found: such a case"}, "absent", 2, "d16-seq64-fp32-naive: not found: such a case."),
        (NOISY, "undecided", 3, "launch pairs); deciding takes "),
    ],
)
def test_no_slowdown_ends_the_search(
    behaviour: str | Json, state: str, code: int, words: str, repository: Path
) -> None:
    add(repository, SLOW, "between")
    add(repository, behaviour, "bad")
    found, said = found_in(repository)
    (step,) = found.steps
    assert (step.state, bisect.exit_code(found), words in said) == (state, code, True)
    if behaviour == NOISY:  # measured once more, for twice as long
        minutes = [word for run in asked_of_the_gate(repository) for word in run["words"] if "minutes" in word]
        assert minutes == ["--gate-minutes=3", "--gate-minutes=6"]
        assert step.launch_pairs == 2 * (Rules().screen_pairs + Rules().confirm_looks[-1])


@pytest.mark.parametrize(
    ("between", "bad", "words"),
    [
        (FAST, {"refuses": "Another gate is measuring"}, r"^The search stopped at .*: Another gate is measuring\.$"),
        ({"run": FAST, "forgets": True}, SLOW, r"^git bisect ended before its last commit: You need to start by"),
    ],
)
def test_what_no_commit_did_ends_the_search(between: str | Json, bad: str | Json, words: str, repository: Path) -> None:
    for name in ("one", "two", "three"):
        add(repository, between, name)
    add(repository, bad, "bad")
    with pytest.raises(SearchError, match=words):
        found_in(repository)


def test_revisions_between_which_there_is_nothing_to_search_are_told(repository: Path) -> None:
    add(repository, FAST, "second")
    git(repository, "checkout", "-q", "-b", "side", "good")
    add(repository, FAST, "other")
    shared = git(repository, "rev-parse", "good")[:12]
    for good, bad, words in (
        ("main", "good", "exchanged: BAD is older"), ("main", "second", "are one commit"),
        ("main", "side", f"two branches; give a GOOD that BAD contains, such as {shared}"),
        *((nothing, "main", r"^bisect \S+ names no revision of this repository") for nothing in ("nothing", "")),
    ):  # fmt: skip
        with pytest.raises((RevisionsError, TreeError), match=words):
            found_in(repository, good, bad)


def test_a_killed_search_ends_with_its_gate_and_the_next_one_removes_what_it_left(repository: Path) -> None:
    add(repository, {"hangs": True}, "bad")
    temporary = repository.parent / "tmp"
    program = (
        "from pathlib import Path; from perf_tests.bisect import *; from tests.support import fake_gate; "
        f"search(Path({str(repository)!r}), Asked('good', 'main', {CASE!r}, (), 1), print, fake_gate.COMMAND)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: (repository.parent / "asked.jsonl").exists())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    until(lambda: not workers_in(temporary))
    assert len(list(temporary.glob(f"{FOLDERS}*"))) == 1
    with pytest.raises(RevisionsError):
        found_in(repository, "main", "good")
    assert list(temporary.glob(f"{FOLDERS}*")) == []
