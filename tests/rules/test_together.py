"""How a rank ends: the others wait for the word of rank 0, unless a signal says that it may be dead.

And how ranks meet again after a case that failed.
"""

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.ranks import FINISHED, Groups, Peers
from perf_tests.bench.session import noted
from perf_tests.cases.sharing import Launched
from perf_tests.run.ranks import RankSync
from perf_tests.run.termination import NAME, Termination
from tests.support.example_cases import language_model_case
from tests.support.items import benchmark


class HeardPeers:
    """Of rank 1: notes what it waits for."""

    is_rank0 = False

    def __init__(self) -> None:
        self.waited_for: list[str] = []

    def recv(self, topic: str, rank: int, seconds: float) -> None:
        self.waited_for.append(topic)

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize(
    "came, waits", [pytest.param(None, [FINISHED], id="none"), pytest.param(signal.SIGTERM, [], id="SIGTERM")]
)
def test_a_rank_waits_for_rank_0_unless_a_signal_ends_it(came: signal.Signals | None, waits: list[str]) -> None:
    peers = HeardPeers()
    plugins = SimpleNamespace(getplugin={NAME: Termination(came)}.get)
    together = RankSync(cast(Peers, peers), cast(pytest.Config, SimpleNamespace(pluginmanager=plugins)))
    session: Any = SimpleNamespace(shouldstop=False, exitstatus=0)
    ending = together.pytest_sessionfinish(session)
    next(ending)
    with pytest.raises(StopIteration):
        ending.send(None)
    assert peers.waited_for == waits


def test_groups_are_made_anew_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same one a rank would find the addresses of connections that were dropped."""
    topics, store = [], HashStore()

    def store_of(topic: str, whole: HashStore) -> PrefixStore:
        topics.append(topic)
        return PrefixStore(topic, whole)

    peers = Peers(Launched(), store, store)
    monkeypatch.setattr("perf_tests.bench.ranks.PrefixStore", store_of)
    groups = Groups(peers, torch.device("cpu"))
    for _ in range(2):
        groups.make(1)
        assert dist.get_world_size(groups.case(1)) == 1
        groups.drop()
        assert not dist.is_initialized()
    assert len(set(topics)) == len(topics) == 2


@pytest.mark.parametrize(
    "error, outcome",
    [
        pytest.param(RuntimeError("planted"), Outcome("error", "rank 0: RuntimeError: planted"), id="error"),
        pytest.param(pytest.skip.Exception("no GPU"), Outcome("unsupported", "no GPU"), id="refused on all alike"),
    ],
)
def test_what_rank_0_itself_met_has_its_number_unless_all_ranks_refuse_it(
    error: BaseException, outcome: Outcome
) -> None:
    told: list[Any] = []
    peers: Any = SimpleNamespace(launched=Launched(0, 2), send=lambda topic, value: told.append(value))
    item = benchmark(language_model_case())
    together = RankSync(peers, cast(pytest.Config, SimpleNamespace()))
    assert together._note_failure(item, "case/call", error) is None
    assert noted(item).outcome == outcome
    assert [said["is_effect"] for said in told] == [False]
