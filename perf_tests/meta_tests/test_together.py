"""How a rank ends: the others wait for the word of rank 0, unless a signal says that it may be dead."""

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perf_tests.ranks.peers import FINISHED, Peers
from perf_tests.run.termination import TERMINATION, Termination
from perf_tests.run.together import Together


class HeardPeers:
    """Of rank 1: notes what it waits for."""

    leads = False

    def __init__(self) -> None:
        self.waited_for: list[str] = []

    def hear(self, topic: str, rank: int, seconds: float) -> None:
        self.waited_for.append(topic)

    def part(self) -> None:
        pass


@pytest.mark.parametrize(
    "came, waits", [pytest.param(None, [FINISHED], id="none"), pytest.param(signal.SIGTERM, [], id="SIGTERM")]
)
def test_a_rank_waits_for_rank_0_unless_a_signal_ends_it(came: signal.Signals | None, waits: list[str]) -> None:
    peers, stash = HeardPeers(), pytest.Stash()
    stash[TERMINATION] = Termination(came)
    together = Together(cast(Peers, peers), cast(pytest.Config, SimpleNamespace(stash=stash)))
    session: Any = SimpleNamespace(shouldstop=False, exitstatus=0)
    ending = together.pytest_sessionfinish(session)
    next(ending)
    with pytest.raises(StopIteration):
        ending.send(None)
    assert peers.waited_for == waits
