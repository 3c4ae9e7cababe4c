"""Collectives alone: their ids and refusals, what an exchange must give, and a run of them on two ranks."""

from dataclasses import replace

import pytest
import torch

from perf_tests.bench.ranks import Exchange
from perf_tests.cases.attention import CollectiveCase, in_round_units
from perf_tests.cases.selected import is_inside
from perf_tests.hardware.limits import COLLECTIVES
from tests.support.example_cases import SETTINGS
from tests.support.launch import Launch, launch
from tests.support.ranks import ranks_launched_once

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
