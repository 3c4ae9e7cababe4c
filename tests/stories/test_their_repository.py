"""The suite from outside: a model in a repository of somebody else is measured, recorded and gated there."""

import os
import re
from pathlib import Path

import pytest

from perf_tests.gate.samples import read_samples
from perf_tests.interleaved.sides import TREES
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit, git
from tests.support.launch import ROOT, Launch, finish, launch_all, start_command
from tests.support.their_repository import MODEL, make_their_repository, write_model

QUICK = (
    "-p", "tests.support.quick_ceiling", "-p", "tests.support.quick_gate", "-p", "no:cacheprovider",
    "-p", "no:hypothesispytest", "--device=cpu", "--threads=1", "--size=tiny", "--vocab-size=37", "--context=8",
    "--precision=fp32", "--phase=forward", "--rounds=2", "--warmup-rounds=1",
)  # fmt: skip
FORWARD = "test_forward[tiny-ctx8-fp32-own]"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    return make_their_repository(tmp_path / "theirs")


def started_in(folder: Path, storage: Path, *arguments: str, **environment: str) -> Launch:
    """`pytest /path/to/perf_tests` in `folder`, which is not on Python's path."""
    command = (forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), *QUICK, *arguments)
    variables = {"PYTHONSAFEPATH": "1", **environment}
    return finish(start_command(command, folder, ROOT, **variables), storage)


def gated(theirs: Path, *arguments: str, folder: Path | None = None, **environment: str) -> Launch:
    temporary = theirs.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {"TMPDIR": str(temporary), **environment}
    ended = started_in(folder or theirs, theirs / ".benchmarks", "--against=main", "-v", *arguments, **variables)
    assert list(Path(variables["TMPDIR"]).glob(f"{TREES}*")) == []
    return ended


def test_a_run_is_recorded_in_their_repository_with_its_commit(theirs: Path) -> None:
    ended = started_in(theirs, theirs / ".benchmarks", MODEL)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert ended.record["commit_info"]["id"] == git(theirs, "rev-parse", "HEAD")
    assert ended.measured.keys() == {FORWARD}
    assert ended.record["benchmarks"][0]["fullname"] == f"perf_tests/test_forward.py::{FORWARD}"


def test_the_storage_that_was_typed_wins(theirs: Path, tmp_path: Path) -> None:
    storage = tmp_path / "elsewhere"
    ended = started_in(theirs / "train", storage, "--model=model.py:build", f"--benchmark-storage=file://{storage}")
    assert ended.exit_code == 0, ended.output + ended.errors
    assert ended.record["commit_info"]["id"] == git(theirs, "rev-parse", "HEAD")
    assert not (theirs / ".benchmarks").exists()


def test_a_change_of_their_code_is_another_source(theirs: Path) -> None:
    """So that a run is not resumed, nor launches joined, across it."""
    sources: list[str] = []
    for layers in (4, 4, 5):
        write_model(theirs, layers)
        (theirs / "other.py").write_text(f"# not imported, {len(sources)}\n")
        ended = started_in(theirs, theirs / ".benchmarks", MODEL)
        sources.append(ended.records[-1]["suite"]["source"])
    assert sources[0] == sources[1] != sources[2]


def test_unchanged_code_passes_and_the_repository_is_left_as_it_was(theirs: Path) -> None:
    (theirs / "notes.txt").write_text("not committed\n")
    git(theirs, "add", "notes.txt")
    before = (git(theirs, "status", "--porcelain"), git(theirs, "rev-parse", "HEAD"), git(theirs, "stash", "list"))
    ended = gated(theirs, MODEL, "--gate-minutes=0.01")
    assert ended.exit_code == 0, ended.output + ended.errors
    assert re.search(rf"{re.escape(FORWARD)} (OK|UNDECIDED|FASTER)", ended.output), ended.output
    assert "measured with its 1 uncommitted change." in ended.output
    left = "\n".join(line for line in git(theirs, "status", "--porcelain").splitlines() if ".benchmarks" not in line)
    assert (left, git(theirs, "rev-parse", "HEAD"), git(theirs, "stash", "list")) == before
    assert git(theirs, "worktree", "list").count("\n") == 0


def test_identical_sides_are_not_counted(theirs: Path) -> None:
    """Nor mistaken for the working tree where the trees lie inside the repository."""
    (theirs / "tmp").mkdir()
    (theirs / ".git/info/exclude").write_text("tmp/\n")
    ended = gated(theirs, MODEL, "--gate-minutes=0.01", TMPDIR=str(theirs / "tmp"))
    assert ended.exit_code == 0, ended.output + ended.errors
    assert "The repository is identical on both sides, so its exact counters are too." in ended.output


