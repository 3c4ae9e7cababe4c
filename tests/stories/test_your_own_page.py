"""`docs/your-own.md`: its commands, in order, in a throw-away repository."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from perf_tests.gate.samples import read_samples
from tests.support.documents import block, indented, page
from tests.support.git_repository import commit, copy_suite, git
from tests.support.launch import ROOT, inherited

COMMANDS = [line[2:] for line in indented(block(page("your-own"), "commands")) if line.startswith("$ ")]
MODEL = indented(block(page("your-own"), "commands").partition("Install")[0])
EDIT = "git switch"
"""The command after which the page says to change the model."""

QUICK = (
    "-p tests.support.quick_ceiling -p tests.support.quick_gate -p no:hypothesispytest --device=cpu"
    " --threads=1 --size=tiny --vocab-size=37 --context=8 --precision=fp32 --phase=forward --rounds=2"
    " --warmup-rounds=1 -p no:cacheprovider"
)


def in_quick_form(command: str, suite: Path) -> str:
    """The same without a network and in seconds: this machine's torch, a tiny case, one launch pair."""
    packages = sysconfig.get_path("purelib")
    shortened = {
        "https://github.com/OWNER/SUITE": str(suite),
        "python3 -m venv env": f"{sys.executable} -m venv --without-pip env && "
        f'echo {packages} > "$(echo env/lib/python*/site-packages)/of_the_machine.pth"',
        "env/bin/pip install": "env/bin/python -m pip install --quiet --no-deps --no-build-isolation",
        "perf-tests run --model train/model.py:build": f"perf-tests run --model train/model.py:build {QUICK}",
        "--against main": "--against main --gate-minutes=0.01",
    }
    for typed, quick in shortened.items():
        command = command.replace(typed, quick)
    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`mine/`, a repository with a model and a remote; `published/` is where the suite is cloned from."""
    (tmp_path / "mine/train").mkdir(parents=True)
    (tmp_path / "mine/train/model.py").write_text("\n".join(MODEL) + "\n")
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    git(tmp_path / "mine", "init", "-q", "-b", "main")
    commit(tmp_path / "mine")
    git(tmp_path / "mine", "remote", "add", "origin", str(tmp_path / "origin.git"))
    (tmp_path / "published").mkdir()
    copy_suite(tmp_path / "published")
    shutil.copytree(ROOT / "examples/workflows", tmp_path / "published/examples/workflows")
    git(tmp_path / "published", "init", "-q", "-b", "main")
    commit(tmp_path / "published")
    return tmp_path


def run(command: str, folder: Path) -> tuple[str, Path]:
    """What it printed, and the folder in which the shell is then."""
    who = {f"GIT_{who}_{what}": "nobody@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (folder.parent / "tmp").mkdir(exist_ok=True)
    environment = {**inherited(PYTHONPATH="", TMPDIR=str(folder.parent / "tmp")), **who}
    script = f"{command}\nexit_code=$?; pwd > {folder}/../here; exit $exit_code"
    ended = subprocess.run(["/bin/bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout, Path((folder.parent / "here").read_text().strip())


def test_ten_commands_lead_from_nothing_to_a_gated_pull_request(folder: Path) -> None:
    assert len(COMMANDS) == 10
    mine, here, said = folder / "mine", folder, ""
    for command in COMMANDS:
        printed, here = run(in_quick_form(command, folder / "published"), here)
        said += printed
        if command.startswith(EDIT):
            text = (mine / "train/model.py").read_text()
            (mine / "train/model.py").write_text(text.replace("Each token becomes", "Every token becomes"))
    assert "0001_" + git(mine, "rev-parse", "main")[:12] in " ".join(map(str, mine.glob(".benchmarks/*/*.json")))
    (samples,) = mine.glob(".benchmarks/gate/*.jsonl")
    header = read_samples(samples).header
    assert header["base"]["revision"] == git(mine, "rev-parse", "main")
    assert header["head"]["changed_files"] == 1
    assert "gate: PASSED" in said
    pushed = git(folder / "origin.git", "ls-tree", "-r", "--name-only", "change").splitlines()
    assert pushed == [".github/workflows/comment.yml", ".github/workflows/gate.yml", "train/model.py"]


def test_the_page_names_what_the_reusable_gate_takes() -> None:
    text = (ROOT / ".github/workflows/reusable-gate.yml").read_text()
    for name in ("model", "options", "runner", "minutes", "requirements", "base"):
        assert f"      {name}:\n        description:" in text
