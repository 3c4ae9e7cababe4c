"""The whole training step with `sdpa` and with `naive` attention: one model, one process, the two taking turns."""

import argparse
import sys
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from claims.paired_ratio import FEWEST_PAIRS, PairedRatio, paired_ratio
from claims.verdict import conclude, conditions
from model.attention import naive_attention, sdpa_attention
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice
from perf_tests.hardware.machine import physical_cores
from tests.support.allocator_peak import allocator_peak_bytes

BATCH_SIZE = 4
SIDES = {"sdpa": sdpa_attention, "naive": naive_attention}


class Step:
    """A training step whose attention can be exchanged between two calls, so that everything else is identical."""

    def __init__(self, config: ModelConfig) -> None:
        torch.manual_seed(0)
        device = torch.device("cpu")
        self.attention = naive_attention
        self.training = Training(TransformerLM(config, self._attend), PRECISIONS["fp32"], device)
        self.training.create_optimizer_state()
        tokens = torch.randint(config.vocab_size, (BATCH_SIZE, config.context_length + 1))
        self.tokens_BT, self.targets_BT = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _attend(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        return self.attention(q_BHTK, k_BHTK, v_BHTK)

    def __call__(self, side: str) -> None:
        self.attention = SIDES[side]
        self.training.step(self.tokens_BT, self.targets_BT)
        # Left for the next step to free, they would count for its side.
        self.training.clear_gradients()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--layers", type=int, help="fewer than the size has, for a first look")
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS, help="measured steps of each side")
    arguments = parser.parse_args()
    torch.set_num_threads(physical_cores())
    config = SIZES[arguments.size].at_context(arguments.context)
    config = replace(config, num_layers=arguments.layers or config.num_layers)
    shape = f"{arguments.size} with {config.num_layers} layers, context {config.context_length}, batch {BATCH_SIZE}"
    print(f"{conditions(torch.get_num_threads())}, {shape}")
    step = Step(config)
    # The steps watched by the profiler are the warm-up.
    peak_bytes = {side: allocator_peak_bytes(lambda side=side: step(side)) for side in SIDES}  # type: ignore[misc]
    seconds = timed_in_turns(step, arguments.pairs)
    ratio = paired_ratio(seconds["sdpa"], seconds["naive"])
    show(seconds, peak_bytes, ratio)
    claim = f"sdpa beats naive in time and peak memory of a full step of {shape}"
    return conclude(claim, ratio.high < 1 and peak_bytes["sdpa"] < peak_bytes["naive"])


def timed_in_turns(step: Step, pairs: int) -> dict[str, list[float]]:
    clock = Clock(CpuDevice(torch.device("cpu")))
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(pairs):
        for side in sorted(SIDES, reverse=turn % 2 == 1):
            clock.begin_round()
            start = clock()
            step(side)
            seconds[side].append(clock() - start)
    return seconds


def show(seconds: dict[str, list[float]], peak_bytes: dict[str, int], ratio: PairedRatio) -> None:
    print(f"{'':8}{'full step':>12}{'peak above the standing weights and optimizer state':>56}")
    for side in SIDES:
        print(f"{side:8}{median(seconds[side]):10.3f} s{peak_bytes[side] / 2**20:52.1f} MiB")
    print(f"sdpa / naive: time {ratio}, peak {peak_bytes['sdpa'] / peak_bytes['naive']:.3f}")


if __name__ == "__main__":
    sys.exit(main())
