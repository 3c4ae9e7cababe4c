"""One rank's share of a step: what it keeps, what it waits for, and how many ranks fit."""

import json
from dataclasses import replace

import pytest

from model.parallel import PARALLEL
from model.sizes import SIZES
from numerics_tests.harness.rank_pool import POOL, Task
from perf_tests.__main__ import main
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.sharing import Sharing
from perf_tests.hardware.datasheets import FITS, Room
from perf_tests.hardware.limits import (
    BUCKETS,
    GATHERED,
    WHOLE_GRADIENTS,
    Message,
    ParameterShapes,
    bucket_bytes,
    float32_bytes,
    kept_bytes,
    largest_part_bytes,
    sent_bytes,
    slice_bytes,
    working_bytes,
)
from perf_tests.predict.ranks import RankPrediction, parameter_shapes, predict_ranks
from perf_tests.predict.request import link_rate, requested_machine
from perf_tests.predict.step import TargetMachine, predict_case
from tests.support.documents import ROOT

CASE = LanguageModelCase(
    phase="full_step", size="tiny", config=SIZES["tiny"].at_context(16), context_length=16, batch_size=1,
    precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="foreach", device="cuda",
    model="ours",
)  # fmt: skip


def machine(room_bytes: int | None = None) -> TargetMachine:
    card = requested_machine("H100")
    return card if room_bytes is None else replace(card, room=Room(room_bytes, "as the test says"))


def predicted(variant: str, world: int, room_bytes: int | None = None, bytes_per_second: float = 1e9) -> RankPrediction:
    return predict_ranks(CASE, machine(room_bytes), Sharing(variant, world, "weak"), bytes_per_second)


@pytest.mark.parametrize("variant", PARALLEL)
@pytest.mark.parametrize("world", [2, 3])
def test_what_a_rank_keeps_is_what_the_fullest_real_rank_keeps(variant: str, world: int) -> None:
    task = Task(str(ROOT), "tests.support.on_ranks", "bytes_kept", world, (variant,))
    fullest = tuple(max(each) for each in zip(*POOL.run(task), strict=True))
    assert kept_bytes(variant, parameter_shapes(SIZES["tiny"]), world) == fullest