@pytest.mark.parametrize("place", ["in their repository", "below it", "elsewhere"])
def test_a_slowdown_of_their_model_is_found_wherever_pytest_is_started(
    theirs: Path, tmp_path: Path, place: str
) -> None:
    write_model(theirs, 40)
    folder, model = {
        "in their repository": (theirs, "train/model.py"),
        "below it": (theirs / "train", "../train/model.py"),
        "elsewhere": (tmp_path, f"{theirs}/train/model.py"),
    }[place]
    ended = gated(theirs, f"--model={model}:build", "--gate-minutes=0.01", folder=folder)
    assert ended.exit_code == 1, ended.output + ended.errors
    assert re.search(r"model_flops rose from [\d,]+ to [\d,]+", ended.output)
    (samples,) = (theirs / ".benchmarks/gate").glob("*.jsonl")
    assert read_samples(samples).header["base"]["revision"] == git(theirs, "rev-parse", "HEAD")


def test_a_model_that_base_lacks_is_new(theirs: Path) -> None:
    """Although it lies in the working tree, and is imported from it where Python's path leads there."""
    (theirs / "train/model.py").rename(theirs / "train/larger.py")
    file = gated(theirs, "--model=train/larger.py:build")
    module = gated(theirs, "--model=train.larger:build", PYTHONPATH=os.pathsep.join((str(ROOT), str(theirs))))
    for ended, name in ((file, "train/larger.py"), (module, "train.larger")):
        assert ended.exit_code == 0, ended.output + ended.errors
        assert f"{FORWARD} NEW" in ended.output
        assert f"it has no {name}" in ended.output


def test_a_model_that_imports_the_working_tree_itself_is_not_measured(theirs: Path) -> None:
    (theirs / "helper.py").write_text("WIDTH = 32\n")
    text = (theirs / "train/model.py").read_text()
    (theirs / "train/model.py").write_text(f"import sys\nsys.path.append({str(theirs)!r})\nimport helper\n{text}")
    commit(theirs)
    ended = gated(theirs, MODEL)
    assert ended.exit_code == 4, ended.output + ended.errors
    said = f"it imports {theirs}/helper.py of the working tree, which would be measured as both sides."
    assert said in ended.output + ended.errors


def test_what_cannot_be_gated_or_recorded_is_one_sentence_and_exit_code_4(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(_folder(tmp_path / "tmp")))  # where no other gate measures
    make_their_repository(_folder(tmp_path / "others"))
    (empty := _folder(tmp_path / "empty")).joinpath("model.py").write_text((theirs / "train/model.py").read_text())
    git(empty, "init", "-q")
    _folder(tmp_path / "nowhere").joinpath("model.py").write_text((theirs / "train/model.py").read_text())
    (theirs / ".gitignore").write_text("scratch/\n")
    _folder(theirs / "scratch").joinpath("model.py").write_text((theirs / "train/model.py").read_text())
    gate = "--against=HEAD"
    refused = {
        (f"--model={theirs}/train/model.py:build", f"--optimizer={tmp_path}/others/train/model.py:build"):
            "give files of one repository",
        (f"--model={empty}/model.py:build", gate): f"the repository {empty} has no commit yet; commit one",
        (f"--model={tmp_path}/nowhere/model.py:build", gate): "lies in no git repository, so it has no base",
        (f"--model={theirs}/scratch/model.py:build", gate): "git ignores scratch/model.py, so base cannot hold it",
        (f"--model={theirs}/gone.py:build", gate): f"there is no file {theirs}/gone.py",
    }  # fmt: skip
    always = ("perf_tests", *QUICK, f"--benchmark-storage=file://{tmp_path}/storage")
    ends = launch_all([[*always, model, *rest.split()] for model, rest in refused])
    for (code, output, errors), words in zip(ends, refused.values(), strict=True):
        assert code == 4, output + errors
        assert len([line for line in (output + errors).splitlines() if words in line]) == 1, output + errors
        assert "Traceback" not in output + errors


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_model_in_a_repository_without_commits_is_measured(theirs: Path, tmp_path: Path) -> None:
    write_model(_folder(tmp_path / "fresh"), 4)
    git(tmp_path / "fresh", "init", "-q")
    ended = started_in(tmp_path / "fresh", tmp_path / "fresh/.benchmarks", MODEL)
    assert ended.exit_code == 0, ended.output + ended.errors
    assert ended.measured.keys() == {FORWARD}
