"""`git bisect run` with `--bisect`: which commit git names, and that no end of pytest's is taken for a bad commit."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from claims.gate_elsewhere import write_model
from perf_tests_suite.perf_tests import IMPORTABLE
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit, git
from tests.support.launch import ROOT, inherited, until

SIZE = ("--device=cpu", "--threads=1", "--size=tiny", "--vocab-size=100", "--context=8", "--precision=fp32")
THEIRS = ("test_forward.py", "--model=train/model.py:build", *SIZE)
OURS = ("test_attention.py", "--phase=forward", "--head-dim=16", "--sequence-length=16", "--attention=naive", *SIZE[:2])
QUICK = ("-p", "perf_tests_suite.tests.support.quick_gate", "--gate-minutes=1", "--bisect")
"""Counters of the first launch pair, or the same program, decide."""


def program(*words: str) -> list[str]:
    """This suite, whatever checkout of it is the current folder."""
    return [forked_python(), "-m", "perf_tests_suite.perf_tests", "run", "-p", "no:cacheprovider", *words]


def environment(folder: Path) -> dict[str, str]:
    """Variables with temporary folders beside it, or a gate elsewhere on this machine would be in the way."""
    (folder.parent / "tmp").mkdir(exist_ok=True)
    return inherited(PYTHONPATH=str(IMPORTABLE), PYTHONSAFEPATH="1", TMPDIR=str(folder.parent / "tmp"))


def ended(folder: Path, words: Sequence[str], *more: str) -> tuple[int, str]:
    done = subprocess.run([*words, *more], cwd=folder, env=environment(folder), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A repository of their own with the tag `good`."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    write_model(folder, 2, 16)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    git(folder, "tag", "good")
    return folder


def test_another_checkout_of_the_suite_is_what_is_under_test_and_this_one_measures_it(tmp_path: Path) -> None:
    """Also of a version without `--bisect`, and of one whose model cannot be imported."""
    clone = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))
    source, options = clone / "model/attention.py", clone / "perf_tests/cases/gate_options.py"
    options.write_text(options.read_text().replace('Option("--bisect"', 'Option("--something-else"'))
    commit(clone)
    words = program(*OURS, *QUICK, "--against=HEAD")
    first = ended(clone, words)
    assert first[0] == 0, first[1]
    text = source.read_text()
    for changed, code in (
        (text.replace("shifted.exp()", "shifted.exp().exp().log()"), 1),
        (f"import no_such\n{text}", 125),
    ):
        source.write_text(changed)
        found = ended(clone, words)
        assert found[0] == code, found[1]


ENDS: dict[str, tuple[Sequence[str], int, str]] = {
    "an option of another name": (("--no-such-option",), 255, "has no option --no-such-option"),
    "no revision": (("--against=nothing",), 255, "names no revision"),
    "no file of that name at this commit": (("--model=none.py:build",), 125, "there is no file none.py"),
    "no case": (("-k=nothing",), 255, "No verdict on this commit: pytest ended with 5"),
    "a file of theirs": (("train/model.py",), 255, "which run apart; type one of them"),
}


@pytest.mark.parametrize("what", ENDS)
def test_an_end_without_a_verdict_skips_the_commit_or_stops_git(what: str, theirs: Path) -> None:
    more, code, words = ENDS[what]
    found, said = ended(theirs, program(*THEIRS, *QUICK, "--against=good", *more))
    assert (found, words in said) == (code, True), said


def test_pytest_alone_refuses_the_option_and_git_stops(theirs: Path) -> None:
    words = [forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), "--bisect", "--against=good"]
    code, said = ended(theirs, words)
    assert (code, "--bisect is for `perf-tests run`" in said) == (255, True), said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_git(number: int, theirs: Path) -> None:
    """Ctrl-C is for the whole group."""
    write_model(theirs, 3, 16)
    words = program(*THEIRS, "--bisect", "--gate-minutes=9", "--gate-measure-same", "--against=good")
    process = subprocess.Popen(
        words, cwd=theirs, env=environment(theirs), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        process_group=0,
    )  # fmt: skip
    until(lambda: [*theirs.glob(".benchmarks/gate/*.jsonl")])
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said.decode()
