"""How long it takes to count the whole grid of the ledger, in one process and one thread."""

import sys
import time

import torch

from perf_tests.counting.case_counters import counters_of
from perf_tests.counting.counted_grid import counted_grid
from perf_tests.proofs.verdict import conclude, conditions

GRID_LIMIT_SECONDS = 180.0


def main() -> int:
    torch.set_num_threads(1)
    print(conditions(1))
    lines = 0
    seconds_of_id: dict[str, float] = {}
    processor_start = time.process_time()
    for case_id, cases in counted_grid().items():
        start = time.perf_counter()
        for case in cases:
            counters_of(case)
        seconds_of_id[case_id] = time.perf_counter() - start
        lines += len(cases)
    total = sum(seconds_of_id.values())
    slowest = max(seconds_of_id, key=lambda case_id: seconds_of_id[case_id])
    print(f"{lines} lines in {total:.0f} s ({time.process_time() - processor_start:.0f} s of processor time)")
    print(f"slowest: every phase of {slowest} in {seconds_of_id[slowest]:.1f} s")
    return conclude(f"the whole grid is counted in less than {GRID_LIMIT_SECONDS:.0f} s", total < GRID_LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
