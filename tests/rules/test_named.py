"""What is typed as MODULE:NAME or FILE.py:NAME is found before it runs, in its repository or the gate's copy of it."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.bench.workers import inherited_environment
from perf_tests_suite.perf_tests.run.before import source_digest
from perf_tests_suite.perf_tests.user_code import named
from perf_tests_suite.perf_tests.verbs.run import of_pytest
from tests.support.launch import MODELS


def forget_their_modules() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "train"]:
        del sys.modules[name]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A repository of somebody else, as far as its folders tell; `outside` lies in none."""
    for name in (".git/HEAD", "train/nets.py", "train/__init__.py", "kernels/flash.py", "config.json"):
        (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / name).write_text("def build(config): return __file__\n")
    yield tmp_path / "theirs"
    forget_their_modules()


def holder(folder: Path, **typed: str | None) -> named.Repository:
    return named.repository_of({f"--{option}": text for option, text in typed.items()}, folder)


def test_the_repository_is_that_around_the_file_else_the_suites(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(theirs)
    for option, text, file in (
        ("model", f"{theirs}/train/nets.py:build", "train/nets.py"), ("model", "train.nets:build", "train/nets.py"),
        ("model", f"hf:{theirs}/config.json", "config.json"),
        ("attention", f"naive, {theirs}/kernels/flash.py:attend,sdpa", "kernels/flash.py"),
        ("optimizer", f"{theirs}/train/not_there_yet.py:build", "train/not_there_yet.py"),
    ):  # fmt: skip
        found = holder(theirs / "train", **{option: text})
        assert (found.root, found.holds_suite, theirs in found.import_path) == (theirs, False, True), text
        assert (found.files, found.folder_in(named.SUITE)) == ((Path(file),), named.SUITE)
        assert found.path_in(Path("/copy"))[:2] == [IMPORTABLE, Path("/copy")]
        assert found.folder_in(theirs) == theirs / "train"
    for name in (f"{MODELS}:Healthy", "torch.nn:Linear", "nowhere:build", "all", None):
        found = holder(theirs / "train", model=name)
        assert (found.root, found.holds_suite, theirs in found.import_path) == (named.SUITE, True, False), name


def test_what_lies_in_no_repository_has_no_base_and_two_repositories_are_refused(theirs: Path, tmp_path: Path) -> None:
    found = holder(tmp_path, model=f"{tmp_path}/nets.py:build")
    assert (found.root, found.outside) == (named.SUITE, (f"--model {tmp_path}/nets.py:build",))
    (tmp_path / "others/.git").mkdir(parents=True)
    words = r"theirs, and --(attention|optimizer) .* in .*; .*give files of one repository\.$"
    for option, text in (
        ("attention", f"{tmp_path}/others/flash.py:attend"), ("optimizer", f"{named.SUITE}/perf_tests/muon.py:muon")
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            holder(theirs, model=f"{theirs}/train/nets.py:build", **{option: text})


def test_an_installed_suite_holds_no_records_and_has_no_base(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its environment lies in their repository, and for its own examples."""
    monkeypatch.setattr(named, "SUITE", theirs / ".venv/lib/python3.11/site-packages/perf_tests_suite")
    for typed in ({}, {"optimizer": f"{named.SUITE}/examples/muon.py:build"}):
        for folder, root in ((theirs / "train", theirs), (theirs.parent, theirs.parent)):
            found = holder(folder, **typed)
            assert (found.root, found.holds_suite, len(found.outside)) == (root, False, 1)
    found = holder(theirs.parent, model=f"{theirs}/train/nets.py:build")
    assert (found.root, found.outside) == (theirs, ())


def test_who_names_nothing_is_told_whose_model_is_measured(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"--model": None, "--attention": "naive,sdpa", "--optimizer": "fused"}
    said = (
        f"measures the suite's own model (in {named.SUITE}), not the repository {theirs} that you are in; give "
        "--model FILE.py:FACTORY to measure yours"
    )
    assert named.suite_model_notice(nothing, theirs / "train") == said
    for text in ("nets.py:build", "train.nets:build", "hf:../config.json"):
        assert named.suite_model_notice({**nothing, "--model": text}, theirs / "train") is None
    assert named.suite_model_notice({**nothing, "--attention": "naive,f.py:attend"}, theirs) is None
    for folder in (named.SUITE, named.SUITE / "perf_tests", theirs.parent):
        assert named.suite_model_notice(nothing, folder) is None
    monkeypatch.setattr(named, "SUITE", theirs / ".venv/lib/python3.11/site-packages/perf_tests_suite")
    assert "not the repository" in str(named.suite_model_notice(nothing, theirs))


def test_the_suites_own_history_is_no_base_in_another_repository(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a checkout nor installed, unless code of a repository is named; nor where no repository is around."""

    def why(folder: Path, **typed: str | None) -> str:
        return holder(folder, **typed).why_no_base() or ""

    places = (named.SUITE, theirs / ".venv/lib/python3.11/site-packages/perf_tests_suite")
    for suite in places:
        monkeypatch.setattr(named, "SUITE", suite)
        for typed in ({}, {"model": "torch.nn:Linear"}, {"attention": "naive,sdpa"}):
            said = why(theirs / "train", **typed)
            assert f"nothing of the repository {theirs} that you are in is named" in said, typed
            assert "give --model FILE.py:FACTORY" in said
        assert why(theirs, model=f"{theirs}/train/nets.py:build") == ""
        assert why(tmp_path, model=f"{theirs}/train/nets.py:build") == ""
        assert "lies in no git repository" in why(theirs, model=f"{tmp_path}/nets.py:build")
    assert "The installed suite's own model lies in no git repository" in why(tmp_path)
    monkeypatch.setattr(named, "SUITE", places[0])
    assert why(named.SUITE / "perf_tests") == why(tmp_path) == ""


def test_the_command_of_a_run_is_perf_tests_where_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    suite, typed = str(named.SUITE), ["--model", "a b.py:build", "--resume"]
    monkeypatch.setattr(named, "program", lambda: "../env/bin/perf-tests")
    for words, command in (
        (["perf_tests", *typed], "pytest perf_tests --model 'a b.py:build' --resume"),
        ([*named.CONFIGURED, f"{suite}/perf_tests", *typed],
         "../env/bin/perf-tests run --model 'a b.py:build' --resume"),
        ([*named.CONFIGURED, f"{suite}/perf_tests/test_forward.py"], "../env/bin/perf-tests run test_forward.py"),
        ([*named.CONFIGURED, f"{suite}/numerics_tests", "-x"], "../env/bin/perf-tests run numerics_tests -x"),
        (named.CONFIGURED, f"pytest --config-file {suite}/pyproject.toml"),
    ):  # fmt: skip
        assert named.as_typed_here(words) == command
        if words[:2] == named.CONFIGURED and words[2:]:
            assert of_pytest(shlex.split(command)[2:]) == words


@pytest.fixture
def tree(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as a worker whose tree lacks the kernels; what was typed was typed in `train`."""
    (tmp_path / "tree/train").mkdir(parents=True)
    (tmp_path / "tree/train/nets.py").write_text("def build(config): return __file__\n")
    monkeypatch.setattr(named, "_tree", None)
    monkeypatch.setattr(sys, "path", [str(theirs), *sys.path])
    texts = ("nets.py:build", "../kernels/flash.py:attend", "train.nets:build")
    named.take_files_from(named.Tree(tmp_path / "tree", theirs, theirs / "train", frozenset(texts)))
    return tmp_path / "tree"


def test_a_worker_takes_every_file_from_its_copy_and_says_what_that_lacks(tree: Path, theirs: Path) -> None:
    texts = ("nets.py", "./nets.py", "../train/nets.py", f"{theirs}/train/nets.py")
    assert {named.path_of(text) for text in texts} == {tree / "train/nets.py"}
    assert named.load("nets.py:build")(None) == str(tree / "train/nets.py")
    assert named.file_of("hf:../config.json") == tree / "config.json"
    assert named.path_of("/etc/hosts") == Path("/etc/hosts")
    typed = ("nets.py:build", "../kernels/flash.py:attend", "train.nets:build", "sdpa", None)
    lacking = [None, "it has no ../kernels/flash.py", "it has no train.nets", None, None]
    assert [named.why_not_there(text) for text in typed] == lacking
    for code, lacks in (
        ("def rebuild(): ...", True), ("def build(: no Python", False), ("from pathlib import  *", False),
        ("globals()['bui' + 'ld'] = print", False),
    ):  # fmt: skip
        (tree / "train/nets.py").write_text(code)
        assert named.why_not_there("nets.py:build") == ("it has no build in nets.py" if lacks else None), code
    assert (str(theirs) in sys.path, named.stray()) == (False, None)
    forget_their_modules()
    sys.path.append(str(theirs))
    __import__("train.nets")
    assert named.stray() in (theirs / "train/nets.py", theirs / "train/__init__.py")


def test_a_worker_imports_from_where_the_user_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "src:/elsewhere")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert inherited_environment()["PYTHONPATH"] == f"{IMPORTABLE}:{tmp_path}/src:/elsewhere"
    monkeypatch.syspath_prepend("")
    assert inherited_environment()["PYTHONPATH"] == f"{IMPORTABLE}:{tmp_path}/src:/elsewhere:{tmp_path}"


def test_workers_keep_out_the_plugins_that_the_run_keeps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--exitfirst")
    kept = {name: value for name, value in inherited_environment().items() if name.startswith("PYTEST_")}
    assert (kept["PYTEST_DISABLE_PLUGIN_AUTOLOAD"], "PYTEST_ADDOPTS" in kept) == ("1", False)


def test_a_file_beside_the_suite_is_part_of_its_source(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def attend(q, k, v): return v\n")
    holds_it = named.Repository(tmp_path, files=(Path("kernel.py"),))
    before = source_digest(holds_it)
    assert before != source_digest(named.Repository(tmp_path))
    kernel.write_text("def attend(q, k, v): return q\n")
    assert source_digest(holds_it) != before
    assert named.digest_of([(Path("a.py"), kernel)]) != named.digest_of([(Path("b.py"), kernel)])


def test_what_the_suites_model_imports_beside_itself_is_part_of_what_its_counters_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "SUITE", tmp_path)
    for name in ("model/net.py", "kernels/norm.py", "tests/test_it.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1\n")
    before = named.digest_of_suite()
    monkeypatch.setattr(named, "loaded_below", lambda folder: [folder / "tests/test_it.py", folder / "model/net.py"])
    assert named.digest_of_suite() == before
    monkeypatch.setattr(named, "loaded_below", lambda folder: [folder / "kernels/norm.py"])
    assert named.digest_of_suite() != before


def test_a_file_is_its_own_module_and_may_import_its_neighbours(tmp_path: Path) -> None:
    """Also one named as the suite's `model`, and once more after it failed."""
    (tmp_path / "neighbour_of_a_model.py").write_text("WIDTH = 5\n")
    (tmp_path / "model.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        named.load(f"{tmp_path}/model.py:build")
    (tmp_path / "model.py").write_text("from neighbour_of_a_model import WIDTH\ndef build(size): return size, WIDTH\n")
    built = named.load(f"{tmp_path}/model.py:build")
    assert built(3) == (3, 5)
    assert named.load(f"{tmp_path}/model.py:build") is built is not named.load(f"{tmp_path}/model.py:build", "copy")


def test_a_name_that_a_module_lacks_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    """Its own functions and classes, no imports; of many those that are spelt alike."""
    (tmp_path / "nets.py").write_text(
        "from dataclasses import dataclass\nWIDTH = 64\nclass TinyLM: ...\nclass Block: ...\n"
        "def _helper(): ...\ndef build(config): ...\n"
    )
    with pytest.raises(AttributeError) as refusal:
        named.load(f"{tmp_path}/nets.py:biuld")
    assert str(refusal.value) == f"{tmp_path}/nets.py has no 'biuld'; it has Block, TinyLM, build"
    with pytest.raises(AttributeError, match=r"^torch.optim has no 'Adagard'; it has .*Adagrad, .* and \d+ more$"):
        named.load("torch.optim:Adagard")


def test_a_name_is_made_absolute_where_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [named.absolute(text) for text in ("nets.py:build", "hf:a/config.json", "package.nets:build")] == [
        f"{tmp_path}/nets.py:build", f"hf:{tmp_path}/a/config.json", "package.nets:build",
    ]  # fmt: skip


NOWHERE = {
    "{}:build": "is a folder, not a file; name the file as path/file.py:build",
    "nowhere.py:build": "there is no file nowhere.py",
    f"{'long' * 99}.py:build": "there is no file longlong",
    "nowhere:build": "there is no module 'nowhere' on the path; add its folder to PYTHONPATH",
    "no.where:build": "'no.where:build'",
    **dict.fromkeys(("torch", "torch:"), "names nothing to load"),
}


def test_a_name_that_leads_nowhere_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for text, words in NOWHERE.items():
        with pytest.raises(ValueError, match=words):
            named.check_name("--model", text.format(tmp_path))
    named.check_name("--model", "torch.nn:Linear")


def test_a_package_that_is_missing_is_named_with_where_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import no_such_package\n")
    (tmp_path / "part.py").write_text("import os.no_such_part\n")
    with pytest.raises(ModuleNotFoundError, match=f"no_such_package'; install it into {re.escape(sys.prefix)}, or add"):
        named.load(f"{tmp_path}/own.py:build")
    with pytest.raises(ModuleNotFoundError) as told:
        named.load(f"{tmp_path}/part.py:build")
    assert "install" not in str(told.value), "a part of a package that is there cannot be installed"
