"""The workflows: what a pull request may do with them, and their scripts, run with stand-ins for what they call."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.documents import ROOT

WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
EXAMPLES = {path.stem: path.read_text() for path in (ROOT / "examples/workflows").glob("*.yml")}


def script(workflow: str, step: str) -> str:
    """What the named step of a workflow runs."""
    found = re.search(rf"- name: {step}\n(?:.*\n)*?        run: \|\n((?: {{10}}.*\n|\n)+)", WORKFLOWS[workflow])
    assert found is not None
    return dedent(found[1])


def run(text: str, folder: Path, files: Mapping[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the runner runs it, in a folder with these files; those in a `bin/` stand in for programs."""
    for name, content in {"temp/empty": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{content}\n" if "bin/" in name else content)
        path.chmod(0o755)
    variables = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(folder / "temp"), **environment}
    return subprocess.run(["bash", "-e", "-c", text], cwd=folder, env=variables, capture_output=True, text=True)


def test_what_may_write_runs_nothing_of_a_pull_request() -> None:
    for text in (*WORKFLOWS.values(), *EXAMPLES.values()):
        assert "pull_request_target" not in text
        if re.search(r": write\b", text):
            assert "actions/checkout" not in text
            assert "perf-tests run" not in text
        else:
            assert "secrets." not in text


def test_every_action_is_pinned_by_its_commit_and_every_image_by_its_version() -> None:
    texts = "".join(WORKFLOWS.values())
    used = re.findall(r"uses: (\S+)", texts)
    assert len(used) > 5
    assert [name for name in used if not re.search(r"@[0-9a-f]{40}$", name) and not name.startswith("./")] == []
    assert "-latest" not in texts


def test_no_script_contains_what_an_event_says() -> None:
    """It comes in as variables of the environment, where no shell reads it as code."""
    scripts = [block for text in WORKFLOWS.values() for block in re.findall(r"run: \|\n((?: {10}.*\n|\n)+)", text)]
    assert len(scripts) == 5
    assert [block for block in scripts if "${{" in block] == []


def test_ours_are_built_on_the_reusable_ones_and_a_change_of_pages_measures_nothing() -> None:
    for name in ("gate", "comment"):
        assert f"uses: ./.github/workflows/reusable-{name}.yml" in WORKFLOWS[name]
        assert f"uses: OWNER/SUITE/.github/workflows/reusable-{name}.yml@REVISION" in EXAMPLES[name]
    (ignored,) = re.findall(r"paths-ignore: \[(.*)\]", WORKFLOWS["gate"])
    assert {'"docs/**"', '"**.md"'} <= set(ignored.split(", "))
    assert "accepted" not in ignored
    for name in ("gate", "history"):
        assert f"uses: OWNER/SUITE/.github/workflows/reusable-{name}.yml@REVISION" in EXAMPLES["history"]
    inputs = set(re.findall(r"^      ([\w-]+):\n        description:", WORKFLOWS["reusable-gate"], re.MULTILINE))
    for name in ("gate", "history"):
        given = EXAMPLES[name].partition("with:")[2].partition("history:")[0]
        assert set(re.findall(r"^      ([\w-]+): ", given, re.MULTILINE)) <= inputs
    assert {"model", "options", "runner", "minutes"} <= inputs


def test_what_a_caller_requires_is_held_to_every_pin_of_the_suite_that_of_torch_too(tmp_path: Path) -> None:
    files, typed = (
        {"bin/make": "true", "suite/.venv/bin/pip": 'echo "$@"'},
        {"MODEL": "hf:a.json", "REQUIREMENTS": "own.txt"},
    )
    ended = run(script("reusable-gate", "Install"), tmp_path, files, SUITE="suite", **typed)
    held = "install --quiet --constraint suite/constraints.txt"
    assert ended.stdout.splitlines() == [f"{held} --editable suite[hf]", f"{held} --requirement code/own.txt"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if pin.startswith("torch==")] != []


@pytest.mark.parametrize("model, typed", [("", ""), ("train/model.py:build", " --model train/model.py:build")])
def test_the_gate_is_given_its_options_and_never_a_recorded_baseline(tmp_path: Path, model: str, typed: str) -> None:
    files = {"suite/.venv/bin/perf-tests": 'echo "$@"; echo "$PYTHONPATH"', "code/a": ""}
    inputs = {"SUITE": "suite", "BASE": "HEAD^1", "MINUTES": "7", "OPTIONS": "--size tiny", "MODEL": model}
    folders = {"FOLDERS": "src:lib" if model else "", "PYTHONPATH": ""}
    ended = run("cd code\n" + script("reusable-gate", "Gate"), tmp_path, files, **inputs, **folders)
    words, path = ended.stdout.splitlines()
    summary = f"--gate-summary {tmp_path}/temp/gate.md"
    assert words == f"run --against HEAD^1 --gate-minutes 7 {summary} --size tiny{typed}", ended.stderr
    assert path == (f"{tmp_path}/code/src:{tmp_path}/code/lib" if model else "")
    assert "--benchmark-compare" not in WORKFLOWS["reusable-gate"]


