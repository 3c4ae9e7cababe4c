"""The suite from outside: a model in a repository of somebody else is measured, recorded and gated there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from claims import gate_elsewhere
from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.gate.samples import read_samples
from perf_tests_suite.perf_tests.interleaved.sides import TREES
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit, git
from tests.support.launch import ROOT, Launch, finish, inherited, launch_all, start_command

SUITE, PERF_TESTS = "perf_tests_suite", "perf_tests_suite.perf_tests"
"""The one name of the suite that is importable: its folder is on the path of none of these launches."""

QUICK = (
    "-p", f"{SUITE}.tests.support.quick_ceiling", "-p", f"{SUITE}.tests.support.quick_gate", "-p", "no:cacheprovider",
    "-p", "no:hypothesispytest", "--device=cpu", "--threads=1", "--size=tiny", "--vocab-size=37", "--context=8",
    "--precision=fp32", "--phase=forward", "--rounds=2", "--warmup-rounds=1",
)  # fmt: skip
MODEL, FORWARD = "--model=train/model.py:build", "test_forward[tiny-ctx8-fp32-own]"


def write_model(folder: Path, layers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gate_elsewhere.write_model(folder, layers, width=32)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Somebody's repository, committed as `main`. Its `model/` is not the suite's."""
    folder = tmp_path / "theirs"
    (folder / "model").mkdir(parents=True)
    (folder / "model/__init__.py").write_text("raise ImportError('not the model that the suite imports')\n")
    write_model(folder, 4)
    commit(folder)
    return folder


def started_in(folder: Path, storage: Path, *arguments: str, exits: int = 0, **environment: str) -> Launch:
    """`pytest /path/to/perf_tests` in `folder`, which is not on Python's path."""
    command = (forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), *QUICK, *arguments)
    variables = {"PYTHONPATH": str(IMPORTABLE), "PYTHONSAFEPATH": "1", **environment}
    return finish(start_command(command, folder, ROOT, **variables), storage, exits)


def gated(theirs: Path, *arguments: str, exits: int, folder: Path | None = None, **environment: str) -> Launch:
    """Trees of the sides lie inside the repository, where git ignores them, and are gone afterwards."""
    (theirs / "tmp").mkdir()
    (theirs / ".git/info/exclude").write_text("tmp/\n")
    options = ("--against=main", "--gate-minutes=0.01", "-v", *arguments)
    storage = theirs / ".benchmarks"
    ended = started_in(folder or theirs, storage, *options, exits=exits, TMPDIR=str(theirs / "tmp"), **environment)
    assert list((theirs / "tmp").glob(f"{TREES}*")) == []
    return ended


def test_runs_are_recorded_there_and_changed_code_is_another_source(theirs: Path, tmp_path: Path) -> None:
    """Three launches: without a commit yet and below the top folder, with one, and with other code."""
    (theirs / ".git").rename(tmp_path / "later")
    git(theirs, "init", "-q")
    typed = (f"--benchmark-storage=file://{tmp_path}/elsewhere", "--model=model.py:build")
    uncommitted = started_in(theirs / "train", tmp_path / "elsewhere", *typed)
    assert uncommitted.measured.keys() == {FORWARD}
    assert not (theirs / ".benchmarks").exists()
    git(theirs, "checkout", "-q", "-b", "main")
    commit(theirs)
    (theirs / "other.py").write_text("# not imported\n")
    recorded = started_in(theirs, theirs / ".benchmarks", MODEL)
    assert recorded.record["commit_info"]["id"] == git(theirs, "rev-parse", "HEAD")
    assert recorded.record["benchmarks"][0]["fullname"] == f"perf_tests/test_forward.py::{FORWARD}"
    write_model(theirs, 5)
    changed = started_in(theirs, theirs / ".benchmarks", MODEL)
    first, second, third = [uncommitted.record, *changed.records]
    assert first["suite"]["source"] == second["suite"]["source"] != third["suite"]["source"]


