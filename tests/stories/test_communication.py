"""What real ranks keep, gather and send, by part and by phase, is what the closed forms say; and collectives alone."""

from dataclasses import replace

import pytest
import torch

from model.parallel import PARALLEL
from model.sizes import SIZES
from numerics_tests.harness.rank_pool import POOL, Task
from perf_tests.bench.ranks import Exchange
from perf_tests.cases.attention import CollectiveCase, in_round_units
from perf_tests.cases.selected import is_inside
from perf_tests.hardware.limits import (
    COLLECTIVES,
    GATHERED,
    float32_bytes,
    kept_bytes,
    step_messages,
    working_bytes,
)
from perf_tests.predict.ranks import NORM_OF_EACH, parameter_shapes
from tests.support.documents import ROOT
from tests.support.example_cases import SETTINGS
from tests.support.launch import Launch, launch
from tests.support.ranks import ranks_launched_once

TINY = SIZES["tiny"]
WAYS = [
    *((variant, None, True) for variant in PARALLEL),
    *((variant, bucket_mb, True) for variant in ("ddp", "zero1") for bucket_mb in (0.01, 1.0, 4.0)),
    *((variant, None, False) for variant in ("fsdp2", "fsdp2-bf16")),
]


@pytest.mark.parametrize("variant, bucket_mb, reshard", WAYS)
@pytest.mark.parametrize("world", [2, 3])
def test_the_closed_form_is_what_real_ranks_send(
    variant: str, bucket_mb: float | None, reshard: bool, world: int
) -> None:
    task = Task(str(ROOT), "tests.support.on_ranks", "messages_sent", world, (variant, bucket_mb, reshard))
    formed = step_messages(variant, parameter_shapes(TINY), world, bucket_mb, reshard, NORM_OF_EACH)
    for sent in POOL.run(task):
        assert sorted(sent) == sorted(formed)


@pytest.mark.parametrize("variant", PARALLEL)
@pytest.mark.parametrize("world", [2, 3])
def test_what_a_rank_keeps_is_what_the_fullest_real_rank_keeps(variant: str, world: int) -> None:
    task = Task(str(ROOT), "tests.support.on_ranks", "bytes_kept", world, (variant,))
    fullest = tuple(max(each) for each in zip(*POOL.run(task), strict=True))
    assert kept_bytes(variant, parameter_shapes(SIZES["tiny"]), world) == fullest


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


WAYS_OF_PHASES = ("zero1-world2", "fsdp2-world2", "fsdp2-world2-no-reshard")
PHASES = ("inference", "forward", "backward", "forward_backward", "optimizer")

both = ranks_launched_once("--parallel=zero1,fsdp2", "--reshard=yes,no", f"--phase={','.join(PHASES)}")


@pytest.mark.parametrize("way", WAYS_OF_PHASES)
@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_sends_what_the_closed_form_says_of_its_parts(phase: str, way: str, both: list[Launch]) -> None:
    info = both[0].measured[f"test_{phase}[tiny-ctx8-fp32-naive-{way}]"]["extra_info"]
    counted = {part: sent for part, sent in info["sent_by_part"].items() if sent["sent_bytes"]}
    assert counted == {part: sent for part, sent in info["predicted_sent_by_part"].items() if sent["sent_bytes"]}
    assert info["sent_bytes"] == info["predicted_sent_bytes"]
    # A pass with gathers or reductions of its own sends something.
    sends = phase in {"zero1-world2": ("backward", "forward_backward", "optimizer")}.get(way, PHASES)
    assert (info["sent_bytes"] > 0) is sends


alone = ranks_launched_once("--collective=all", "--message-size=10B,4KB,40KB,4MB", "--world=1,2")


@pytest.fixture(scope="module")
def lead(alone: list[Launch]) -> Launch:
    return alone[0]


def of_bytes(message_bytes: int, world: int = 3) -> CollectiveCase:
    return CollectiveCase("collective", "all_reduce", message_bytes, world, 1, "gloo", "float32", "cpu")


