"""This rank and the others: they speak through torchrun's key-value store, which outlives a dead rank, and in JSON."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests.ranks.launched import Launched

JOINING_SECONDS = 300.0
"""Ranks of other nodes may still be importing torch."""
PARTING_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 0.02

MASTER_PORT_HINT = "give torchrun another with --master-port, or let it choose with --standalone"


class JoiningError(Exception):
    """The ranks do not come together; the message is one sentence."""


class SilentRankError(Exception):
    """A rank has said nothing in time, or the store is gone; the message is one sentence."""


class LeadEndedError(SilentRankError):
    """Rank 0 has said that the run is over."""


FINISHED = "finished"
_ENDED = "perf_tests/ended"


@dataclass
class Peers:
    """Every rank says each topic once; whoever waits can be interrupted by a signal."""

    launched: Launched
    store: Store
    across_restarts: Store
    gpus: int = 0
    """That the ranks have, each counted once."""

    @property
    def leads(self) -> bool:
        return self.launched.leads

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.launched.world) if rank != self.launched.rank]

    def tell(self, topic: str, value: Any) -> None:
        """Raises SilentRankError where the store is gone."""
        try:
            self.store.set(f"{topic}/{self.launched.rank}", json.dumps(value))
        except RuntimeError as error:
            raise SilentRankError(f"The store of rank 0 is gone: {_first_line(error)}.") from error

    def has_told(self, topic: str, rank: int) -> bool:
        try:
            return bool(self.store.check([f"{topic}/{rank}"]))
        except RuntimeError as error:
            raise SilentRankError(f"The store of rank 0 is gone: {_first_line(error)}.") from error

    def hear(self, topic: str, rank: int, seconds: float) -> Any:
        """What a rank says on the topic. Raises SilentRankError."""
        deadline, pause = time.monotonic() + seconds, 1e-4
        while not self.has_told(topic, rank):
            if topic != FINISHED and not self.leads and self.has_told(FINISHED, 0):
                raise LeadEndedError("Rank 0 has ended.")
            if time.monotonic() > deadline:
                raise SilentRankError(f"rank {rank} said nothing for {seconds:.0f} s.")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return json.loads(self.store.get(f"{topic}/{rank}"))

    def share(self, topic: str, value: Any, seconds: float = JOINING_SECONDS) -> list[Any]:
        """What all ranks say on the topic, by rank. Raises SilentRankError."""
        self.tell(topic, value)
        return [self.hear(topic, rank, seconds) for rank in range(self.launched.world)]

    def part(self) -> None:
        """The last word: rank 0, which may hold the store, leaves after the others or when they take too long."""
        with suppress(SilentRankError):
            if not self.leads:
                self.tell("left", None)
            for rank in self.others if self.leads else ():
                self.hear("left", rank, PARTING_SECONDS)

    def store_of(self, topic: str) -> Store:
        """For what torch has to say on the topic."""
        return PrefixStore(topic, self.store)

    def end(self, exit_code: int) -> None:
        """Rank 0 measures no more."""
        self.tell(FINISHED, exit_code)

    def end_for_good(self) -> None:
        """Where torchrun starts all ranks again, they end at once."""
        with suppress(RuntimeError):  # the store is gone, and torchrun with it
            self.across_restarts.set(_ENDED, "")

    @property
    def has_ended(self) -> bool:
        """Whether the run ended before torchrun started the ranks again."""
        return self.launched.restarts > 0 and bool(self.across_restarts.check([_ENDED]))


def join(launched: Launched) -> Peers:
    """Connect to the store of torchrun's agent, or to rank 0's where no agent has one. Raises JoiningError."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = launched.leads and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            address, port, is_master=is_host, timeout=timedelta(seconds=JOINING_SECONDS), wait_for_workers=False
        )
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error):
            raise JoiningError(f"Port {port} of {address} is in use; {MASTER_PORT_HINT}.") from error
        raise JoiningError(f"Rank {launched.rank} cannot reach {address}:{port}: {_first_line(error)}.") from error
    # A restart finds the keys of the ranks that died.
    return Peers(launched, PrefixStore(f"perf_tests/{launched.restarts}", store), store)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
