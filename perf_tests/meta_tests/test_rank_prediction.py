"""One rank's share of a step: what it keeps, what it waits for, and how many ranks fit."""

import json
from dataclasses import replace

import pytest

from model.parallel import PARALLEL
from model.sizes import SIZES
from numerics_tests.rank_pool import POOL, Task
from perf_tests.__main__ import main
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.counting.rank_messages import parameter_shapes
from perf_tests.limits.communication import sent_bytes
from perf_tests.limits.gpu_room import FITS, Room
from perf_tests.limits.rank_memory import kept_bytes, largest_part_bytes
from perf_tests.meta_tests.documents import ROOT
from perf_tests.prediction.ranks import RankPrediction, predict_ranks, rate
from perf_tests.prediction.request import requested_machine
from perf_tests.prediction.step import TargetMachine
from perf_tests.ranks.sharing import Sharing

CASE = LanguageModelCase(
    phase="full_step", size="tiny", config=SIZES["tiny"].at_context(16), context_length=16, batch_size=1,
    precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="foreach", device="cuda",
    model="ours",
)  # fmt: skip


def machine(room_bytes: int | None = None) -> TargetMachine:
    card = requested_machine("H100")
    return card if room_bytes is None else replace(card, room=Room(room_bytes, "as the test says"))


def predicted(variant: str, world: int, room_bytes: int | None = None, bucket_mb: int | None = None) -> RankPrediction:
    return predict_ranks(CASE, machine(room_bytes), Sharing(variant, world, "weak", bucket_mb), 1e9)


@pytest.mark.parametrize("variant", PARALLEL)
@pytest.mark.parametrize("world", [2, 3])
def test_what_a_rank_keeps_is_what_the_fullest_real_rank_keeps(variant: str, world: int) -> None:
    task = Task(str(ROOT), "perf_tests.meta_tests.on_ranks", "bytes_kept", world, (variant,))
    fullest = tuple(max(each) for each in zip(*POOL.run(task), strict=True))
    assert kept_bytes(variant, parameter_shapes(SIZES["tiny"]), world) == fullest


def test_the_largest_part_of_a_sharded_optimizer_is_no_less_than_its_largest_parameter() -> None:
    """Whole parameters go to one rank each, so more ranks than parameters do not help."""
    shapes = [(10, 4), (30,), (5, 2)]
    assert [largest_part_bytes(shapes, world) // 4 for world in (1, 2, 3, 100)] == [80, 40, 40, 40]


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


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("--world 8", "--world is for ranks; name how they share the step with --parallel."),
        ("--reshard no", "--reshard is for ranks; name how they share the step with --parallel."),
        ("--parallel ddp", "--parallel needs the number of ranks; give it with --world."),
        ("--parallel dp --world 8", "--parallel 'dp' is unknown; choose from ddp-naive, ddp-flat, ddp, zero1"),
        ("--parallel ddp --world 0", "--world is 0; it must be at least 1."),
        ("--parallel ddp --world 2 --interconnect 450", "--interconnect '450' is no rate"),
        ("--parallel ddp --world 2 --interconnect 0GB/s", "--interconnect '0GB/s' is no rate"),
        ("--parallel ddp --world 2 --reshard maybe", "--reshard 'maybe' is unknown; choose from yes, no."),
        ("--parallel ddp --world 2 --checkpoint all", "--parallel takes one context, one checkpoint"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words.split()]) == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1


def test_a_rate_is_bytes_per_second() -> None:
    assert rate("450GB/s") == 450e9
    assert rate("12.5GB/s") == 12.5e9