def test_the_verdicts_are_kept_for_the_summary_and_the_comment(tmp_path: Path) -> None:
    files = {"temp/gate.md": "| case |\n", "code/.benchmarks/gate/one.jsonl": ""}
    files["suite/.venv/bin/perf-tests"] = 'echo "$1 of $2" >&2; exit 1'
    text = "cd code\n" + script("reusable-gate", "Verdicts")
    ended = run(text, tmp_path, files, SUITE="suite", GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "summary").read_text() == "| case |\n"
    assert (tmp_path / "temp/gate/verdicts.txt").read_text() == "replay of .benchmarks/gate/one.jsonl\n"
    assert (tmp_path / "temp/gate/one.jsonl").exists()


@pytest.mark.parametrize("branches, writes", [("perf-history", 2), ("other", 0)])
def test_samples_of_the_main_branch_are_added_to_a_known_branch(tmp_path: Path, branches: str, writes: int) -> None:
    github = f"""case "$*" in
  *heads/{branches}*) ;;
  *PUT*) echo "$*" >> asked; base64 --decode content | gzip --decompress >> written ;;
  *) exit 1 ;;
esac"""
    files = {"bin/gh": github, "gate/one.jsonl": "{}\n", "gate/$(touch pwned).jsonl": "{}\n"}
    inputs = {"REPOSITORY": "them/theirs", "BRANCH": "perf-history", "NAME": "0123-7-1", "GH_TOKEN": "none"}
    ended = run(script("reusable-history", "Record"), tmp_path, files, **inputs)
    assert (ended.returncode, "git push origin $(git commit-tree" in ended.stdout) == (int(not writes), not writes)
    asked = (tmp_path / "asked").read_text().splitlines() if writes else []
    numbers = range(1, writes + 1)
    assert [line.split()[3] for line in asked] == [f"repos/them/theirs/contents/0123-7-1-{n}.jsonl.gz" for n in numbers]
    assert all("branch=perf-history" in line for line in asked)
    assert not writes or (tmp_path / "written").read_text() == "{}\n" * 2
    assert not (tmp_path / "pwned").exists()


def commented(folder: Path, verdicts: str | None, pull_request: str = "17", earlier: str = "") -> tuple[str, str]:
    """What the comment's script asks GitHub to write, and the text."""
    github = f"""case "$*" in
  *--method\\ GET*/pulls*) echo "{pull_request}" ;;
  *--paginate*) printf '{earlier}' ;;
  *) echo "$*" > asked ;;
esac"""
    event = {
        "REPOSITORY": "them/theirs", "OWNER": "them", "BRANCH": "x&state=all", "HEAD": "0123456789abcdef" * 2,
        "CONCLUSION": "failure", "RUN": "https://localhost/run", "GH_TOKEN": "none",
    }  # fmt: skip
    files = {"bin/gh": github, "asked": "", "comment.md": ""}
    files |= {} if verdicts is None else {"gate/verdicts.txt": verdicts}
    ended = run(script("reusable-comment", "Comment"), folder, files, **event)
    assert ended.returncode == 0, ended.stderr
    return (folder / "asked").read_text(), (folder / "comment.md").read_text()


TO_ISSUE, TO_COMMENT = "--method POST repos/them/theirs/issues/17/comments", "--method PATCH repos/them/theirs/issues"
COMMENTS: dict[str, tuple[str | None, str, str, str, str]] = {
    # the verdict, the pull request, earlier comments, what GitHub is asked for, and the text
    "the first": ("gate: FAILED (1 SLOWER)\n", "17", "", TO_ISSUE, "(1 SLOWER)"),
    "in place of the last": ("gate: PASSED\n", "17", "4711\\n4712\\n", f"{TO_COMMENT}/comments/4711 ", "PASSED"),
    "none, which is said too": (None, "17", "4711\\n", TO_COMMENT, "No verdict: the log of the run says why."),
    "of an older head": ("gate: PASSED\n", "", "", "", ""),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_a_verdict_is_a_comment_on_its_pull_request(name: str, tmp_path: Path) -> None:
    said, pull_request, earlier, asked_for, text = COMMENTS[name]
    asked, written = commented(tmp_path, said, pull_request, earlier)
    assert (asked_for in asked, text in written, bool(asked)) == (True, True, bool(pull_request))
    assert written.startswith("<!-- perf-tests gate -->\n") is bool(pull_request)
    assert said is not None or "**failure**" in written


def test_what_a_pull_request_prints_stays_plain_text(tmp_path: Path) -> None:
    hostile = "~~~~~~\n[click](http://localhost) @everybody\x1b[31m\n" + "x" * 100_000
    _, text = commented(tmp_path, hostile)
    fences = [place for place, line in enumerate(text.splitlines()) if line.startswith("~~~")]
    assert len(fences) == 2
    assert "click" in "".join(text.splitlines()[fences[0] : fences[1]])
    assert "\x1b" not in text
    assert len(text) < 65_536, "GitHub refuses a longer comment"
