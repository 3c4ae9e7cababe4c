"""One round is a set-up and a target; a way of looking is what happens around them, and one file."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from perf_tests.bench.loop import Rounds
from tests.support.launch import launch


def test_a_round_is_its_set_up_and_then_its_target() -> None:
    ran: list[str] = []

    @contextmanager
    def around(name: str) -> Iterator[None]:
        ran.append(f"{name} begins")
        yield
        ran.append(f"{name} ends")

    rounds = Rounds(lambda: ran.append("target"), lambda: ran.append("set-up"))
    rounds.play(lambda: around("first"), lambda: around("second"))
    assert ran == ["first begins", "set-up", "first ends", "second begins", "target", "second ends"]


def test_the_target_gets_what_the_set_up_returns_and_its_result_is_kept() -> None:
    rounds = Rounds(lambda one, two: one + two, lambda: (1, 2))
    rounds.play()
    assert rounds.result == 3


@pytest.mark.parametrize("what", ["arguments", "result"])
def test_nothing_of_the_last_round_is_alive_while_the_next_is_set_up(what: str) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def setup() -> tuple[torch.Tensor]:
        gc.collect()
        alive.extend(reference() is not None for reference in seen)
        tensor = torch.ones(1)
        if what == "arguments":
            seen.append(weakref.ref(tensor))
        return (tensor,)

    def target(tensor: torch.Tensor) -> torch.Tensor:
        result = tensor + 1
        if what == "result":
            seen.append(weakref.ref(result))
        return result

    rounds = Rounds(target, setup)
    for _ in range(3):
        rounds.play()
    assert alive == [False] * 3


def test_what_a_benchmark_leaves_beside_its_result_is_gone_before_its_next_round() -> None:
    left: list[int] = []
    found: list[int] = []

    def target() -> None:
        found.append(len(left))
        left.append(1)

    rounds = Rounds(target, forget_more=left.clear)
    for _ in range(3):
        rounds.play()
    assert (found, left) == ([0, 0, 0], [1])


def test_a_new_way_of_looking_is_one_file(tmp_path: Path) -> None:
    """`counted_rounds.py` gives every benchmark another measure, and nothing is timed or saved."""
    counted = launch(tmp_path / "storage", "-p", "tests.support.counted_rounds", "-s", "--benchmark-disable")
    assert counted.exit_code == 0, counted.output + counted.errors
    assert "test_forward[tiny-ctx8-fp32-naive]: 3 rounds" in counted.output
    assert counted.records == []
