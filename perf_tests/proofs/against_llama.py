"""Our model with `sdpa` against transformers' Llama of the same shape, each measured by the suite in fresh processes.

The launch is the unit: rounds of one process share its memory layout and its neighbours, so each launch counts once.
"""

import argparse
import importlib.util
import sys
from statistics import median

from perf_tests.proofs.launches import launch_suite
from perf_tests.proofs.paired_ratio import FEWEST_PAIRS, PairedRatio, paired_ratio
from perf_tests.proofs.verdict import conclude, conditions

PHASES = ("forward", "backward", "full_step")
FILES = ("perf_tests/test_forward.py", "perf_tests/test_backward.py", "perf_tests/test_full_step.py")
SIDES = {"ours": ("--attention", "sdpa"), "llama": ("--model", "perf_tests.proofs.llama:build")}

# "No slower" can only be shown up to a margin: Piaggio et al., "Reporting of noninferiority trials", JAMA, 2012.
MARGIN = 1.05

Figures = dict[str, dict[str, list[float]]]
"""By side and row (a phase at a context length), the median of each launch."""


def main() -> int:
    arguments = parsed_arguments()
    if importlib.util.find_spec("transformers") is None:
        print("There is no Llama to compare with here; install one with `pip install '.[llama]'`.")
        return 2
    suite = ["--device", "cpu", "--size", arguments.size, "--context", arguments.context, "--precision", "fp32"]
    suite += ["--rounds", str(arguments.rounds), "--warmup-rounds", "1", "--phase", ",".join(PHASES), *FILES]
    print(f"{conditions()}, {' '.join(suite[:8])}, {arguments.pairs} launches a side of {arguments.rounds} rounds")
    wall, cpu = figures_of_launches(suite, arguments.pairs)
    rows = {row: paired_ratio(wall["ours"][row], wall["llama"][row]) for row in wall["ours"]}
    show(rows, wall, cpu)
    claim = f"sdpa is no slower than transformers' Llama of the same shape (the interval ends below {MARGIN})"
    return conclude(claim, all(ratio.high < MARGIN for ratio in rows.values()))


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--context", default="128", help="context lengths with commas (default: 128)")
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS, help="launches of each side")
    parser.add_argument("--rounds", type=int, default=2, help="measured rounds of each launch")
    return parser.parse_args()


def figures_of_launches(suite: list[str], pairs: int) -> tuple[Figures, Figures]:
    """Wall and CPU seconds, the sides taking turns and each turn in the other order than the one before."""
    wall: Figures = {side: {} for side in SIDES}
    cpu: Figures = {side: {} for side in SIDES}
    for turn in range(pairs):
        for side in sorted(SIDES, reverse=turn % 2 == 1):
            print(f"launch of {side}, pair {turn + 1} of {pairs}", file=sys.stderr)
            for benchmark in launch_suite([*suite, *SIDES[side]]).benchmarks:
                info = benchmark["extra_info"]
                row = f"{info['phase']} at {info['context_length']}"
                wall[side].setdefault(row, []).append(median(benchmark["stats"]["data"]))
                cpu[side].setdefault(row, []).append(median(info["cpu_seconds"]))
    return wall, cpu


def show(rows: dict[str, PairedRatio], wall: Figures, cpu: Figures) -> None:
    print(f"{'':20}{'ours':>10}{'llama':>10}   {'ours / llama, wall':24}{'and CPU time':24}")
    for row, ratio in rows.items():
        ours, llama = (f"{median(wall[side][row]):.3f} s" for side in SIDES)
        cpu_ratio = paired_ratio(cpu["ours"][row], cpu["llama"][row])
        print(f"{row:20}{ours:>10}{llama:>10}   {ratio!s:24}{cpu_ratio!s:24}")


if __name__ == "__main__":
    sys.exit(main())
