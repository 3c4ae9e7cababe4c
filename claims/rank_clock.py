"""What the clock of several ranks adds to a figure: rounds without work.

torchrun --standalone --nproc-per-node 2 -m claims.rank_clock
"""

import sys
from statistics import median, quantiles

import torch
import torch.distributed as dist

from claims.verdict import conclude, conditions
from perf_tests.bench.ranks import RankClock
from perf_tests.hardware.device import open_device

ROUNDS = 2000
MOST_SECONDS = 10e-6


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    clock = RankClock(open_device(torch.device("cpu")))
    clock.group = dist.group.WORLD
    for _ in range(ROUNDS):
        with clock.round():
            pass
    leads = dist.get_rank() == 0
    dist.destroy_process_group()
    if not leads:
        return 0
    typical, most_of_them = median(clock.wall_seconds), quantiles(clock.wall_seconds, n=10)[-1]
    print(conditions(threads=1))
    print(f"{ROUNDS} rounds without work: median {typical * 1e6:.1f} us, 90 % below {most_of_them * 1e6:.1f} us")
    claim = f"the clock of two ranks adds at most {MOST_SECONDS * 1e6:.0f} us to a figure"
    return conclude(claim, typical <= MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
