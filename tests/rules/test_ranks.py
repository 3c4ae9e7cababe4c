"""One rank's share of a step: what it keeps, sends and waits for, how many ranks fit; messages of imagined ranks."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from perf_tests_suite.model.parallel import PARALLEL
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.cases.sharing import Sharing
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.clock import CollectiveCounter
from perf_tests_suite.perf_tests.hardware.datasheets import FITS, Room
from perf_tests_suite.perf_tests.predict.parts import OPTIMIZER_STATE, TEMPORARIES
from perf_tests_suite.perf_tests.predict.ranks import RankPrediction, predict_ranks
from perf_tests_suite.perf_tests.predict.request import requested_machine
from perf_tests_suite.perf_tests.predict.shapes import NORM_OF_EACH, parameter_shapes
from perf_tests_suite.perf_tests.predict.step import TargetMachine, predict_case
from tests.support.example_cases import language_model_case
from tests.support.imagined_ranks import counted_messages, imagined_ranks

TINY = SIZES["tiny"]
UNEVEN = ModelConfig(d_model=36, d_ff=52, num_layers=3, num_heads=2, vocab_size=101)
"""No dimension is a multiple of 8."""
SMALLEST = ModelConfig(d_model=20, d_ff=28, num_layers=1, num_heads=2, vocab_size=2000)
WAYS = [
    *((variant, None, True) for variant in PARALLEL),
    *((variant, bucket_mb, True) for variant in ("ddp", "zero1") for bucket_mb in (0.01, 1.0, 4.0)),
    *((variant, None, False) for variant in ("fsdp2", "fsdp2-bf16")),
]


@pytest.mark.parametrize("variant, bucket_mb, reshard", WAYS)
@pytest.mark.parametrize("config, world", [(TINY, 2), (UNEVEN, 8), (UNEVEN, 64)], ids=["tiny-2", "8", "64"])
def test_the_closed_form_is_what_imagined_ranks_count(
    variant: str, bucket_mb: float | None, reshard: bool, config: ModelConfig, world: int
) -> None:
    counted = counted_messages(variant, config, world, bucket_mb, reshard)
    formed = limits.step_messages(variant, parameter_shapes(config), world, bucket_mb, reshard, NORM_OF_EACH)
    assert sorted(formed) == sorted(counted)


def test_a_thousand_imagined_ranks_count_the_same_and_a_collective_of_unknown_bytes_is_named() -> None:
    formed = limits.step_messages("fsdp2", parameter_shapes(SMALLEST), 1024, norm_of_each=NORM_OF_EACH)
    assert sorted(counted_messages("fsdp2", SMALLEST, 1024)) == sorted(formed)
    with imagined_ranks(2), CollectiveCounter(), pytest.raises(ValueError, match="c10d::alltoall_base_ are not known"):
        dist.all_to_all_single(torch.zeros(2), torch.zeros(2))


CASE = language_model_case(
    TINY.at_context(16), phase="full_step", size="tiny", batch_size=1, optimizer="foreach", device="cuda"
)


def machine(room_bytes: int | None = None) -> TargetMachine:
    card = requested_machine("H100")
    return card if room_bytes is None else replace(card, room=Room(room_bytes, "as the test says"))


def predicted(variant: str, world: int, room_bytes: int | None = None, bytes_per_second: float = 1e9) -> RankPrediction:
    return predict_ranks(CASE, machine(room_bytes), Sharing(variant, world, "weak"), bytes_per_second)


def test_without_resharding_deep_models_need_more_memory_and_more_ranks() -> None:
    deep = replace(CASE, config=replace(CASE.config, num_layers=12))
    again, kept = (Sharing("fsdp2", 8, "weak", keeps_gathered=keeps) for keeps in (False, True))
    block = sum(map(limits.float32_bytes, parameter_shapes(deep.config).blocks[0]))
    resharded, whole = (predict_ranks(deep, machine(), sharing) for sharing in (again, kept))
    assert whole.peak_bytes - resharded.peak_bytes == (12 + 1 - 3) * block
    room = predict_ranks(deep, machine(), replace(kept, world=4)).peak_bytes
    fewest, more = (predict_ranks(deep, machine(room), sharing).smallest_world or 0 for sharing in (again, kept))
    assert 0 < fewest < more


def test_only_buckets_stay_while_the_optimizer_steps_and_its_copies_shrink_with_its_moments() -> None:
    """At this shape the optimizer's part is the largest of ddp-naive, ddp and zero1."""
    naive, bucketed, sharded = (predicted(variant, 2) for variant in ("ddp-naive", "ddp", "zero1"))
    assert naive.peak_part == bucketed.peak_part == sharded.peak_part == "optimizer"
    weights = bucketed.bytes_by_category[limits.BUCKETS]
    assert bucketed.bytes_by_category == naive.bytes_by_category | {limits.BUCKETS: weights}
    assert weights == sharded.bytes_by_category[limits.BUCKETS] == 4 * TINY.parameters
    share = sharded.bytes_by_category[OPTIMIZER_STATE] / (2 * weights)
    assert share < 0.6
    alone = naive.alone.bytes_by_category[TEMPORARIES]
    assert sharded.bytes_by_category[TEMPORARIES] == pytest.approx(share * alone, rel=1e-6)
    assert predicted("ddp-flat", 2).peak_part == "backward"


