"""How long the memory pass of the default grid takes on a CPU, from the start of the suite to its end."""

import sys

from perf_tests.proofs.launches import launch_suite
from perf_tests.proofs.verdict import conclude

LIMIT_SECONDS = 180.0

PASS_ALONE = ["perf_tests", "--device", "cpu", "--memory", "-k", "memory_of"]


def main() -> int:
    seconds = launch_suite(PASS_ALONE).process_seconds
    print(f"{seconds:.0f} s")
    return conclude(
        f"the memory pass of the default grid takes less than {LIMIT_SECONDS:.0f} s", seconds < LIMIT_SECONDS
    )


if __name__ == "__main__":
    sys.exit(main())
