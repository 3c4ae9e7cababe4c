"""Training on two ranks of this machine: what each variant leaves for the benchmarks. Its numbers: numerics_tests."""

from typing import Any

import pytest

from model.parallel import PARALLEL
from numerics_tests.harness.rank_pool import POOL, Task
from tests.support.documents import ROOT


def on_two_ranks(function: str, *arguments: object) -> list[Any]:
    return POOL.run(Task(str(ROOT), "tests.support.on_ranks", function, 2, arguments))


def largest_gap(ours: list[list[float]], theirs: list[list[float]]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("variant", PARALLEL)
@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
def test_two_ranks_train_as_one_does(variant: str, optimizer: str) -> None:
    """Two AdamW steps of at most 1e-3 each; a rank on its own batch alone is off by whole steps somewhere."""
    (one,) = POOL.run(Task(str(ROOT), "tests.support.on_ranks", "take_steps", 1, ("ddp-naive", "loop", 2)))
    first, second = on_two_ranks("take_steps", variant, optimizer, 2)
    assert first == second
    assert 0 < largest_gap(first, one) < (1e-3 if variant == "fsdp2-bf16" else 1e-5)


@pytest.mark.parametrize("variant", PARALLEL)
def test_release_frees_what_the_optimizer_keeps(variant: str) -> None:
    for before, after in on_two_ranks("release_leaves", variant):
        assert before > 0
        assert after == 0


@pytest.mark.parametrize("variant", ["ddp-naive", "ddp-flat", "ddp", "zero1"])
def test_without_synchronization_gradients_stay_apart_and_come_together_afterwards(variant: str) -> None:
    (first_apart, first), (second_apart, second) = on_two_ranks("gradients_apart", variant)
    assert first_apart != second_apart
    assert first == second != first_apart


def test_what_cannot_be_done_is_said_in_one_sentence() -> None:
    for said in on_two_ranks("refusals"):
        assert said == [
            "batch 5 is not divisible by 2 ranks, whose mean would not be the batch's; choose a multiple of 2.",
            "zero1 shards AdamW, not SGD; choose ddp for that optimizer.",
        ]


def test_blocks_are_gathered_one_by_one() -> None:
    """Three blocks and the root; a model without a list of layers is gathered as a whole."""
    assert on_two_ranks("sharded_blocks") == [[4, 1], [4, 1]]
