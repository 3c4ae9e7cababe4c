"""One prediction, from the shell and back, in fresh processes: the command that `docs/predict.md` shows first."""

import subprocess
import sys
import time

from perf_tests.proofs.launches import ROOT
from perf_tests.proofs.verdict import conclude, conditions

LIMIT_SECONDS = 5.0
TURNS = 3

COMMAND = "predict --size 2.7B --context 512 --precision bf16 --gpu A100-80GB"


def main() -> int:
    print(conditions())
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "perf_tests", *COMMAND.split()], cwd=ROOT, capture_output=True, check=True
        )
        seconds.append(time.perf_counter() - start)
    # The fastest: everything that disturbs a launch makes it slower.
    print(f"python -m perf_tests {COMMAND}: {', '.join(f'{turn:.2f} s' for turn in sorted(seconds))}")
    return conclude(f"one prediction takes less than {LIMIT_SECONDS:.0f} s", min(seconds) < LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
