"""`docs/your-own.md`: its commands, from a wheel, in a throw-away repository."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.gate.samples import read_samples
from tests.support.documents import block, indented, page
from tests.support.git_repository import commit, copy_suite, git
from tests.support.launch import ROOT, inherited

PAGE = page("your-own")
COMMANDS = [line[2:] for line in indented(block(PAGE, "commands")) if line.startswith("$ ")]
MODEL = indented(block(PAGE, "commands").partition("Install")[0])
OTHERS = [line.partition(" #")[0].strip() for line in indented(PAGE) if line.startswith("perf-tests ")]
"""What it says to type beside the commands in order."""
INSTALL, EDIT = "env/bin/pip install", "git switch"
"""Begins the command that installs; the one after which the page says to change the model."""

QUICK = (
    "-p tests.support.quick_ceiling -p tests.support.quick_gate -p no:hypothesispytest --device=cpu"
    " --threads=1 --size=tiny --vocab-size=37 --context=8 --precision=fp32 --phase=forward --rounds=2"
    " --warmup-rounds=1 -p no:cacheprovider"
)

IN_ONE_PROCESS = """
import contextlib, importlib.metadata, io, json, os, sys, pytest
(script,) = importlib.metadata.entry_points(group="console_scripts", name="perf-tests")
main = script.load()
os.execv = lambda executable, words: codes.append(pytest.main(words[3:]))
ends = []
for words in json.load(sys.stdin):
    codes, said = [], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        codes.append(main(words))
    ends.append([int(codes[0]), said.getvalue()])
