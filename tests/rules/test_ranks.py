"""One rank's share of a step: what it keeps, sends and waits for, how many ranks fit; messages of imagined ranks."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from model.parallel import PARALLEL
from model.sizes import SIZES, ModelConfig
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.sharing import Sharing
from perf_tests.hardware.clock import CollectiveCounter
from perf_tests.hardware.datasheets import FITS, Room
from perf_tests.hardware.limits import (
    BUCKETS,
    Message,
    bucket_bytes,
    float32_bytes,
    sent_bytes,
    slice_bytes,
    step_messages,
)
from perf_tests.predict.ranks import (
    NORM_OF_EACH,
    RankPrediction,
    counted_messages,
    imagined_ranks,
    parameter_shapes,
    predict_ranks,
)
from perf_tests.predict.request import requested_machine
from perf_tests.predict.step import TargetMachine, predict_case

TINY = SIZES["tiny"]
UNEVEN = ModelConfig(d_model=36, d_ff=52, num_layers=3, num_heads=2, vocab_size=101)
"""No dimension is a multiple of 8."""
SMALLEST = ModelConfig(d_model=20, d_ff=28, num_layers=1, num_heads=2, vocab_size=2000)
WAYS = [
    *((variant, None, True) for variant in PARALLEL),
    *((variant, bucket_mb, True) for variant in ("ddp", "zero1") for bucket_mb in (0.01, 1.0, 4.0)),
    *((variant, None, False) for variant in ("fsdp2", "fsdp2-bf16")),
]
HIDDEN = [variant for variant in PARALLEL if not variant.startswith("ddp-")]
"""The others send when nothing is left to compute."""


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


def test_a_thousand_imagined_ranks_count_the_same() -> None:
    formed = step_messages("fsdp2", parameter_shapes(SMALLEST), 1024, norm_of_each=NORM_OF_EACH)
    assert sorted(counted_messages("fsdp2", SMALLEST, 1024)) == sorted(formed)


def test_no_ranks_are_imagined_among_real_ones() -> None:
    with imagined_ranks(4):  # stands for a run by ranks
        with pytest.raises(ValueError, match="without torchrun"), imagined_ranks(2):
            pass
        assert dist.get_world_size() == 4
    assert not dist.is_initialized()


def test_a_collective_of_unknown_bytes_is_named() -> None:
    with imagined_ranks(2), CollectiveCounter(), pytest.raises(ValueError, match="c10d::alltoall_base_ are not known"):
        dist.all_to_all_single(torch.zeros(2), torch.zeros(2))


CASE = LanguageModelCase(
    phase="full_step", size="tiny", config=TINY.at_context(16), context_length=16, batch_size=1,
    precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="foreach", device="cuda",
    model="ours",
)  # fmt: skip


def machine(room_bytes: int | None = None) -> TargetMachine:
    card = requested_machine("H100")
    return card if room_bytes is None else replace(card, room=Room(room_bytes, "as the test says"))


def predicted(variant: str, world: int, room_bytes: int | None = None, bytes_per_second: float = 1e9) -> RankPrediction:
    return predict_ranks(CASE, machine(room_bytes), Sharing(variant, world, "weak"), bytes_per_second)


def test_without_resharding_deep_models_need_more_memory_and_more_ranks() -> None:
    deep = replace(CASE, config=replace(CASE.config, num_layers=12))
    again, kept = (Sharing("fsdp2", 8, "weak", keeps_gathered=keeps) for keeps in (False, True))
    block = sum(map(float32_bytes, parameter_shapes(deep.config).blocks[0]))
    resharded, whole = (predict_ranks(deep, machine(), sharing) for sharing in (again, kept))
    assert whole.peak_bytes - resharded.peak_bytes == (12 + 1 - 3) * block
    room = predict_ranks(deep, machine(), replace(kept, world=4)).peak_bytes
    fewest, more = (predict_ranks(deep, machine(room), sharing).smallest_world for sharing in (again, kept))
    assert fewest is not None
    assert more is not None
    assert fewest < more


def test_only_buckets_stay_while_the_optimizer_steps_and_its_copies_shrink_with_its_moments() -> None:
    """At this shape the optimizer's part is the largest of ddp-naive, ddp and zero1."""
    naive, bucketed, sharded = (predicted(variant, 2) for variant in ("ddp-naive", "ddp", "zero1"))
    assert naive.peak_part == bucketed.peak_part == sharded.peak_part == "optimizer"
    weights = bucketed.bytes_by_category[BUCKETS]
    assert bucketed.bytes_by_category == naive.bytes_by_category | {BUCKETS: weights}
    assert weights == sharded.bytes_by_category[BUCKETS] == 4 * SIZES["tiny"].parameters
    share = sharded.bytes_by_category["optimizer state"] / (2 * weights)
    assert share < 0.6
    alone = naive.alone.bytes_by_category["temporaries"]
    assert sharded.bytes_by_category["temporaries"] == pytest.approx(share * alone, rel=1e-6)
    assert predicted("ddp-flat", 2).peak_part == "backward"


