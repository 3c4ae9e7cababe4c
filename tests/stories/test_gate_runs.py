"""The gate as a user starts it, on a repository of its own with a planted change between base and head."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.gate.samples import ExactFinding, GateSamples, Uncounted, read_samples
from perf_tests_suite.perf_tests.gate.verdicts import OF_TWO_BUILDS
from perf_tests_suite.perf_tests.interleaved import run, sides
from tests.support.fake_sides import workers_in
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit, git, make_repository
from tests.support.launch import ROOT, start_command

ONE_CASE = (
    "perf_tests/test_attention.py", "-p", "tests.support.quick_gate", "-p", "no:cacheprovider", "--device=cpu",
    "--threads=1", "--phase=forward", "--warmup-rounds=1", "--head-dim=16", "--sequence-length=256",
)  # fmt: skip
OLDEST = "a554965"
"""The first commit whose model these benchmarks still measure."""
NAIVE = "test_attention_forward[d16-seq256-fp32-naive]"

SOFTMAX = "weights_BHTT = softmax(scores_BHTT)"


def change(clone: Path, old: str, new: str, file: str = "attention") -> None:
    path = clone / f"model/{file}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def begin(clone: Path, *arguments: str) -> subprocess.Popen[str]:
    (clone.parent / "tmp").mkdir(exist_ok=True)
    command = (forked_python(), "-m", "pytest", *ONE_CASE, *arguments)
    return start_command(command, clone, clone, TMPDIR=str(clone.parent / "tmp"))


def gate(clone: Path, *arguments: str, exit_code: int = 0) -> str:
    """What a run printed that ended so and left nothing behind."""
    process = begin(clone, *arguments)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == exit_code, output + errors
    assert leftovers(clone) == []
    return output


def samples_of(clone: Path) -> GateSamples:
    (path,) = (clone / ".benchmarks/gate").glob("*.jsonl")
    return read_samples(path)


def leftovers(clone: Path) -> list[object]:
    """Trees and workers that are still there."""
    return [*(clone.parent / "tmp").glob(f"{sides.TREES}*"), *workers_in(clone.parent / "tmp")]


def test_a_planted_operation_fails_a_gate_of_no_minutes_with_its_line(clone: Path) -> None:
    change(clone, SOFTMAX, "softmax(scores_BHTT)\n        " * 9 + SOFTMAX)
    said = gate(clone, "--attention=naive", "--against=main", "--gate-minutes=0", exit_code=1)
    (offered,) = (clone / ".benchmarks/gate").glob("*_accept.toml")
    assert '"kernel_launches" = ' in offered.read_text()
    assert re.search(r"MORE: .*: .*kernel_launches rose from 12 to \d+", said)
    assert re.search(r"  model/attention\.py:\d+ `softmax\(scores_BHTT\)`", said)
    lines = said.strip().splitlines()
    assert (lines[-1], len(lines) <= 15) == ("gate: FAILED (1 MORE; 3 counters rose in 1 case)", True), said
    assert samples_of(clone).measurements == []


def test_a_planted_slowdown_is_found_and_offered_and_fails_the_run(clone: Path) -> None:
    """Work in Python, of which no counter tells."""
    change(clone, SOFTMAX, f"sum(range(10**6))\n        {SOFTMAX}")
    said = gate(clone, "--attention=naive", "--against=main", "--gate-summary=summary.md", "-v", exit_code=1)
    (offered,) = (clone / ".benchmarks/gate").glob("*_accept.toml")
    for pattern in (
        rf"{re.escape(NAIVE)} SLOWER", r"main \(", r"1 uncommitted change\)", re.escape(str(offered)),
    ):  # fmt: skip
        assert re.search(pattern, said)
    (figure,) = re.findall(r"  (\+\d+\.\d%)  ", said)
    assert (said.count(figure), "FAILURES" in said) == (1, False), "the row of the table has it, no other line"
    assert "limit = " in offered.read_text()
    assert "SLOWER" in (clone / "summary.md").read_text()
    samples = samples_of(clone)
    assert (samples.end, samples.header["head"]["changed_files"], samples.of(Uncounted)) == ("finished", 1, [])
    assert git(clone, "worktree", "list").count("\n") == 0
    assert git(clone, "status", "--porcelain") == " M model/attention.py\n?? summary.md"


def test_base_under_another_interpreter_is_named_with_its_build_and_counts_without_failing(clone: Path) -> None:
    said = gate(
        clone, "--attention=naive", "--against=HEAD", f"--against-python={forked_python()}", "--gate-minutes=0.01", "-v"
    )
    assert said.count(f"under {run.build_here()}") == 2
    assert "8 exact counters are the same on both sides" in said
    assert OF_TWO_BUILDS in said


def test_the_same_code_on_both_sides_passes_and_is_replayed_to_the_same_verdict(clone: Path) -> None:
    said = gate(clone, "--attention=naive", "--against=HEAD", "--gate-measure-same", "-v")
    (path,) = (clone / ".benchmarks/gate").glob("*.jsonl")
    command = [forked_python(), "-m", "perf_tests", "replay", str(path)]
    replayed = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert re.search(rf"{re.escape(NAIVE)} (OK|UNDECIDED|FASTER)", said)
    assert "model/ is identical on both sides" in said
    assert samples_of(clone).of(ExactFinding) == []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line["cores"] for line in lines if "orders" in line), "on a CPU both sides share cores"
    (verdict,) = {*re.findall(r"^gate: .*$", said, re.MULTILINE)}
    assert verdict in replayed.stdout


def test_another_comment_is_the_same_program_and_ends_before_anything_is_measured(clone: Path) -> None:
    """The worker of each side has imported, built and played the case."""
    change(clone, "import math\n", "import math  # for one root\n")
    said = gate(clone, "--attention=naive", "--against=HEAD", "-v")
    assert f"{NAIVE} SAME" in said
    assert "gate: PASSED (1 SAME)" in said
    assert samples_of(clone).measurements == []


def without_a_model(clone: Path) -> None:
    (clone / "model").rename(clone.parent / "kept")
    commit(clone)
    (clone.parent / "kept").rename(clone / "model")


def with_another_interface(clone: Path) -> None:
    change(clone, "def naive_attention(", "def plain_attention(")
    change(clone, "ATTENTION = {", "ATTENTION = {} or {")
    change(clone, "naive_attention", "plain_attention")
    change(clone, "ModelConfig", "Shape", "sizes")
    commit(clone)
    git(clone, "checkout", "-q", "HEAD~1", "--", "model")


def without_sdpa_at_head(clone: Path) -> None:
    change(clone, "lambda: sdpa_attention, _anywhere", "lambda: sdpa_attention, lambda device, head_dim: 'not today'")


@pytest.mark.parametrize(
    ("make", "attention", "exit_code", "pattern"),
    [
        (without_a_model, "naive", 0, rf"{re.escape(NAIVE)} NEW(.|\n)*it has no model/"),
        (with_another_interface, "naive", 4, "INCOMPARABLE: nothing was compared, because .* benchmarks: ImportError"),
        (without_sdpa_at_head, "sdpa", 1, r"NO LONGER SUPPORTED: .* head unsupported: not today\."),
    ],
)
def test_a_case_that_one_side_cannot_measure_is_new_or_lost_with_the_reason(
    clone: Path, make: Callable[[Path], None], attention: str, exit_code: int, pattern: str
) -> None:
    make(clone)
    words = (f"--attention={attention}", "--against=HEAD", "-v", "--gate-minutes=0.01")
    assert re.search(pattern, gate(clone, *words, exit_code=exit_code))


def test_this_tree_is_still_judged_against_the_oldest_base(tmp_path: Path) -> None:
    """The suite as it is, committed on top of the history of this checkout, from before the rooms."""
    found = subprocess.run(["git", "cat-file", "-e", f"{OLDEST}^{{commit}}"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"{OLDEST} is not in this clone: fetch the whole history to gate against it")
    git(tmp_path, "clone", "-q", "--shared", "--no-checkout", str(ROOT), "suite")
    said = gate(make_repository(tmp_path / "suite"), "--attention=naive", "--against", OLDEST, "-v")
    assert re.search(rf"{re.escape(NAIVE)} (OK|UNDECIDED|FASTER)", said), said


def test_two_implementations_of_one_revision_are_compared(clone: Path) -> None:
    said = gate(clone, "--attention=sdpa", "--against-option=attention=naive", "--gate-minutes=0.01")
    assert "with attention naive against working tree" in said
    lines = [line for line in said.splitlines() if line.strip()]
    verdict = next(place for place, line in enumerate(lines) if line.startswith("gate: "))
    assert (lines[verdict], verdict <= 3, len(lines) <= 15) == (lines[-1], True, True), said
    assert not any(words in said for words in ("test session starts", "test_attention.py ", " in 1", "passed")), said
    samples = samples_of(clone)
    assert (samples.end, samples.of(ExactFinding)) == ("budget", [])
    (line,) = samples.measurements
    assert line.case.endswith("[d16-seq256-fp32-sdpa]")
    assert line.base_seconds.min() > line.head_seconds.min()


@pytest.mark.parametrize(("way_to_end", "exit_code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143)])
def test_an_ended_run_keeps_its_samples_and_no_tree(clone: Path, way_to_end: signal.Signals, exit_code: int) -> None:
    process = begin(clone, "--attention=naive", "--against=HEAD", "--gate-measure-same", "-v")
    assert process.stdout is not None
    seen = ""
    while "launch pair 2" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    while not workers_in(clone.parent / "tmp"):
        assert process.poll() is None, seen
        time.sleep(0.01)
    process.send_signal(way_to_end)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == exit_code, seen + output + errors
    assert "replay" in output
    samples = samples_of(clone)
    assert (samples.end, len(samples.measurements), leftovers(clone)) == ("interrupted", 1, [])


def test_an_accepted_file_that_is_damaged_is_refused(clone: Path) -> None:
    (clone / ".benchmarks").mkdir()
    (clone / ".benchmarks/accepted.toml").write_text("[[accepted]]\nid = 'x'\n")
    process = begin(clone, "--attention=naive", "--against=main")
    assert "accepted.toml" in process.communicate(timeout=600)[1]
    assert process.returncode == 4