from perf_tests_suite import model
json.dump([model.__file__, ends], sys.stdout)
"""
"""Runs commands in one process, which loads torch once: their words come in, exit codes and what they said go out."""


def in_quick_form(command: str) -> str:
    """The same without a network and in seconds: this machine's torch, a tiny case, one launch pair."""
    packages = sysconfig.get_path("purelib")
    shortened = {
        "python3 -m venv env": f"{sys.executable} -m venv --without-pip env && "
        f'echo {packages} > "$(echo env/lib/python*/site-packages)/of_the_machine.pth"',
        "perf-tests run --model train/model.py:build": f"perf-tests run --model train/model.py:build {QUICK}",
        "--against main": "--against main --gate-minutes=0.01",
    }
    if command.startswith(INSTALL):
        assert shlex.split(command)[2:-2] == ["git+https://github.com/OWNER/SUITE"]
        return "env/bin/python -m pip install --quiet --no-index --no-deps --no-build-isolation ./published"
    for typed, quick in shortened.items():
        command = command.replace(typed, quick)
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mine/`, a repository with a model and a remote, and `env/` with the suite, built from a copy of it.

    `plugins/` holds those that make a launch quick; the copy is gone.
    """
    folder = tmp_path_factory.mktemp("wheel") / "there"
    (folder / "mine/train").mkdir(parents=True)
    (folder / "mine/train/model.py").write_text("\n".join(MODEL) + "\n")
    git(folder, "init", "-q", "--bare", "origin.git")
    commit(folder / "mine")
    git(folder / "mine", "remote", "add", "origin", str(folder / "origin.git"))
    (folder / "published").mkdir()
    copy_suite(folder / "published")
    (folder / "plugins").mkdir()
    shutil.move(folder / "published/tests", folder / "plugins/tests")
    for name in ("numerics_tests", "published", "examples"):
        shutil.copytree(ROOT / name, folder / "published" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in COMMANDS[: 1 + next(n for n, typed in enumerate(COMMANDS) if typed.startswith(INSTALL))]:
        run(in_quick_form(command), folder)
    shutil.rmtree(folder / "published")
    return folder


def environment_in(folder: Path) -> dict[str, str]:
    """The wheel's alone, beside the plugins."""
    who = {f"GIT_{who}_{what}": "nobody@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (folder.parent / "tmp").mkdir(exist_ok=True)
    plugins = next(parent for parent in (folder, *folder.parents) if parent.name == "there") / "plugins"
    return {**inherited(PYTHONPATH=str(plugins), TMPDIR=str(folder.parent / "tmp")), **who}


def run(command: str, folder: Path) -> tuple[str, Path]:
    """What it printed, and the folder in which the shell is then."""
    script = f"{command}\nexit_code=$?; pwd > {folder}/../here; exit $exit_code"
    words = ["/bin/bash", "-c", script]
    ended = subprocess.run(words, cwd=folder, env=environment_in(folder), capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout, Path((folder.parent / "here").read_text().strip())


def test_ten_commands_lead_from_nothing_to_a_gated_pull_request(folder: Path) -> None:
    assert len(COMMANDS) == 10
    mine, here, said = folder / "mine", folder, ""
    for command in COMMANDS[2:]:
        printed, here = run(in_quick_form(command), here)
        said += printed
        if command.startswith(EDIT):
            text = (mine / "train/model.py").read_text()
            (mine / "train/model.py").write_text(text.replace("Each token becomes", "Every token becomes"))
    (record,) = mine.glob(".benchmarks/*/*.json")
    assert record.name.startswith("0001_" + git(mine, "rev-parse", "main")[:12])
    # Cases are called as in a checkout.
    (row,) = json.loads(record.read_bytes())["benchmarks"]
    assert row["fullname"] == "perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-own]"
    (samples,) = mine.glob(".benchmarks/gate/*.jsonl")
    header = read_samples(samples).header
    assert header["base"]["revision"] == git(mine, "rev-parse", "main")
    assert header["head"]["changed_files"] == 1
    assert "gate: PASSED" in said
    pushed = git(folder / "origin.git", "ls-tree", "-r", "--name-only", "change").splitlines()
    workflows = sorted(path.name for path in (ROOT / "examples/workflows").iterdir())
    assert pushed == [*(f".github/workflows/{name}" for name in workflows), "train/model.py"]


def test_the_other_commands_of_the_page_run_from_the_wheel(folder: Path) -> None:
    """In a folder of no repository; benchmarks are collected, one is measured, and one claim on the example is tested.

    The largest size, which takes long to count, is the smallest here.
    """
    assert len(OTHERS) == 12
    away = folder / "away"
    shutil.copytree(ROOT / "examples", away / "examples")
    values = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 1}
    (away / "CONFIG.json").write_text(json.dumps(values))
    collects = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    claim = "run numerics_tests/test_attention.py -q -k past_does --attention"
    more = [shlex.split(line) for line in (
        f"{claim} examples/flash_attention.py:flash_attention -p no:cacheprovider",
        f"run {QUICK} -k test_forward",
        f"run --against main {QUICK}",
        "report -o page.html",
    )]  # fmt: skip
    typed = [
        [*words, *(collects if words[0] == "run" else ())]
        for words in (shlex.split(line.replace("2.7B", "tiny").removeprefix("perf-tests ")) for line in OTHERS)
    ]
    ended = subprocess.run(
        [folder / "env/bin/python", "-c", IN_ONE_PROCESS], cwd=away, env=environment_in(away), capture_output=True,
        text=True, input=json.dumps([*typed, *more]),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    model, ends = json.loads(ended.stdout)
    assert Path(model).is_relative_to(folder / "env")
    *told, (refused, why), _ = ends
    failed = {shlex.join(words): said for (code, said), words in zip(told, [*typed, *more[:2]], strict=True) if code}
    if find_spec("transformers") is None:
        needy = [failed.pop(command) for command in list(failed) if "hf:CONFIG.json" in command]
        assert ["install it with `pip install transformers`" in said for said in needy] == [True] * 3
    assert failed == {}
    assert refused == 4
    assert "The installed suite's own model lies in no git repository, so it has no base" in why
    assert [path.parent.parent for path in away.glob(".benchmarks/*/0001_unversioned.json")] == [away / ".benchmarks"]
    assert (away / "page.html").is_file()


def test_a_gate_of_the_wheel_is_never_green_for_what_it_did_not_look_at(folder: Path) -> None:
    """In a repository with a test of its own, which pytest's own command gates, and with it the suite's checkout."""
    (installed,) = folder.glob("env/lib/*/site-packages")
    (points,) = installed.glob("perf_tests-*/entry_points.txt")  # else those of this environment would do
    assert "perf-tests = pytest_perf_tests" in points.read_text()
    assert (installed / "pytest_perf_tests.py").is_file()
    team = folder / "team"
    team.mkdir()
    (team / "test_team.py").write_text(OF_A_TEAM)
    commit(team)
    no_plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collected = "perf_tests/test_forward.py::test_forward[tiny-ctx128-fp32-naive]"
    for place, command, variables, code, words in (
        (team, "perf-tests run --size tiny --against main", {}, 4, f"nothing of the repository {team.resolve()}"),
        (team, "python -m pytest --against main", no_plugins, 4, "unrecognized arguments: --against"),
        (team, "python -m pytest -p no:perf-tests --against main", {}, 4, "unrecognized arguments: --against"),
        (team, "python -m pytest -s", {}, 0, "alone"),
        (team, "python -m pytest --against main", {}, 0, "gate: PASSED (1 SAME)"),
        (ROOT, f"{PLAIN} --against HEAD perf_tests/test_forward.py --size tiny --device cpu", {}, 0, collected),
    ):
        program, *typed = command.split()
        ended = subprocess.run(
            [f"{folder}/env/bin/{program}", *typed], cwd=place, env={**environment_in(team), **variables},
            capture_output=True, text=True,
        )  # fmt: skip
        said = ended.stdout + ended.stderr
        assert (ended.returncode, words in said, "passed" in said) == (code, True, words == "alone"), (command, said)


PLAIN = "python -m pytest -p no:cacheprovider --collect-only -q"
OF_A_TEAM = """
import sys

def test_team(benchmark):
    print("beside" if "perf_tests_suite" in sys.modules else "alone")
    benchmark(abs, 1)
"""


OF_A_KERNEL = """
import model
import torch
from perf_tests_suite.numerics_tests import within_bounds

def test_mine():
    assert model.MINE
    within_bounds("softmax", [torch.zeros(3)], torch.full((3,), 1 / 3))

def test_wrong():
    within_bounds("softmax", [torch.zeros(3)], torch.full((3,), 0.3334))
"""


def test_a_kernel_is_judged_in_a_plain_pytest_beside_a_model_of_that_name(folder: Path) -> None:
    """From the wheel; nothing of the suite is found by another name than its package's."""
    away = folder / "kernels"
    away.mkdir()
    (away / "model.py").write_text("MINE = True\n")
    (away / "test_kernel.py").write_text(OF_A_KERNEL)
    words = [str(folder / "env/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(words, cwd=away, env=environment_in(away), capture_output=True, text=True)
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "ulp at [0], allowed" in ended.stdout


def test_the_page_names_what_the_reusable_gate_takes() -> None:
    text = (ROOT / ".github/workflows/reusable-gate.yml").read_text()
    names = ("model", "options", "runner", "minutes", "requirements", "pythonpath", "submodules", "lfs", "base")
    for name in names:
        assert f"      {name}:\n        description:" in text
    said = PAGE.partition("`.github/workflows/reusable-gate.yml` takes ")[2].partition(". ")[0]
    assert tuple(re.findall(r"`(\w+)`", said.replace("(`src`", ""))) == names
