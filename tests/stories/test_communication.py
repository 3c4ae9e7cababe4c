"""Bytes that ranks send: the closed form, what an imagined group of ranks counts and what real ranks send are equal."""

import pytest
import torch
import torch.distributed as dist

from model.parallel import PARALLEL
from model.sizes import SIZES, ModelConfig
from numerics_tests.harness.rank_pool import POOL, Task
from perf_tests.hardware.clock import CollectiveCounter
from perf_tests.hardware.limits import Message, bucket_bytes, sent_bytes, slice_bytes, step_messages
from perf_tests.predict.ranks import NORM_OF_EACH, counted_messages, imagined_ranks, parameter_shapes
from tests.support.documents import ROOT

TINY = SIZES["tiny"]
UNEVEN = ModelConfig(d_model=36, d_ff=52, num_layers=3, num_heads=2, vocab_size=101)
"""No dimension is a multiple of 8."""
WAYS = [
    *((variant, None, True) for variant in PARALLEL),
    *((variant, bucket_mb, True) for variant in ("ddp", "zero1") for bucket_mb in (0.01, 1.0, 4.0)),
    *((variant, None, False) for variant in ("fsdp2", "fsdp2-bf16")),
]


@pytest.mark.parametrize("variant, bucket_mb, reshard", WAYS)
@pytest.mark.parametrize(
    "config, world", [(TINY, 2), (UNEVEN, 8), (UNEVEN, 64)], ids=["tiny-2", "uneven-8", "uneven-64"]
)
def test_the_closed_form_is_what_imagined_ranks_count(
    variant: str, bucket_mb: float | None, reshard: bool, config: ModelConfig, world: int
) -> None:
    counted = counted_messages(variant, config, world, bucket_mb, reshard)
    formed = step_messages(variant, parameter_shapes(config), world, bucket_mb, reshard, NORM_OF_EACH)
    assert sorted(formed) == sorted(counted)


@pytest.mark.parametrize("variant, bucket_mb, reshard", WAYS)
@pytest.mark.parametrize("world", [2, 3])
def test_the_closed_form_is_what_real_ranks_send(
    variant: str, bucket_mb: float | None, reshard: bool, world: int
) -> None:
    task = Task(str(ROOT), "tests.support.on_ranks", "messages_sent", world, (variant, bucket_mb, reshard))
    formed = step_messages(variant, parameter_shapes(TINY), world, bucket_mb, reshard, NORM_OF_EACH)
    for sent in POOL.run(task):
        assert sorted(sent) == sorted(formed)


def test_a_thousand_ranks_pad_the_smallest_matrices_most() -> None:
    """One row of 1024 each at the most: an imagined group of 1024 counts the same."""
    config = ModelConfig(d_model=20, d_ff=28, num_layers=1, num_heads=2, vocab_size=2000)
    shapes = parameter_shapes(config)
    formed = step_messages("fsdp2", shapes, 1024, norm_of_each=NORM_OF_EACH)
    assert sorted(counted_messages("fsdp2", config, 1024)) == sorted(formed)
    assert slice_bytes(shapes.rest, 1024) == 4 * (2 * 2 * 20 + 1)
    assert slice_bytes(shapes.blocks[0], 1024) == 4 * (6 * 20 + 28 + 2)


@pytest.mark.parametrize(
    "world, ddp, fsdp2",
    [
        (2, 514_501_632, 741_030_912), (8, 900_377_856, 1_296_804_096), (64, 1_012_925_088, 1_459_485_216),
        (1024, 1_027_998_378, 1_709_907_672),
    ],
)  # fmt: skip
def test_small_sends_what_its_shape_says(world: int, ddp: int, fsdp2: int) -> None:
    """FSDP2's figure is without the norm for clipping, a message of 444 bytes."""
    shapes = parameter_shapes(SIZES["small"])
    assert shapes.bytes == 4 * SIZES["small"].parameters == 514_501_632
    assert sent_bytes(step_messages("ddp", shapes, world), world) == ddp
    norm = Message("all_reduce", 444)
    messages = step_messages("fsdp2", shapes, world)
    assert norm in messages
    assert sent_bytes(messages, world) - norm.sent_bytes(world) == fsdp2


def test_before_torch_2_10_all_parameters_have_one_norm_for_clipping() -> None:
    """Nothing else of the step differs."""
    shapes = parameter_shapes(UNEVEN)
    each, one = (step_messages("fsdp2", shapes, 2, norm_of_each=norm_of_each) for norm_of_each in (True, False))
    assert each[:-1] == one[:-1]
    assert (each[-1], one[-1]) == (Message("all_reduce", 4 * len(shapes.all)), Message("all_reduce", 4))


def test_a_bucket_is_sent_once_it_holds_its_size() -> None:
    """In MiB of float32: the first after one, the others after 25 or what is asked for; the last holds what is left."""
    mib = (2**18,)
    assert [size // 2**20 for size in bucket_bytes([mib] * 60)] == [1, 25, 25, 9]
    assert [size // 2**20 for size in bucket_bytes([mib] * 5, bucket_mb=1.5)] == [2, 2, 1]
    assert bucket_bytes([]) == []


def test_no_ranks_are_imagined_among_real_ones() -> None:
    with imagined_ranks(4):  # stands for a run by ranks
        with pytest.raises(ValueError, match="without torchrun"), imagined_ranks(2):
            pass
        assert dist.get_world_size() == 4
    assert not dist.is_initialized()


def test_a_collective_of_unknown_bytes_is_named() -> None:
    with imagined_ranks(2), CollectiveCounter(), pytest.raises(ValueError, match="c10d::alltoall_base_ are not known"):
        dist.all_to_all_single(torch.zeros(2), torch.zeros(2))