def test_more_ranks_keep_less_and_send_more() -> None:
    predictions = [predicted("fsdp2", world) for world in (1, 2, 8, 64)]
    peaks, sent = [one.peak_bytes for one in predictions], [one.sent_bytes for one in predictions]
    assert peaks == sorted(set(peaks), reverse=True)
    assert sent == sorted(set(sent))
    assert sent[0] == 0


def test_the_fewest_ranks_that_fit_fit_and_one_less_does_not() -> None:
    room = int((predicted("fsdp2", 1).peak_bytes + predicted("fsdp2", 64).peak_bytes) / 2)
    fewest = predicted("fsdp2", 1, room).smallest_world
    assert fewest is not None
    assert fewest > 1
    assert predicted("fsdp2", fewest, room).verdict == FITS
    assert predicted("fsdp2", fewest - 1, room).verdict != FITS


def test_copies_of_a_model_that_does_not_fit_fit_on_no_number_of_ranks() -> None:
    room = predicted("ddp", 2).peak_bytes - 1
    assert predicted("ddp", 2, room).smallest_world is None


@pytest.mark.parametrize("variant", PARALLEL)
def test_a_step_waits_for_no_more_than_it_sends_and_no_less_than_its_last_message(variant: str) -> None:
    prediction = predicted(variant, 8)
    assert prediction.exposed_seconds is not None
    low, high = prediction.exposed_seconds
    assert high == pytest.approx(float(sent_bytes(prediction.messages, 8)) / 1e9)
    assert 0 < low <= high
    assert (low == high) == variant.startswith("ddp-")  # which send when nothing is left to compute


@pytest.mark.parametrize("variant", HIDDEN)
def test_a_slow_exchange_hides_behind_the_backward_pass_and_gathers_behind_the_forward_pass_too(variant: str) -> None:
    passes = ("forward", "backward") if variant.startswith("fsdp2") else ("backward",)
    hidden = sum(predict_case(replace(CASE, phase=phase), machine()).time.low_seconds for phase in passes)
    exposed = predicted(variant, 8, bytes_per_second=1e8).exposed_seconds
    assert exposed is not None
    assert exposed[1] - exposed[0] == pytest.approx(hidden)


@pytest.mark.parametrize("variant", HIDDEN)
def test_a_fast_exchange_still_waits_for_its_last_message(variant: str) -> None:
    """DDP's last bucket, and zero1's weights; FSDP2's first gather, its last reduction and the norm for clipping."""
    shapes, rate_of_link = parameter_shapes(CASE.config), 1e15
    rest = 8 * slice_bytes(shapes.rest, 8)
    last = Message("all_reduce", bucket_bytes(shapes.by_gradient)[-1])
    waits = {
        "ddp": [last],
        "zero1": [last, Message("broadcast", shapes.bytes)],
        "fsdp2": [Message("all_gather", rest), Message("reduce_scatter", rest)],
        "fsdp2-bf16": [Message("all_gather", rest), Message("reduce_scatter", rest // 2)],
    }[variant]
    if variant.startswith("fsdp2"):
        waits.append(Message("all_reduce", 4 * len(shapes.all)))
    exposed = predicted(variant, 8, bytes_per_second=rate_of_link).exposed_seconds
    assert exposed is not None
    assert exposed[0] * rate_of_link == pytest.approx(float(sent_bytes(waits, 8)))


def test_a_step_that_waits_adds_to_the_step_on_one_device() -> None:
    prediction = predicted("ddp", 8)
    assert prediction.seconds is not None
    assert prediction.exposed_seconds is not None
    assert prediction.seconds[0] == prediction.alone.time.low_seconds + prediction.exposed_seconds[0]
    assert prediction.seconds[1] == prediction.alone.time.high_seconds + prediction.exposed_seconds[1]
