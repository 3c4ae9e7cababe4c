"""What is under test belongs to the git repository around it and is part of its source; the gate finds it in a copy."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_tests.bench.workers import inherited_environment
from perf_tests.run.before import names_untracked, source_digest
from perf_tests.user_code import named
from perf_tests.user_code.named import (
    SUITE,
    Repository,
    Tree,
    file_of,
    load,
    path_of,
    repository_of,
    stray,
    take_files_from,
    why_not_there,
)
from tests.support.git_repository import git
from tests.support.launch import MODELS


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A repository of somebody else, as far as its folders tell."""
    for name in (".git/HEAD", "train/nets.py", "train/__init__.py", "kernels/flash.py", "config.json"):
        (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / name).write_text("def build(config): return __file__\n")
    return tmp_path / "theirs"


def holder(folder: Path, **typed: str) -> Repository:
    return repository_of({f"--{option}": text for option, text in typed.items()}, folder)


@pytest.mark.parametrize(
    "option, text, file",
    [
        ("model", "{}/train/nets.py:build", "train/nets.py"),
        ("model", "hf:{}/config.json", "config.json"),
        ("attention", "naive, {}/kernels/flash.py:attend,sdpa", "kernels/flash.py"),
        ("optimizer", "{}/train/muon.py:build", "train/muon.py"),
    ],
)
def test_the_repository_is_that_around_the_file(theirs: Path, option: str, text: str, file: str) -> None:
    """Also where the file is not there yet, which is said elsewhere."""
    found = holder(Path.cwd(), **{option: text.format(theirs)})
    assert (found.root, found.holds_suite, found.files) == (theirs, False, (Path(file),))


def test_a_module_belongs_to_the_repository_that_it_is_imported_from(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(theirs)
    found = holder(theirs, model="train.nets:build")
    assert (found.root, found.files) == (theirs, (Path("train/nets.py"),))
    assert theirs in found.import_path


@pytest.mark.parametrize("text", [f"{MODELS}:Healthy", "torch.nn:Linear", "nowhere:build", "torch", "json:load"])
def test_the_suite_and_libraries_belong_to_the_suite(text: str) -> None:
    assert holder(Path.cwd(), model=text).root == SUITE


def test_nothing_of_ones_own_belongs_to_the_suite(tmp_path: Path) -> None:
    assert repository_of({"--model": None, "--attention": "all", "--optimizer": "fused"}, tmp_path).root == SUITE


def test_a_file_in_no_repository_has_no_base(tmp_path: Path) -> None:
    found = holder(tmp_path, model=f"{tmp_path}/nets.py:build")
    assert (found.root, found.outside) == (SUITE, (f"--model {tmp_path}/nets.py:build",))


def test_two_repositories_are_refused_in_one_sentence(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "others/.git").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"theirs, and --attention .* in .*others; .*give files of one repository\.$"):
        holder(theirs, model=f"{theirs}/train/nets.py:build", attention=f"{tmp_path}/others/flash.py:attend")
    with pytest.raises(ValueError, match="give files of one repository"):
        holder(theirs, model=f"{theirs}/train/nets.py:build", optimizer=f"{SUITE}/perf_tests/muon.py:muon")


@pytest.fixture
def tree(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process as a worker whose tree lacks the kernels; what was typed was typed in `train`."""
    (tmp_path / "tree/train").mkdir(parents=True)
    (tmp_path / "tree/train/nets.py").write_text("def build(config): return __file__\n")
    monkeypatch.setattr(named, "_tree", None)
    monkeypatch.setattr(sys, "path", [str(theirs), *sys.path])
    texts = ("nets.py:build", "../kernels/flash.py:attend", "train.nets:build")
    take_files_from(Tree(tmp_path / "tree", theirs, theirs / "train", frozenset(texts)))
    yield tmp_path / "tree"
    for name in [name for name in sys.modules if name == "train" or name.startswith("train.")]:
        del sys.modules[name]


def test_a_file_is_found_in_the_copy_wherever_and_however_it_was_typed(tree: Path, theirs: Path) -> None:
    for text in ("nets.py", "./nets.py", "../train/nets.py", f"{theirs}/train/nets.py"):
        assert path_of(text) == tree / "train/nets.py"
    assert load("nets.py:build")(None) == str(tree / "train/nets.py")
    assert file_of("hf:../config.json") == tree / "config.json"
    assert path_of("/etc/hosts") == Path("/etc/hosts")


def test_what_the_copy_lacks_is_never_taken_from_the_working_tree(tree: Path, theirs: Path) -> None:
    assert str(theirs) not in sys.path
    assert why_not_there("nets.py:build") is None
    assert why_not_there("../kernels/flash.py:attend") == "it has no ../kernels/flash.py"
    assert why_not_there("train.nets:build") == "it has no train.nets"
    assert why_not_there("sdpa") is None


def test_code_that_reaches_into_the_working_tree_is_found(tree: Path, theirs: Path) -> None:
    assert stray() is None
    sys.path.append(str(theirs))
    __import__("train.nets")
    assert stray() in (theirs / "train/nets.py", theirs / "train/__init__.py")


def test_a_worker_that_starts_elsewhere_imports_from_where_the_user_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "src:/elsewhere")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert inherited_environment()["PYTHONPATH"] == f"{tmp_path}/src:/elsewhere"
    monkeypatch.syspath_prepend("")
    assert inherited_environment()["PYTHONPATH"] == f"{tmp_path}/src:/elsewhere:{tmp_path}"


def test_a_kernel_beside_the_suite_is_part_of_its_source(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def attend(q, k, v): return v\n")
    named = Repository(tmp_path, holds_suite=True, files=(Path("kernel.py"),))
    before = source_digest(named)
    assert before != source_digest(Repository(tmp_path))
    kernel.write_text("def attend(q, k, v): return q\n")
    assert source_digest(named) != before


def test_a_file_that_git_does_not_track_is_an_uncommitted_change(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").touch()
    named = Repository(tmp_path, holds_suite=False, files=(Path("kernel.py"),))
    assert names_untracked(named), "no repository at all"
    git(tmp_path, "init", "-q")
    assert names_untracked(named)
    git(tmp_path, "add", "kernel.py")
    assert not names_untracked(named)
    assert not names_untracked(Repository(tmp_path))
