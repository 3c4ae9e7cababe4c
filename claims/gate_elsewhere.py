"""The gate in a repository of somebody else: unchanged code passes, 10 % more work is found, nothing else is touched.

A throw-away repository holds a model of equal layers. Head is the same code with another comment, then a model of a
tenth more layers; each is gated from that repository by the shipped command line.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from claims import verdict
from perf_tests.gate.samples import read_samples, rules_from_settings
from perf_tests.gate.verdicts import GateResult, Verdict, conclude
from perf_tests.user_code.named import SUITE
from tests.support.git_repository import commit, git

LAYERS = 20
WIDTH = 256
SLOWER = 0.1

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


def write_model(folder: Path, layers: int = LAYERS, width: int = WIDTH, comment: str = "Layers of one kind") -> None:
    """`train/model.py` as it is from now on."""
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train/model.py").write_text(SOURCE.format(layers=layers, width=width, comment=comment))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of each of the two gates (10)")
    minutes = parser.parse_args().minutes
    print(verdict.conditions(threads=1))
    unchanged = gated(LAYERS, "The same layers", minutes)
    slower = gated(round(LAYERS * (1 + SLOWER)), "The same layers, a tenth more of them", minutes)
    every = {row.id for row in slower.cases}
    risen = {row.id for row in slower.exact if row.verdict == Verdict.MORE}
    return verdict.gravest(
        verdict.conclude("unchanged code of another repository passes", unchanged.exit_code == 0),
        verdict.conclude(f"{SLOWER:.0%} more work is found by exact counters in every case", risen == every),
        by_time(slower),
    )


def by_time(slower: GateResult) -> int:
    """The claim is made where the run says that it could detect half of it, for which it needs time and calm."""
    if slower.detectable is None or slower.detectable > SLOWER / 2:
        found = "none" if slower.detectable is None else f"one of {slower.detectable:.1%}"
        print(f"this run could detect no slowdown of {SLOWER / 2:.0%} by time, but {found}.")
        return 2
    found_all = all(row.verdict == Verdict.SLOWER for row in slower.cases)
    return verdict.conclude(f"{SLOWER:.0%} more work is found by time in every case", found_all)


def gated(layers: int, comment: str, minutes: float) -> GateResult:
    """The verdict on a head with so many layers. Raises RuntimeError where the gate changed the repository."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        git(folder, "init", "-q", "-b", "main")
        commit(folder)
        write_model(folder, layers, comment=comment)
        before = state(folder)
        command = (*pytest(), *OPTIONS, "--model=train/model.py:build", "--against=main", f"--gate-minutes={minutes}")
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if state(folder) != before:
            raise RuntimeError(f"the gate changed the repository:\n{state(folder)}")
        samples = sorted((folder / ".benchmarks/gate").glob("*.jsonl"))
        if not samples:
            raise RuntimeError(f"the gate ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        read = read_samples(samples[-1])
        result = conclude(read, rules_from_settings(read.header["settings"]))
    for row in result.cases:
        effect = "no effect measured" if row.effect is None else f"{row.effect.effect:+.1%}"
        print(f"{layers / LAYERS - 1:+.0%} layers: {row.id.rpartition('::')[2]} {row.verdict} {effect}")
    return result


def pytest() -> Sequence[str]:
    """As `perf-tests run` starts it."""
    return (sys.executable, "-m", "pytest", "--config-file", str(SUITE / "pyproject.toml"), str(SUITE / "perf_tests"))


def state(folder: Path) -> str:
    """Everything that git knows of the repository and of its files, records aside."""
    known = ("status", "--porcelain", "--ignored", "--", ".", ":(exclude).benchmarks")
    return "\n".join(
        git(folder, *words) for words in (known, ("for-each-ref",), ("worktree", "list"), ("stash", "list"))
    )


if __name__ == "__main__":
    sys.exit(main())
