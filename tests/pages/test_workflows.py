"""The workflows: what a pull request may do with them, and their scripts, run with stand-ins for what they call."""

import os
import re
import subprocess
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


def run(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the runner runs it, with the stand-ins in `bin/` first on the path."""
    variables = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(folder / "temp"), **environment}
    (folder / "temp").mkdir(exist_ok=True)
    return subprocess.run(["bash", "-e", "-c", text], cwd=folder, env=variables, capture_output=True, text=True)


def stand_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


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
    stand_in(tmp_path / "bin/make", "true")
    stand_in(tmp_path / "suite/.venv/bin/pip", 'echo "$@"')
    ended = run(script("reusable-gate", "Install"), tmp_path, SUITE="suite", MODEL="hf:a.json", REQUIREMENTS="own.txt")
    held = "install --quiet --constraint suite/constraints.txt"
    assert ended.stdout.splitlines() == [f"{held} --editable suite[hf]", f"{held} --requirement code/own.txt"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if pin.startswith("torch==")] != []


@pytest.mark.parametrize("model, typed", [("", ""), ("train/model.py:build", " --model train/model.py:build")])
def test_the_gate_is_given_its_options_and_never_a_recorded_baseline(tmp_path: Path, model: str, typed: str) -> None:
    stand_in(tmp_path / "suite/.venv/bin/perf-tests", 'echo "$@"; echo "$PYTHONPATH"')
    (tmp_path / "code").mkdir()
    inputs = {"SUITE": "suite", "BASE": "HEAD^1", "MINUTES": "7", "OPTIONS": "--size tiny", "MODEL": model}
    folders = {"FOLDERS": "src:lib" if model else "", "PYTHONPATH": ""}
    ended = run("cd code\n" + script("reusable-gate", "Gate"), tmp_path, **inputs, **folders)
    words, path = ended.stdout.splitlines()
    summary = f"--gate-summary {tmp_path}/temp/gate.md"
    assert words == f"run --against HEAD^1 --gate-minutes 7 {summary} --size tiny{typed}", ended.stderr
    assert path == (f"{tmp_path}/code/src:{tmp_path}/code/lib" if model else "")
    assert "--benchmark-compare" not in WORKFLOWS["reusable-gate"]


def test_the_verdicts_are_kept_for_the_summary_and_the_comment(tmp_path: Path) -> None:
    stand_in(tmp_path / "suite/.venv/bin/perf-tests", 'echo "$1 of $2" >&2; exit 1')
    (tmp_path / "code/.benchmarks/gate").mkdir(parents=True)
    (tmp_path / "code/.benchmarks/gate/one.jsonl").touch()
    (tmp_path / "temp").mkdir()
    (tmp_path / "temp/gate.md").write_text("| case |\n")
    text = "cd code\n" + script("reusable-gate", "Verdicts")
    ended = run(text, tmp_path, SUITE="suite", GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "summary").read_text() == "| case |\n"
    assert (tmp_path / "temp/gate/verdicts.txt").read_text() == "replay of .benchmarks/gate/one.jsonl\n"
    assert (tmp_path / "temp/gate/one.jsonl").exists()


@pytest.mark.parametrize("branches, writes", [("perf-history", 2), ("other", 0)])
def test_samples_of_the_main_branch_are_added_to_a_known_branch(tmp_path: Path, branches: str, writes: int) -> None:
    stand_in(
        tmp_path / "bin/gh",
        f"""case "$*" in
  *heads/{branches}*) ;;
  *PUT*) echo "$*" >> asked; base64 --decode content | gzip --decompress >> written ;;
  *) exit 1 ;;
esac""",
    )
    (tmp_path / "gate").mkdir()
    for name in ("one", "$(touch pwned)"):
        (tmp_path / "gate" / f"{name}.jsonl").write_text("{}\n")
    inputs = {"REPOSITORY": "them/theirs", "BRANCH": "perf-history", "NAME": "0123-7-1", "GH_TOKEN": "none"}
    ended = run(script("reusable-history", "Record"), tmp_path, **inputs)
    assert (ended.returncode, "git push origin $(git commit-tree" in ended.stdout) == (int(not writes), not writes)
    asked = (tmp_path / "asked").read_text().splitlines() if writes else []
    assert [line.split()[3] for line in asked] == [
        f"repos/them/theirs/contents/0123-7-1-{number}.jsonl.gz" for number in range(1, writes + 1)
    ]
    assert all("branch=perf-history" in line for line in asked)
    assert not writes or (tmp_path / "written").read_text() == "{}\n" * 2
    assert not (tmp_path / "pwned").exists()


def commented(folder: Path, pull_request: str = "17", earlier: str = "") -> tuple[str, str]:
    """What the comment's script asks GitHub to write, and the text."""
    stand_in(
        folder / "bin/gh",
        f"""case "$*" in
  *--method\\ GET*/pulls*) echo "{pull_request}" ;;
  *--paginate*) printf '{earlier}' ;;
  *) echo "$*" > asked ;;
esac""",
    )
    event = {
        "REPOSITORY": "them/theirs", "OWNER": "them", "BRANCH": "x&state=all", "HEAD": "0123456789abcdef" * 2,
        "CONCLUSION": "failure", "RUN": "https://localhost/run", "GH_TOKEN": "none",
    }  # fmt: skip
    ended = run(script("reusable-comment", "Comment"), folder, **event)
    assert ended.returncode == 0, ended.stderr
    asked, text = folder / "asked", folder / "comment.md"
    return asked.read_text() if asked.exists() else "", text.read_text() if text.exists() else ""


def verdicts(folder: Path, text: str) -> None:
    (folder / "gate").mkdir()
    (folder / "gate/verdicts.txt").write_text(text)


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
    if said is not None:
        verdicts(tmp_path, said)
    asked, written = commented(tmp_path, pull_request, earlier)
    assert (asked_for in asked, text in written, bool(asked)) == (True, True, bool(pull_request))
    assert written.startswith("<!-- perf-tests gate -->\n") is bool(pull_request)
    assert said is not None or "**failure**" in written


def test_what_a_pull_request_prints_stays_plain_text(tmp_path: Path) -> None:
    verdicts(tmp_path, "~~~~~~\n[click](http://localhost) @everybody\x1b[31m\n" + "x" * 100_000)
    _, text = commented(tmp_path)
    fences = [place for place, line in enumerate(text.splitlines()) if line.startswith("~~~")]
    assert len(fences) == 2
    assert "click" in "".join(text.splitlines()[fences[0] : fences[1]])
    assert "\x1b" not in text
    assert len(text) < 65_536, "GitHub refuses a longer comment"