def test_unchanged_code_passes_and_the_repository_is_left_as_it_was(theirs: Path) -> None:
    (theirs / "notes.md").write_text("not committed\n")
    git(theirs, "add", "notes.md")
    asked = ("status --porcelain -- :!.benchmarks", "rev-parse HEAD", "stash list", "worktree list")
    before = [git(theirs, *words.split()) for words in asked]
    ended = gated(theirs, MODEL, exits=0)
    assert f"{FORWARD} SAME" in ended.output
    assert "and 1 uncommitted change)" in ended.output
    assert [git(theirs, *words.split()) for words in asked] == before


def test_a_slowdown_of_their_model_is_found_also_from_outside_their_repository(theirs: Path, tmp_path: Path) -> None:
    """Head's code says so by a variable, which both sides read and which base must not have."""
    model, number = theirs / "train/model.py", "import os\nLAYERS = int(os.environ.get('LAYERS', '4'))\n"
    model.write_text(number + model.read_text().replace(", 4)", ", LAYERS)"))
    commit(theirs)
    model.write_text(f"import os\nos.environ.setdefault('LAYERS', '40')\n{model.read_text()}")
    ended = gated(theirs, f"--model={theirs}/train/model.py:build", folder=tmp_path, exits=1)
    assert re.search(r"model_flops rose from [\d,]+ to [\d,]+", ended.output)
    (samples,) = (theirs / ".benchmarks/gate").glob("*.jsonl")
    assert read_samples(samples).header["base"]["revision"] == git(theirs, "rev-parse", "HEAD")


def test_a_model_that_base_lacks_is_new(theirs: Path) -> None:
    """Although it lies in the working tree, and is imported from it by Python's path; typed below the top folder."""
    (theirs / "train/model.py").rename(theirs / "train/larger.py")
    path = os.pathsep.join((str(IMPORTABLE), str(theirs)))
    ended = gated(theirs, "--model=train.larger:build", folder=theirs / "train", PYTHONPATH=path, exits=0)
    assert f"{FORWARD} NEW" in ended.output
    assert "it has no train.larger" in ended.output


def test_a_model_that_imports_the_working_tree_itself_is_not_measured(theirs: Path) -> None:
    (theirs / "helper.py").write_text("WIDTH = 32\n")
    text = (theirs / "train/model.py").read_text()
    (theirs / "train/model.py").write_text(f"import sys\nsys.path.append({str(theirs)!r})\nimport helper\n{text}")
    commit(theirs)
    (theirs / "helper.py").write_text("WIDTH = 16\n")
    ended = gated(theirs, MODEL, exits=4)
    said = f"it imports {theirs}/helper.py of the working tree, which would be measured as both sides."
    assert said in ended.output + ended.errors


OF_THEIR_NAMES = """
from model import Net
from tests import WIDTH

def build(config):
    from examples import LAYERS
    return Net(config.vocab_size, WIDTH, LAYERS)
"""
OF_ONE_STEP = "--model=factory.py:build --size=tiny --vocab-size=37 --context=8 --precision=fp32"


def test_names_of_their_modules_are_theirs_whatever_the_suite_calls_its_own(theirs: Path) -> None:
    """As a file is loaded and within its functions: in a run, on both sides of a gate, for `diff` and `predict`."""
    for name, content in {
        "model/__init__.py": (theirs / "train/model.py").read_text(), "factory.py": OF_THEIR_NAMES,
        "tests/__init__.py": "WIDTH = 32\n", "examples/__init__.py": "LAYERS = 4\n",
    }.items():  # fmt: skip
        (theirs / name).parent.mkdir(exist_ok=True)
        (theirs / name).write_text(content)
    commit(theirs)
    (theirs / "examples/__init__.py").write_text("LAYERS = 40\n")
    ended = gated(theirs, "--model=factory.py:build", exits=1)
    assert re.search(r"model_flops rose from [\d,]+ to [\d,]+", ended.output)
    for verb, more in (("diff main --phase=forward", "added 36 addmm"), ("predict --gpu=H100", "forward")):
        words = [forked_python(), "-m", PERF_TESTS, *verb.split(), *OF_ONE_STEP.split()]
        variables = inherited(PYTHONPATH=str(IMPORTABLE))
        shown = subprocess.run(words, cwd=theirs, env=variables, capture_output=True, text=True)
        assert more in shown.stdout, shown.stdout + shown.stderr


