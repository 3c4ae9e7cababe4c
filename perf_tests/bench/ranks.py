"""This rank and the others: they speak through torchrun's key-value store, which outlives a dead rank, and in JSON."""

import gc
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests.cases.sharing import Launched, Sharing
from perf_tests.hardware.clock import Clock

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


# The process groups of cases: for each number of ranks one that carries the case's bytes and one for its clock.


@dataclass
class Groups:
    """Made anew after a case that failed on some rank: what such a case left in a group would meet the next one.

    Dropping a group closes its connections, so ranks that still wait in it see an error at once.
    """

    peers: Peers
    device: torch.device
    seconds: float = 600.0
    """After which a collective that some rank never joins is an error; making a group takes at most as long."""
    generation: int = 0
    _of_cases: dict[int, Any] = field(default_factory=dict)
    _of_clocks: dict[int, Any] = field(default_factory=dict)

    def make(self, world: int) -> None:
        """Called by all ranks before a case of this many; only the first ones become members."""
        if not dist.is_initialized():
            self._begin()
        if world not in self._of_cases:
            ranks, limit = list(range(world)), timedelta(seconds=self.seconds)
            self._of_cases[world] = dist.new_group(ranks, timeout=limit)
            self._of_clocks[world] = dist.new_group(ranks, timeout=limit, backend="gloo")

    def _begin(self) -> None:
        launched = self.peers.launched
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
            store=self.peers.store_of(f"groups/{self.generation}"),
            rank=launched.rank,
            world_size=launched.world,
            timeout=timedelta(seconds=self.seconds),
        )

    def clock(self, world: int) -> Any:
        return self._of_clocks[world]

    def case(self, world: int) -> Any:
        return self._of_cases[world]

    def ranks(self, sharing: Sharing) -> Any:
        """`model.parallel.Ranks` of a case."""
        from model.parallel import Ranks

        return Ranks(self.case(sharing.world), self.device, sharing.bucket_mb, not sharing.keeps_gathered)

    def part_of(self, batch: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        """This rank's rows of the global batch."""
        from model.parallel import share

        return share(batch, self.ranks(sharing))

    def drop(self) -> None:
        self.generation += 1
        self._of_cases.clear()
        self._of_clocks.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


# The clock of a case on several ranks: all start together, and a round takes as long as on its slowest rank.


class RankClock(Clock):
    """Every rank reads the same: 0 before a round, the slowest rank's seconds after it.

    The barrier comes before the first reading of the wall clock and the exchange after the second, so neither is in
    the time. Outside of a case on ranks it is the ordinary clock.
    """

    group: Any = None
    """Of torch.distributed, on the CPU; None for a case on one device."""

    def forget(self) -> None:
        super().forget()
        self.own_seconds: list[float] = []
        """Of this rank's rounds."""
        self.slowest_seconds: list[float] = []

    def now(self) -> float:
        """Grows alike on all ranks, so that they decide alike."""
        return super().now() if self.group is None else sum(self.slowest_seconds)

    def __call__(self) -> float:
        if self.group is None:
            return super().__call__()
        if not self._is_running:
            self._device.synchronize()
            dist.barrier(group=self.group)
            super().__call__()
            return 0.0
        self.own_seconds.append(super().__call__() - self._wall_start)
        slowest = torch.tensor(self.own_seconds[-1], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self.group)
        self.slowest_seconds.append(float(slowest))
        return self.slowest_seconds[-1]

    def from_all(self, values: Sequence[float]) -> list[list[float]]:
        """As many values from each rank of the case, by rank."""
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(gathered, mine, group=self.group)
        return [found.tolist() for found in gathered]


# One collective among the ranks of a group: its tensors, what fills them, and what must come out.


# Until torch 2.12 under their older names, of which 2.13 warns.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_RUN: dict[str, Callable[[Tensor, Tensor, Any], object]] = {
    "all_reduce": lambda given, taken, group: dist.all_reduce(taken, group=group),
    "all_gather": lambda given, taken, group: _all_gather(taken, given, group=group),
    "reduce_scatter": lambda given, taken, group: _reduce_scatter(taken, given, group=group),
}


class Exchange:
    """A float32 message of `elements_of_a_rank` times as many elements as there are ranks."""

    def __init__(self, collective: str, elements_of_a_rank: int, group: Any, device: torch.device) -> None:
        self.collective, self.group = collective, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        part = torch.empty(elements_of_a_rank, device=device)
        whole = torch.empty(elements_of_a_rank * self.world, device=device)
        self.given, self.taken = {
            "all_reduce": (whole, whole),  # in place
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
        }[collective]

    def fill(self) -> None:
        """Each rank gives its number, counted from 1."""
        self.taken.zero_()
        self.given.fill_(self.rank + 1)

    def run(self) -> None:
        _RUN[self.collective](self.given, self.taken, self.group)

    def check(self) -> None:
        """Raises AssertionError unless the last round gave the sum of all numbers, or each number in its place."""
        numbers = torch.arange(1, self.world + 1, dtype=torch.float32, device=self.taken.device)
        wanted = numbers if self.collective == "all_gather" else numbers.sum()
        rows = self.taken.view(self.world, -1) if self.collective == "all_gather" else self.taken.view(1, -1)
        assert (rows == wanted.view(-1, 1)).all(), f"{self.collective} gave other numbers than the ranks have"
