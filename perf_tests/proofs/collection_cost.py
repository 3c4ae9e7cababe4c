"""Collecting the whole grid against importing what it cannot do without, in fresh processes that take turns.

Both sides find their bytecode cached, as they do from the second call on.
"""

import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from perf_tests.proofs.launches import ROOT
from perf_tests.proofs.paired_ratio import paired_ratio
from perf_tests.proofs.verdict import conclude, conditions

LIMIT = 1.5
PAIRS = 8

AXES = ("size", "context", "precision", "attention", "execution", "phase", "head-dim", "sequence-length")
COLLECT = [sys.executable, "-m", "pytest", "perf_tests", "--collect-only", "-q", "--device", "cpu"]
COLLECT += [word for axis in AXES for word in (f"--{axis}", "all")]
IMPORT = [sys.executable, "-c", "import torch, pytest"]


def main() -> int:
    print(conditions())
    collecting: list[float] = []
    importing: list[float] = []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        print(finished(IMPORT, environment) + finished(COLLECT, environment).strip().splitlines()[-1])
        for turn in range(PAIRS):
            sides = [(COLLECT, collecting), (IMPORT, importing)]
            for command, seconds in sides if turn % 2 else reversed(sides):
                start = time.perf_counter()
                finished(command, environment)
                seconds.append(time.perf_counter() - start)
    ratio = paired_ratio(collecting, importing)
    print(f"collecting {median(collecting):.2f} s, importing {median(importing):.2f} s, ratio {ratio}")
    claim = f"collecting the whole grid takes less than {LIMIT} x importing torch and pytest"
    return conclude(claim, ratio.high < LIMIT)


def finished(command: list[str], environment: dict[str, str]) -> str:
    """What the command printed; raises CalledProcessError if it failed."""
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
