"""The suite's figures against a hand-written loop over the same call, and what the suite itself costs in each round.

One run of the suite over `interleaved.py`, whose rounds take turns with the loop's within one process: suite, suite,
loop, loop. One thread each: how two of them share cores with a neighbour would be noise.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from claims.statistics import PairedRatio, paired_ratio_of_turns
from perf_tests_suite.perf_tests.bench.ranks import RankClock
from perf_tests_suite.perf_tests.hardware.device import open_device
from tests.support.launches import ROOT, launch_suite

LOOP_ROUNDS, WARMUP_ROUNDS = 1000, 10
SUITE = (
    "claims/interleaved.py", "--device=cpu", "--threads=1", "--precision=fp32", f"--warmup-rounds={WARMUP_ROUNDS}",
    "--phase=inference,forward,backward", "-k=not llama and not ddp",
)  # fmt: skip
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
GPT2 = {
    "model_type": "gpt2", "vocab_size": 5000, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 256,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def phases() -> dict[str, float]:
    """The ratio's interval over all phases, the shortest phase, and the suite's own time from set-up to set-up."""
    rows = launch_suite([*SUITE, "--size=tiny", "--context=64", f"--rounds={LOOP_ROUNDS}"]).benchmarks
    (empty,) = (row for row in rows if "between_seconds" in row["extra_info"])
    own_seconds = median(empty["extra_info"]["between_seconds"][WARMUP_ROUNDS:])
    print(
        f"a round of nothing takes {own_seconds * 1e6:.1f} us, {median(empty['stats']['data']) * 1e6:.1f} in its figure"
    )
    timed = [row for row in rows if "loop_seconds" in row["extra_info"]]
    return {**interval_of(timed), "own cost of a round, us": own_seconds * 1e6}


def interval_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Print a line for each phase; the lowest and the highest end of their intervals, and the shortest phase."""
    ratios = [ratio_of(row, WARMUP_ROUNDS) for row in rows]
    return {
        "shortest phase, ms": min(median(row["extra_info"]["loop_seconds"]) for row in rows) * 1e3,
        "suite over loop, lower end": min(ratio.low for ratio in ratios),
        "suite over loop, upper end": max(ratio.high for ratio in ratios),
    }


def ratio_of(row: dict[str, Any], warmup_rounds: int, is_loop_over_suite: bool = False) -> PairedRatio:
    """Print the phase's line; the ratio of its rounds, each two of the suite between two of the loop.

    The loop's come in twos before each two of the suite's, so its first measured one is the second of such two.
    """
    info, suite = row["extra_info"], row["stats"]["data"]
    loop = info["loop_seconds"][warmup_rounds + 1 :][: len(suite)]
    ratio = paired_ratio_of_turns(loop, suite) if is_loop_over_suite else paired_ratio_of_turns(suite, loop)
    words = f"suite {median(suite) * 1e3:.2f} ms, loop {median(loop) * 1e3:.2f} ms, ratio {ratio}"
    if cpu := info.get("loop_cpu_seconds"):
        of_cpu = paired_ratio_of_turns(info["cpu_seconds"], cpu[warmup_rounds + 1 :][: len(suite)])
        words += f", suite over loop by CPU time {of_cpu}"
    print(f"{info['phase']}: {words}")
    return ratio


def model_of_transformers() -> dict[str, float]:
    """The same for a small GPT-2 of transformers, where it is installed."""
    if not has_transformers():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpt2.json")
        path.write_text(json.dumps(GPT2))
        words = [*SUITE[:-1], "--context=128", "--rounds=300", "-k=not nothing and not llama and not ddp"]
        return interval_of(launch_suite([*words, "--model", f"hf:{path}"]).benchmarks)


def llama() -> dict[str, float]:
    """Our model with `sdpa`, which the loop runs, over transformers' Llama of the same shape, which the suite runs."""
    if not has_transformers():
        return {}
    words = (
        "claims/interleaved.py", "-k=test_llama", "--model=tests.support.llama:build", "--device=cpu", "--size=small",
        "--context=128", "--precision=fp32", "--phase=forward,backward,full_step", "--warmup-rounds=2", "--rounds=60",
    )  # fmt: skip
    rows = launch_suite(words).benchmarks
    return {"ours over Llama, upper end": max(ratio_of(row, 2, is_loop_over_suite=True).high for row in rows)}


def has_transformers() -> bool:
    if is_there := importlib.util.find_spec("transformers") is not None:
        return is_there
    print("There is no model of transformers here; install them with `pip install '.[hf]'`.")
    return False


def ddp_step() -> dict[str, float]:
    """A DDP step on two ranks over a step written by hand in the same processes."""
    words = (
        "claims/interleaved.py", "-k=test_ddp", "--device=cpu", "--threads=1", "--precision=fp32", "--parallel=ddp",
        "--phase=full_step", "--size=tiny", "--context=64", "--optimizer=loop", f"--warmup-rounds={WARMUP_ROUNDS}",
        "--rounds=600",
    )  # fmt: skip
    return interval_of(launch_suite(words, (*TORCHRUN, "-m", "pytest")).benchmarks)


def rank_clock() -> dict[str, float]:
    """The median of rounds without work on two ranks, in microseconds; each rank runs this file."""
    command = [sys.executable, *TORCHRUN, "-m", __name__]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {"added to a figure, us": float(ended.stdout.split()[-1]) * 1e6}


def main() -> None:
    """Print the median of 2000 empty rounds in seconds, on rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    clock = RankClock(open_device(torch.device("cpu")))
    clock.group = dist.group.WORLD
    for _ in range(2000):
        with clock.round():
            pass
    leads = dist.get_rank() == 0
    dist.destroy_process_group()
    if leads:
        print(median(clock.wall_seconds))


if __name__ == "__main__":
    main()
