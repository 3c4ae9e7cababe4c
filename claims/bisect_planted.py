"""Whether `bisect` names the commit that made a case slower: 16 commits in a clone, one of them slower by 10 %.

    python -m claims.bisect_planted [--tries N] [--gate-minutes MINUTES]

Each commit changes `model/`, or its verdict would be known without a measurement. The slower one is drawn for each try.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from claims.gate_slowdowns import slow_attention
from claims.verdict import conclude, conditions
from perf_tests.records.record import Json
from tests.support.git_repository import git
from tests.support.launches import ROOT, LaunchError

COMMITS = 16
SLOWDOWN = 0.10
SHAPE = (32, 128)
"""Head width and sequence length."""
CASE = "perf_tests/test_attention.py::test_attention_forward[d32-seq128-fp32-naive]"
OPTIONS = (
    "--device=cpu", "--threads=1", "--phase=forward", "--head-dim=32", "--sequence-length=128", "--attention=naive",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=5, metavar="N")
    parser.add_argument("--gate-minutes", default="8", metavar="MINUTES")
    typed = parser.parse_args()
    print(conditions(threads=1))
    found = 0
    for number in range(typed.tries):
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder, "clone")
            commits = planted(clone, slower := random.Random(f"planted {number}").randrange(1, COMMITS + 1))
            start = time.monotonic()
            said = searched(clone, f"HEAD~{COMMITS}", typed.gate_minutes)
        found += said["suspects"] == [commits[slower]]
        pairs = sum(step["launch_pairs"] for step in said["steps"])
        minutes = (time.monotonic() - start) / 60
        print(f"planted as number {slower}, {commits[slower][:12]}: {said['sentence']}")
        print(f"  {len(said['steps'])} commits judged by {pairs} launch pairs in {minutes:.1f} min", flush=True)
    claim = f"of {COMMITS} commits, bisect names the one that is {SLOWDOWN:.0%} slower: {found} of {typed.tries}"
    return conclude(claim, found == typed.tries)


def planted(clone: Path, slower: int) -> list[str]:
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


def searched(clone: Path, good: str, minutes: str) -> Json:
    """What `bisect` says for machines; its progress goes to the screen. Raises LaunchError."""
    words = (
        "bisect",
        good,
        "HEAD",
        f"--case={CASE}",
        f"--gate-minutes={minutes}",
        f"--options={' '.join(OPTIONS)}",
        "--json",
    )
    command = (sys.executable, "-m", "perf_tests", *words)
    ended = subprocess.run(command, cwd=clone, stdout=subprocess.PIPE, text=True)
    if not ended.stdout:
        raise LaunchError(f"`{' '.join(command[1:])}` exited with {ended.returncode}.")
    said: Json = json.loads(ended.stdout)
    return said


if __name__ == "__main__":
    sys.exit(main())