def test_the_largest_part_of_a_sharded_optimizer_is_no_less_than_its_largest_parameter() -> None:
    """Whole parameters go to one rank each, so more ranks than parameters do not help."""
    shapes = [(10, 4), (30,), (5, 2)]
    assert [largest_part_bytes(shapes, world) // 4 for world in (1, 2, 3, 100)] == [80, 40, 40, 40]


@pytest.mark.parametrize("rest, block", [(3, 2), (10, 2), (3, 20)])
def test_beside_what_it_keeps_a_rank_holds_what_it_gathers_and_whole_gradients_or_buckets(
    rest: int, block: int
) -> None:
    """FSDP2: the rest for the whole step, three blocks, and gradients of the rest or of a block with their buffer."""
    shapes = ParameterShapes(((rest,),), (((block,),), ((1,),)), by_gradient=())
    floats = {GATHERED: rest + 3 * block, WHOLE_GRADIENTS: rest + max(rest, 2 * block)}
    for variant in PARALLEL:
        held = {name: size // 4 for name, size in working_bytes(variant, shapes, "backward").items()}
        buckets = {} if variant == "ddp-naive" else {BUCKETS: rest + block + 1}
        assert held == (floats if variant.startswith("fsdp2") else buckets)


@pytest.mark.parametrize("reshard", [True, False])
def test_after_a_forward_pass_real_ranks_hold_the_rest_gathered_and_without_resharding_every_block(
    reshard: bool,
) -> None:
    """What of the form is a buffer, one block for every block kept and two otherwise, is not seen from outside."""
    task = Task(str(ROOT), "tests.support.on_ranks", "bytes_gathered", 2, (reshard,))
    shapes = parameter_shapes(SIZES["tiny"])
    block = sum(map(float32_bytes, shapes.blocks[0]))
    gathered = shapes.bytes - (len(shapes.blocks) * block if reshard else 0)
    assert POOL.run(task) == [gathered, gathered]
    assert working_bytes("fsdp2", shapes, "forward", reshard) == {GATHERED: gathered + (3 if reshard else 1) * block}


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


@pytest.mark.parametrize("part", ["forward", "loss", "optimizer"])
def test_gradients_are_whole_in_no_part_but_the_backward_pass(part: str) -> None:
    shapes = parameter_shapes(CASE.config)
    held = {variant: set(working_bytes(variant, shapes, part)) for variant in PARALLEL}
    gathered = set() if part == "optimizer" else {GATHERED}
    assert held == {"ddp-naive": set(), "ddp-flat": set(), "ddp": {BUCKETS}, "zero1": {BUCKETS},
                    "fsdp2": gathered, "fsdp2-bf16": gathered}  # fmt: skip


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


@pytest.mark.parametrize("variant", [variant for variant in PARALLEL if not variant.startswith("ddp-")])
def test_a_slow_exchange_hides_behind_the_backward_pass_and_gathers_behind_the_forward_pass_too(variant: str) -> None:
    passes = ("forward", "backward") if variant.startswith("fsdp2") else ("backward",)
    hidden = sum(predict_case(replace(CASE, phase=phase), machine()).time.low_seconds for phase in passes)
    exposed = predicted(variant, 8, bytes_per_second=1e8).exposed_seconds
    assert exposed is not None
    assert exposed[1] - exposed[0] == pytest.approx(hidden)


@pytest.mark.parametrize("variant", [variant for variant in PARALLEL if not variant.startswith("ddp-")])
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


WORDS = ["predict", "--size", "tiny", "--context", "16", "--batch-size", "1", "--gpu", "H100"]
ON_RANKS = [*WORDS, "--parallel", "fsdp2", "--world", "8"]


def test_the_verb_prints_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ON_RANKS, "--interconnect", "450GB/s"]) == 0
    text = capsys.readouterr().out
    for words in ("on each of 8 ranks, fsdp2", "fits on H100", "a rank sends", "exposed communication", "fewest ranks"):
        assert words in text
    assert main(ON_RANKS) == 0
    assert "no time: give what a rank can send with --interconnect 450GB/s" in capsys.readouterr().out


def test_json_says_the_same_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ON_RANKS, "--interconnect", "450GB/s", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] is True
    assert data["smallest_world_that_fits"] == 1
    assert sum(data["bytes_by_category"].values()) == data["peak_bytes"]
    assert len(data["messages"]) == 9
    assert data["exposed_seconds"][0] <= data["exposed_seconds"][1]


def test_json_names_the_interconnects_rate_beside_the_memorys(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (WORDS, [*ON_RANKS, "--interconnect", "450GB/s"], ON_RANKS):
        assert main([*words, "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert [data["bytes_per_second"] for data in shown] == [machine().ceilings.bytes_per_second] * 3
    assert [data.get("interconnect_bytes_per_second") for data in shown] == [None, 450e9, None]


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("--world 8", "--world is for ranks; name how they share the step with --parallel."),
        ("--reshard no", "--reshard is for ranks; name how they share the step with --parallel."),
        ("--parallel ddp", "--parallel needs the number of ranks; give it with --world."),
        ("--parallel dp --world 8", "--parallel 'dp' is unknown; choose from ddp-naive, ddp-flat, ddp, zero1"),
        ("--parallel ddp --world 0", "--world is 0; it must be at least 1."),
        ("--parallel ddp --world 2 --interconnect 450", "--interconnect '450' is not a rate"),
        ("--parallel ddp --world 2 --interconnect 0GB/s", "--interconnect '0GB/s' is not a rate"),
        ("--parallel fsdp2 --world 2 --reshard maybe", "--reshard 'maybe' is unknown; choose from yes, no."),
        ("--parallel ddp --world 2 --reshard no", "--reshard changes fsdp2 and fsdp2-bf16 alone; choose one of them"),
        ("--parallel fsdp2 --world 2 --bucket-mb 1", "--bucket-mb changes ddp and zero1 alone; choose one of them"),
        ("--parallel ddp --world 2 --checkpoint all", "--parallel takes one context, one checkpoint"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words.split()]) == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1


def test_a_rate_is_bytes_per_second() -> None:
    assert link_rate("450GB/s") == 450e9
    assert link_rate("12.5GB/s") == 12.5e9
