"""Training on real ranks of this machine: what they keep, gather and send. Its numbers are numerics_tests' matter."""

from typing import Any

import pytest

from perf_tests_suite.model.parallel import PARALLEL
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.numerics_tests.harness.rank_pool import POOL, Task
from perf_tests_suite.perf_tests.hardware.limits import (
    GATHERED,
    float32_bytes,
    kept_bytes,
    step_messages,
    working_bytes,
)
from perf_tests_suite.perf_tests.predict.shapes import NORM_OF_EACH, parameter_shapes
from tests.rules.test_ranks import WAYS

SHAPES = parameter_shapes(SIZES["tiny"])


def on_ranks(function: str, *arguments: object, world: int = 2) -> list[Any]:
    return POOL.run(Task("tests.support.on_ranks", function, world, arguments))


@pytest.mark.parametrize("variant", PARALLEL)
def test_release_frees_what_the_optimizer_keeps(variant: str) -> None:
    for before, after in on_ranks("release_leaves", variant):
        assert before > after == 0


def test_what_cannot_be_done_is_refused_with_its_value_and_the_next_step() -> None:
    for batch, optimizer in on_ranks("refusals"):
        assert "batch 5 is not divisible by 2 ranks" in batch
        assert "choose a multiple of 2" in batch
        assert "zero1 shards AdamW, not SGD; choose ddp" in optimizer


def test_blocks_are_gathered_one_by_one() -> None:
    """Three blocks and the root; a model without a list of layers is gathered as a whole."""
    assert on_ranks("sharded_blocks") == [[4, 1], [4, 1]]


@pytest.mark.parametrize("variant, bucket_mb, reshard", WAYS)
@pytest.mark.parametrize("world", [2, 3])
def test_the_closed_form_is_what_ranks_send(variant: str, bucket_mb: float | None, reshard: bool, world: int) -> None:
    formed = step_messages(variant, SHAPES, world, bucket_mb, reshard, NORM_OF_EACH)
    for sent in on_ranks("messages_sent", variant, bucket_mb, reshard, world=world):
        assert sorted(sent) == sorted(formed)


@pytest.mark.parametrize("variant", PARALLEL)
@pytest.mark.parametrize("world", [2, 3])
def test_what_a_rank_keeps_is_what_the_fullest_real_rank_keeps(variant: str, world: int) -> None:
    fullest = tuple(max(each) for each in zip(*on_ranks("bytes_kept", variant, world=world), strict=True))
    assert kept_bytes(variant, SHAPES, world) == fullest


@pytest.mark.parametrize("reshard", [True, False])
def test_a_forward_pass_leaves_the_rest_gathered_and_without_resharding_every_block(reshard: bool) -> None:
    """What of the form is a buffer, one block for every block kept and two otherwise, is not seen from outside."""
    block = sum(map(float32_bytes, SHAPES.blocks[0]))
    gathered = SHAPES.bytes - (len(SHAPES.blocks) * block if reshard else 0)
    assert on_ranks("bytes_gathered", reshard) == [gathered, gathered]
    assert working_bytes("fsdp2", SHAPES, "forward", reshard) == {GATHERED: gathered + (3 if reshard else 1) * block}
