"""What the model's named regions cost while nobody watches: their time in a forward pass, next to that pass."""

import gc
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch

from model.attention import ATTENTION
from model.regions import region, regions_opened_by
from model.sizes import SIZES
from model.transformer import TransformerLM
from perf_tests.proofs.verdict import conclude, conditions

LIMIT = 0.01
ROUNDS = 200
CONTEXT = 16
"""The shorter the pass, the larger their share: here it is nearly all launching."""


def main() -> int:
    torch.set_num_threads(1)
    print(f"{conditions(threads=1)}, {ROUNDS} rounds of each side in turns")
    config = SIZES["tiny"].at_context(CONTEXT)
    model = TransformerLM(config, ATTENTION["naive"].build())
    tokens_BT = torch.randint(config.vocab_size, (1, CONTEXT))
    regions = regions_of(model, tokens_BT)
    passes, alone = [], []
    gc.disable()
    for _ in range(ROUNDS):
        passes.append(seconds_of_pass(model, tokens_BT))
        alone.append(seconds_of_regions(regions))
    share = median(alone) / median(passes)
    its_regions = f"its {len(regions)} regions {median(alone) * 1e6:.1f} us"
    print(f"a pass takes {median(passes) * 1e3:.2f} ms, {its_regions}: {share:.2%}")
    return conclude(f"regions that nobody watches take less than {LIMIT:.0%} of a pass", share < LIMIT)


@torch.no_grad()
def regions_of(model: TransformerLM, tokens_BT: torch.Tensor) -> list[str]:
    """The names of the regions that one pass goes through."""
    names: list[str] = []

    def note(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return nullcontext()

    with regions_opened_by(note):
        model(tokens_BT)
    return names


@torch.no_grad()
def seconds_of_pass(model: TransformerLM, tokens_BT: torch.Tensor) -> float:
    start = time.perf_counter()
    model(tokens_BT)
    return time.perf_counter() - start


def seconds_of_regions(names: list[str]) -> float:
    start = time.perf_counter()
    for name in names:
        with region(name):
            pass
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