def test_a_model_that_returns_its_loss_is_measured_and_the_row_says_what_was_checked(tmp_path: Path) -> None:
    """One launch, of one that gives all logits only with targets."""
    typed = (f"--model={SUITE}.tests.support.stand_ins:NanoGpt", "--phase=inference,forward,backward,full_step")
    measured = started_in(tmp_path, tmp_path / "storage", *typed, f"--benchmark-storage=file://{tmp_path}/storage")
    checked = {row["name"].partition("[")[0]: row["extra_info"]["checked"] for row in measured.record["benchmarks"]}
    assert checked.keys() == {"test_inference", "test_forward", "test_backward", "test_full_step"}
    for name in ("test_inference", "test_forward"):
        assert (checked[name]["what"], checked[name]["unchecked"]) == ("the loss", "its logits, which it does not give")


def test_no_gate_is_green_for_tests_of_theirs_that_it_did_not_look_at(theirs: Path) -> None:
    """With a branch `main`: of the launches one runs their test, as they do, and one gates it alone."""
    (theirs / "bench_x.py").write_text("def test_split(benchmark): benchmark(str.split, 'a b')\n")
    commit(theirs)
    ends = {}
    for typed in (
        "run bench_x.py",
        "run bench_x.py --against main",
        "run -q --size tiny --against main",
        "diff main --size tiny",
        "predict --size tiny --gpu H100 --against main",
    ):
        words = [forked_python(), "-m", PERF_TESTS, *typed.split()]
        environment = inherited(PYTHONPATH=str(IMPORTABLE), PYTHONDONTWRITEBYTECODE="1")
        ended = subprocess.run(words, cwd=theirs, env=environment, capture_output=True, text=True)
        ends[typed] = (ended.returncode, ended.stdout, ended.stderr)
    code, shown, said = ends.pop("run bench_x.py --against main")
    assert (code, "gate: PASSED (1 SAME)" in shown) == (0, True), shown + said
    (samples,) = theirs.glob(".benchmarks/gate/*.jsonl")
    assert read_samples(samples).cases == ["bench_x.py::test_split"]
    samples.unlink()
    code, shown, said = ends.pop("run bench_x.py")
    assert (code, "test_split" in shown, "1 passed" in shown, "device:" in shown) == (0, True, True, False), said
    for typed, (code, shown, said) in ends.items():
        assert (code, "nothing was gated" in said, "PASSED" in shown) == (4 if "run" in typed else 2, True, False), (
            typed
        )
    assert list(theirs.glob(".benchmarks/**/*.json*")) == []


def test_what_cannot_be_gated_is_one_sentence(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # where no other gate measures
    for place in ("others", "empty", "nowhere", "theirs/scratch"):
        write_model(tmp_path / place, 4)
    for repository in ("others", "empty"):
        git(tmp_path / repository, "init", "-q")
    (theirs / ".gitignore").write_text("scratch/\n")
    refused = {
        (f"{theirs}/train/model.py", f"--optimizer={tmp_path}/others/train/model.py:build"): "files of one repository",
        (f"{tmp_path}/empty/train/model.py", "--against=HEAD"): f"{tmp_path}/empty has no commit yet; commit one",
        (f"{tmp_path}/nowhere/train/model.py", "--against=HEAD"): "lies in no git repository, so it has no base",
        (f"{theirs}/scratch/train/model.py", "--against=HEAD"): "git ignores scratch/train/model.py, so",
        (f"{theirs}/gone.py", "--against=HEAD"): f"there is no file {theirs}/gone.py",
    }  # fmt: skip
    always = ("perf_tests", *QUICK, f"--benchmark-storage=file://{tmp_path}/storage")
    ends = launch_all([[*always, f"--model={file}:build", option] for file, option in refused])
    for (code, output, errors), words in zip(ends, refused.values(), strict=True):
        assert code == 4, output + errors
        assert len([line for line in (output + errors).splitlines() if words in line]) == 1, output + errors
        assert "Traceback" not in output + errors