def test_only_collectives_run_where_no_way_to_share_a_model_is_given(alone: list[Launch], lead: Launch) -> None:
    assert [launched.exit_code for launched in alone] == [0, 0], lead.output
    worlds = [(name, size, world) for name in COLLECTIVES for size in ("4KB", "40KB", "4MB") for world in (1, 2)]
    assert {f"test_collective[{name}-{size}-world{world}]" for name, size, world in worlds} <= lead.measured.keys()
    assert all(name.startswith("test_collective[") for name in lead.measured)


def test_a_row_has_the_bandwidths_of_nccl_tests(lead: Launch) -> None:
    for name, times_bus in (("all_reduce", 1.0), ("all_gather", 0.5), ("reduce_scatter", 0.5)):
        row = lead.measured[f"test_collective[{name}-40KB-world2]"]
        info = row["extra_info"]
        assert info["algorithm_bytes_per_second"] == pytest.approx(40_000 / row["stats"]["median"])
        assert info["bus_bytes_per_second"] == pytest.approx(times_bus * info["algorithm_bytes_per_second"])
        assert len(info["rank_seconds"]) == 2
        assert (info["collective"], info["message_bytes"], info["backend"]) == (name, 40_000, "gloo")


def test_what_ranks_cannot_divide_is_cut_and_said(lead: Launch) -> None:
    assert lead.measured["test_collective[all_gather-10B-world2]"]["extra_info"]["exchanged_bytes"] == 8
    assert of_bytes(1_000_000).exchanged_bytes == 999_996


def test_the_record_and_the_screen_hold_a_link_for_each_collective(lead: Launch) -> None:
    """The largest message takes so much longer than the smallest that a busy machine shows it too."""
    assert {(link["collective"], link["world"]) for link in lead.record["links"]} == {(c, 2) for c in COLLECTIVES}
    assert all(link["sizes"] == 4 and link["latency_seconds"] >= 0 for link in lead.record["links"])
    assert "- collectives -" in lead.output


def test_fewer_bytes_than_ranks_can_share_are_refused_with_the_least() -> None:
    assert "choose --message-size 12B or more" in str(of_bytes(11).why_unsupported_on_ranks(0))


@pytest.mark.parametrize(
    "count, words", [(10**9, "1GB"), (64_000, "64KB"), (2**20, "1MiB"), (2**16, "64KiB"), (7, "7B")]
)
def test_an_id_has_the_size_as_it_is_typed(count: int, words: str) -> None:
    assert in_round_units(count) == words


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_exchange_that_gives_other_numbers_is_found(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    exchange = Exchange(collective, 4, None, torch.device("cpu"))
    right = torch.tensor([1.0, 2.0]).repeat_interleave(4) if collective == "all_gather" else torch.tensor(3.0)
    exchange.fill()
    exchange.taken.copy_(right.expand_as(exchange.taken))
    exchange.check()
    exchange.taken[-1] = 1.0
    with pytest.raises(AssertionError, match=collective):
        exchange.check()


def test_a_collective_of_an_older_row_is_inside_where_the_axes_hold_it() -> None:
    settings = replace(SETTINGS, collectives=("all_reduce",), message_sizes=(1000,), worlds=(2,))
    assert is_inside(of_bytes(1000, world=2).identity(), settings)
    assert not is_inside(of_bytes(1000, world=3).identity(), settings)
    assert not is_inside(of_bytes(1000, world=2).identity(), SETTINGS)


@pytest.mark.parametrize("option", ["--collective=all_reduce", "--message-size=1MB"])
def test_one_process_has_nobody_to_exchange_with(option: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    alone = launch(tmp_path_factory.mktemp("alone"), option)
    assert alone.exit_code == 4
    assert f"{option.partition('=')[0]} needs ranks" in alone.errors
    assert "torchrun --nproc-per-node 2 -m pytest" in alone.errors


def test_a_run_on_one_device_collects_no_collective(tmp_path_factory: pytest.TempPathFactory) -> None:
    collected = launch(tmp_path_factory.mktemp("one"), "--collect-only", "-q", "-k=collective")
    assert "test_collective[" not in collected.output
