"""The suite's figure of a DDP step on two ranks against a step written by hand, in turns within the same processes.

python -m claims.ranks_against_loop [--rounds N]
"""

import argparse
import sys
from statistics import median

from claims.interleaved_rounds import rounds_between
from claims.paired_ratio import paired_ratio_of_turns
from claims.verdict import conclude, conditions
from tests.support.launches import launch_suite

LIMITS = (0.98, 1.02)
WARMUP_ROUNDS = 10
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pytest")
SUITE = (
    "claims/interleaved_ranks.py", "--device=cpu", "--threads=1", "--precision=fp32", "--parallel=ddp",
    "--phase=full_step", "--size=tiny", "--context=64", "--optimizer=loop", f"--warmup-rounds={WARMUP_ROUNDS}",
)  # fmt: skip


def main(rounds: int) -> int:
    print(f"{conditions(threads=1)}, {rounds} rounds of each side, in turns suite, suite, loop, loop")
    (row,) = launch_suite([*SUITE, f"--rounds={rounds}"], TORCHRUN).benchmarks
    suite = row["stats"]["data"]
    loop = rounds_between(row["extra_info"]["loop_seconds"], WARMUP_ROUNDS, len(suite))
    ratio = paired_ratio_of_turns(suite, loop)
    print(f"DDP step: suite {median(suite) * 1e3:.2f} ms, loop {median(loop) * 1e3:.2f} ms, suite / loop {ratio}")
    claim = f"the suite's figure of a DDP step is a hand-written loop's within {LIMITS[0]} to {LIMITS[1]}"
    return conclude(claim, ratio.is_within(*LIMITS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=600, metavar="N")
    sys.exit(main(parser.parse_args().rounds))
