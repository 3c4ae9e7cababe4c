"""Ranks measure together only where they were started alike: what differs is named before anything is measured."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf_tests.cases.settings import Settings
from perf_tests.run import ranks as starts
from tests.support.example_cases import SETTINGS
from tests.support.items import stash_of


class TwoPeers:
    """Seen from rank 0; rank 1 says the same as rank 0 but for `different`."""

    is_rank0, others = True, (1,)

    def __init__(self, different: dict[str, object]) -> None:
        self.different = different
        self.facts: dict[str, object] = {}

    def all_gather(self, topic: str, value: Any) -> list[Any]:
        if topic != "facts":
            return [value, None]
        self.facts = value
        return [value, value | self.different]

    def shutdown(self) -> None:
        pass


def compare(settings: Settings, different: dict[str, object]) -> dict[str, object]:
    """What rank 0 says of its start."""
    peers: Any = TwoPeers(different)
    config: Any = SimpleNamespace(
        stash=stash_of(settings=settings), invocation_params=SimpleNamespace(args=("perf_tests", "--parallel=ddp"))
    )
    starts.check_launches(config, peers, "digest")
    told: dict[str, object] = peers.facts
    return told


@pytest.mark.parametrize(
    "name, other, words",
    [
        ("options", ["perf_tests", "--rounds", "3"], "options: perf_tests --rounds 3 there"),
        ("code", "another digest", "code: its checkout differs from rank 0's"),
        ("torch", "2.0.0", f"torch: 2.0.0 there, {torch.__version__} on rank 0"),
        ("device", "cuda", "device: cuda there, cpu on rank 0"),
        ("settings", "[]", "settings: what the options leave to the machine differs"),
    ],
)
def test_a_rank_that_was_started_differently_is_refused_by_what_differs(name: str, other: object, words: str) -> None:
    with pytest.raises(pytest.UsageError) as refusal:
        compare(SETTINGS, {name: other})
    assert str(refusal.value) == f"Rank 1 was started with different {words}; start all ranks alike."


def test_ranks_that_were_started_alike_agree_on_all_settings_but_the_number_of_their_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starts, "device_in_words", lambda device: "NVIDIA H100")
    monkeypatch.setattr(starts, "gpu_of_this_rank", lambda device: f"a machine, {device}")
    one, other, slower = (
        compare(replace(SETTINGS, device=device, threads=threads), {})
        for device, threads in (("cuda:0", 1), ("cuda:1", 1), ("cuda:0", 2))
    )
    assert one["settings"] == other["settings"] != slower["settings"]
