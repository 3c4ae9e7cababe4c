"""Our model with `sdpa` against transformers' Llama of the same shape, in turns within one run of the suite.

The suite measures Llama, through --model; a hand-written loop, whose figure `suite_against_loop` shows to be the
suite's, measures ours in the untimed set-ups.
"""

import argparse
import importlib.util
import sys
from statistics import median

from claims.interleaved_rounds import rounds_between
from claims.paired_ratio import paired_ratio_of_turns
from claims.verdict import conclude, conditions
from tests.support.launches import launch_suite

WARMUP_ROUNDS = 2

# "No slower" can only be shown up to a margin: Piaggio et al., "Reporting of noninferiority trials", JAMA, 2012.
MARGIN = 1.02


def main() -> int:
    arguments = parsed_arguments()
    if importlib.util.find_spec("transformers") is None:
        print("There is no Llama to compare with here; install one with `pip install '.[hf]'`.")
        return 2
    suite = [
        "claims/interleaved_models.py", "--model", "tests.support.llama:build", "--device", "cpu",
        "--size", arguments.size, "--context", arguments.context, "--precision", "fp32",
        "--phase", "forward,backward,full_step",
        "--warmup-rounds", str(WARMUP_ROUNDS), "--rounds", str(arguments.rounds),
    ]  # fmt: skip
    print(f"{conditions()}, {arguments.size} at {arguments.context} tokens, fp32, {arguments.rounds} rounds a side")
    is_slower = [not is_no_slower(benchmark) for benchmark in launch_suite(suite).benchmarks]
    claim = f"sdpa is no slower than transformers' Llama of the same shape (the interval ends below {MARGIN})"
    return conclude(claim, not any(is_slower))


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--context", default="128", help="context lengths with commas (default: 128)")
    parser.add_argument("--rounds", type=int, default=60, help="measured rounds of each side, an even number")
    return parser.parse_args()


def is_no_slower(benchmark: dict[str, object]) -> bool:
    """Print the phase's row; whether the interval ends below the margin."""
    info, stats = benchmark["extra_info"], benchmark["stats"]
    assert isinstance(info, dict)
    assert isinstance(stats, dict)
    llama = stats["data"]
    ours = rounds_between(info["loop_seconds"], WARMUP_ROUNDS, len(llama))
    ratio = paired_ratio_of_turns(ours, llama)
    print(
        f"{info['phase']:10} at {info['context_length']:5}  ours {median(ours):.3f} s  llama {median(llama):.3f} s"
        f"  ours / llama {ratio}"
    )
    return ratio.high < MARGIN


if __name__ == "__main__":
    sys.exit(main())
