"""Gates of throw-away repositories, whose truth is known: somebody else's, and sixteen commits of this one.

In the first, head is the same code with another comment, then a model of a tenth more layers; each is gated from that
repository by the shipped command line, and nothing else there is touched. In the other, `git bisect run` searches the
one commit that is slower by `--bisect`. Each of its commits changes `model/`, or it would not be measured.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from claims.planted import slow_attention
from perf_tests_suite.perf_tests.gate.samples import read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.verdicts import GateResult, Verdict, conclude
from perf_tests_suite.perf_tests.user_code.named import SUITE
from tests.support.git_repository import commit, git
from tests.support.launches import ROOT, LaunchError

LAYERS, WIDTH, SLOWER, GATE_MINUTES = 20, 256, 0.1, 10

OPTIONS = (
    "--device=cpu", "--threads=1", "--size=tiny", "--vocab-size=100", "--context=128", "--precision=fp32",
    "--phase=forward,full_step",
)  # fmt: skip

SOURCE = '''"""{comment}."""

from torch import nn


class Net(nn.Module):
    def __init__(self, vocab_size: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.mixing = nn.GRU(width, 8, batch_first=True)
        self.widening = nn.Linear(8, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        mixed, _ = self.mixing(embedded)
        return self.head(self.layers(embedded + self.widening(mixed)))


def build(config):
    return Net(config.vocab_size, {width}, {layers})
'''


def elsewhere() -> dict[str, float]:
    """Exit code on unchanged code, and the cases in which a tenth more work was missed by counters and by time.

    By time the claim is made where the run says that it could detect half of it, for which it needs time and calm.
    """
    unchanged = _gated(LAYERS, "The same layers")
    slower = _gated(round(LAYERS * (1 + SLOWER)), "The same layers, a tenth more of them")
    risen = {row.id for row in slower.exact if row.verdict == Verdict.MORE}
    found = {
        "exit code of unchanged code": float(unchanged.exit_code),
        "cases in which counters miss more work": len({row.id for row in slower.cases} - risen),
    }
    if slower.detectable is None or slower.detectable > SLOWER / 2:
        smallest = "none" if slower.detectable is None else f"one of {slower.detectable:.1%}"
        print(f"this run could detect no slowdown of {SLOWER / 2:.0%} by time, but {smallest}.")
        return found
    missed = sum(row.verdict != Verdict.SLOWER for row in slower.cases)
    return {**found, "cases in which time misses more work": missed}


def write_model(folder: Path, layers: int = LAYERS, width: int = WIDTH, comment: str = "Layers of one kind") -> None:
    """Write `train/model.py` as it is from now on."""
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train/model.py").write_text(SOURCE.format(layers=layers, width=width, comment=comment))


def _gated(layers: int, comment: str) -> GateResult:
    """The verdict on a head with so many layers. Raises RuntimeError where the gate changed the repository."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        git(folder, "init", "-q", "-b", "main")
        commit(folder)
        write_model(folder, layers, comment=comment)
        before = _state(folder)
        # As `perf-tests run` starts it.
        config = f"--config-file={SUITE / 'pyproject.toml'}"
        suite = (sys.executable, "-m", "pytest", config, str(SUITE / "perf_tests"))
        always = ("--model=train/model.py:build", "--against=main", "--gate-measure-same")
        gate = (*always, f"--gate-minutes={GATE_MINUTES}")
        ended = subprocess.run((*suite, *OPTIONS, *gate), cwd=folder, capture_output=True, text=True)
        if _state(folder) != before:
            raise RuntimeError(f"the gate changed the repository:\n{_state(folder)}")
        samples = sorted((folder / ".benchmarks/gate").glob("*.jsonl"))
        if not samples:
            raise RuntimeError(f"the gate ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        read = read_samples(samples[-1])
        result = conclude(read, rules_from_settings(read.header["settings"]))
    for row in result.cases:
        effect = "no effect measured" if row.effect is None else f"{row.effect.effect:+.1%}"
        print(f"{layers / LAYERS - 1:+.0%} layers: {row.id.rpartition('::')[2]} {row.verdict} {effect}")
    return result


def _state(folder: Path) -> str:
    """Everything that git knows of the repository and of its files, records aside."""
    known = ("status", "--porcelain", "--ignored", "--", ".", ":(exclude).benchmarks")
    return "\n".join(
        git(folder, *words) for words in (known, ("for-each-ref",), ("worktree", "list"), ("stash", "list"))
    )


COMMITS, TRIES, SLOWDOWN, SHAPE = 16, 5, 0.10, (32, 128)
"""Commits of a search, searches, and by how much attention of which head width and sequence length becomes slower."""

BISECTED = (
    sys.executable, "-P", "-m", "perf_tests", "run", "test_attention.py", "--device=cpu", "--threads=1",
    "--phase=forward", "--head-dim=32", "--sequence-length=128", "--attention=naive", "--gate-minutes=8", "--bisect",
)  # fmt: skip


def bisect() -> dict[str, float]:
    """Count searches in which `git bisect run` did not name the slower commit, drawn for each. Raises LaunchError."""
    wrong = 0
    for number in range(TRIES):
        slower = random.Random(f"planted {number}").randrange(1, COMMITS + 1)
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder, "clone")
            commits = _planted_commits(clone, slower)
            start = time.monotonic()
            git(clone, "bisect", "start", "HEAD", commits[0])
            command = ("git", "bisect", "run", *BISECTED, f"--against={commits[0]}")
            # This suite measures, and not the one that git checks out.
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            ended = subprocess.run(command, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
        named = re.findall(r"^([0-9a-f]{40}) is the first bad commit", ended.stdout, re.MULTILINE)
        if not named:
            raise LaunchError(f"`{' '.join(command)}` exited with {ended.returncode}.")
        wrong += named != [commits[slower]]
        minutes = (time.monotonic() - start) / 60
        print(
            f"planted as number {slower}, {commits[slower][:12]}; found: {named[0][:12]}, {minutes:.1f} min", flush=True
        )
    return {"searches that name another commit": wrong}


def _planted_commits(clone: Path, slower: int) -> list[str]:
    """The hashes of HEAD and the commits on top of it, number `slower` the slower one."""
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))
    commits = [git(clone, "rev-parse", "HEAD")]
    for number in range(1, COMMITS + 1):
        if number == slower:
            slow_attention(clone, {SHAPE: SLOWDOWN})
        with (clone / "model/attention.py").open("a") as file:
            file.write(f"# commit {number}\n")
        git(clone, "add", "--all")
        git(clone, "commit", "--quiet", "--message", f"Change number {number}")
        commits.append(git(clone, "rev-parse", "HEAD"))
    return commits