def test_more_ranks_keep_less_and_send_more_and_the_fewest_that_fit_are_named() -> None:
    """Copies of a model that does not fit fit on no number of ranks."""
    predictions = [predicted("fsdp2", world) for world in (1, 2, 8, 64)]
    peaks, sent = [one.peak_bytes for one in predictions], [one.sent_bytes for one in predictions]
    assert peaks == sorted(set(peaks), reverse=True)
    assert (sent, sent[0]) == (sorted(set(sent)), 0)
    room = (peaks[0] + peaks[-1]) // 2
    fewest = predicted("fsdp2", 1, room).smallest_world or 0
    assert fewest > 1
    assert [predicted("fsdp2", world, room).verdict == FITS for world in (fewest - 1, fewest)] == [False, True]
    assert predicted("ddp", 2, predicted("ddp", 2).peak_bytes - 1).smallest_world is None


@pytest.mark.parametrize("variant", PARALLEL)
def test_a_step_waits_for_what_it_cannot_hide_behind_its_passes(variant: str) -> None:
    """Never for more than it sends on a slow link.

    A slow exchange hides behind the backward pass, of gathers behind both passes.
    A fast one still waits for its last message: DDP's last bucket, and zero1's weights; FSDP2's first gather, its last
    reduction and the norm for clipping. What `ddp-` variants send nothing hides.
    """
    slow, fast = limits.LINK_EFFICIENCY
    found = {rate: predicted(variant, 8, bytes_per_second=rate) for rate in (1e8, 1e9, 1e15)}
    low, high = {}, {}
    for rate, one in found.items():
        assert one.exposed_seconds is not None
        low[rate], high[rate] = one.exposed_seconds
        assert high[rate] == pytest.approx(float(limits.sent_bytes(one.messages, 8)) / (slow * rate))
        step = one.alone.time
        assert one.seconds == pytest.approx((step.low_seconds + low[rate], step.high_seconds + high[rate]))
    if variant.startswith("ddp-"):
        assert low == pytest.approx({rate: seconds * slow / fast for rate, seconds in high.items()})
        return
    assert 0 < low[1e9] < high[1e9]
    hidden_behind = ("forward", "backward") if variant.startswith("fsdp2") else ("backward",)
    hidden = sum(predict_case(replace(CASE, phase=phase), machine()).time.low_seconds for phase in hidden_behind)
    assert high[1e8] * slow / fast - low[1e8] == pytest.approx(hidden)
    shapes = parameter_shapes(CASE.config)
    rest, last = 8 * limits.slice_bytes(shapes.rest, 8), limits.bucket_bytes(shapes.by_gradient)[-1]
    norm = ("all_reduce", 4 * len(shapes.all))
    waits = {
        "ddp": [("all_reduce", last)], "zero1": [("all_reduce", last), ("broadcast", shapes.bytes)],
        "fsdp2": [("all_gather", rest), ("reduce_scatter", rest), norm],
        "fsdp2-bf16": [("all_gather", rest), ("reduce_scatter", rest // 2), norm],
    }[variant]  # fmt: skip
    sent = limits.sent_bytes([limits.Message(*one) for one in waits], 8)
    assert low[1e15] * fast * 1e15 == pytest.approx(float(sent))


def test_without_an_interconnect_no_seconds_are_stated() -> None:
    found = predict_ranks(CASE, machine(), Sharing("ddp", 8, "weak"))
    assert (found.exposed_seconds, found.seconds) == (None, None)
