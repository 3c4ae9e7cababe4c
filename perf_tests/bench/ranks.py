"""A case on several ranks: how they talk, the groups and the clock they share, and what is measured of them.

Imported only where ranks begin, because `torch.distributed` and what it needs take seconds to load.
"""

import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.audit.rounds import RowFacts
from perf_tests_suite.perf_tests.bench.loop import Rounds, RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.cases.attention import CollectiveCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.sharing import Launched, Sharing
from perf_tests_suite.perf_tests.hardware.clock import Clock, CollectiveCounter
from perf_tests_suite.perf_tests.hardware.device import error_text
from perf_tests_suite.perf_tests.hardware.limits import (
    FLOAT32_BYTES,
    SHARDED,
    Message,
    bus_share,
    messages_by_part,
    sent_bytes,
)
from perf_tests_suite.perf_tests.predict.counters import needed_bytes
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.records.record import Json, Times

# Messages between ranks, as JSON in torchrun's key-value store, which survives a dead rank.


RENDEZVOUS_SECONDS = 300.0
"""Wait for the other ranks before the first case. Those of other nodes may still be importing torch from a network
disk: a shorter wait would end runs that only start slowly."""
SHUTDOWN_SECONDS = 10.0
"""Wait of rank 0, which may hold the store, for the others to read its last word. With a shorter one a rank that is
just tearing down a case would find the store gone, and report a failure of a run that was fine."""
LONGEST_PAUSE_SECONDS = 0.02

FINISHED = "finished"
"""The topic on which rank 0 says that it measures no more, and its exit code."""
_ENDED = "perf_tests/ended"


class RendezvousError(Exception):
    """The ranks do not come together; the message is one sentence."""


class SilentRankError(Exception):
    """A rank has said nothing in time, or the store is gone; the message is one sentence."""


class Rank0EndedError(SilentRankError):
    """Rank 0 has said that the run is over."""


@dataclass
class Peers:
    """This rank and the others. Every rank sends once on each topic; whoever waits can be interrupted by a signal."""

    launched: Launched
    store: Store
    across_restarts: Store
    gpus: int = 0
    """GPUs of all ranks, each counted once."""

    @property
    def is_rank0(self) -> bool:
        return self.launched.is_rank0

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.launched.world) if rank != self.launched.rank]

    def send(self, topic: str, value: Any) -> None:
        """Leave a value for all ranks. Raises SilentRankError where the store is gone."""
        try:
            self.store.set(f"{topic}/{self.launched.rank}", json.dumps(value))
        except RuntimeError as error:
            raise SilentRankError(f"The store of rank 0 is gone: {error_text(error).rstrip('.')}.") from error

    def has_sent(self, topic: str, rank: int) -> bool:
        try:
            return bool(self.store.check([f"{topic}/{rank}"]))
        except RuntimeError as error:
            raise SilentRankError(f"The store of rank 0 is gone: {error_text(error).rstrip('.')}.") from error

    def recv(self, topic: str, rank: int, seconds: float) -> Any:
        """Wait for what a rank sends on the topic. Raises SilentRankError."""
        deadline, pause = time.monotonic() + seconds, 1e-4
        while not self.has_sent(topic, rank):
            if topic != FINISHED and not self.is_rank0 and self.has_sent(FINISHED, 0):
                raise Rank0EndedError("Rank 0 has ended.")
            if time.monotonic() > deadline:
                raise SilentRankError(f"rank {rank} said nothing for {seconds:.0f} s.")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return json.loads(self.store.get(f"{topic}/{rank}"))

    def all_gather(self, topic: str, value: Any, seconds: float = RENDEZVOUS_SECONDS) -> list[Any]:
        """Return what all ranks send on the topic, by rank. Raises SilentRankError."""
        self.send(topic, value)
        return [self.recv(topic, rank, seconds) for rank in range(self.launched.world)]

    def shutdown(self) -> None:
        """Say the last word: rank 0, which may hold the store, leaves after the others or when they take too long."""
        with suppress(SilentRankError):
            if not self.is_rank0:
                self.send("left", None)
            for rank in self.others if self.is_rank0 else ():
                self.recv("left", rank, SHUTDOWN_SECONDS)

    def end_for_good(self) -> None:
        """Let all ranks end at once where torchrun starts them again."""
        with suppress(RuntimeError):  # the store is gone, and torchrun with it
            self.across_restarts.set(_ENDED, "")

    @property
    def has_ended(self) -> bool:
        """Whether the run ended before torchrun started the ranks again."""
        return self.launched.restarts > 0 and bool(self.across_restarts.check([_ENDED]))


def join(launched: Launched) -> Peers:
    """Connect to the store of torchrun's agent, or to rank 0's where no agent has one. Raises RendezvousError."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = launched.is_rank0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            address, port, is_master=is_host, timeout=timedelta(seconds=RENDEZVOUS_SECONDS), wait_for_workers=False
        )
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error):
            raise RendezvousError(
                f"Port {port} of {address} is in use; give torchrun another with --master-port, or let it choose "
                "with --standalone."
            ) from error
        raise RendezvousError(
            f"Rank {launched.rank} cannot reach {address}:{port}: {error_text(error).rstrip('.')}."
        ) from error
    # A restart finds the keys of the ranks that died.
    return Peers(launched, PrefixStore(f"perf_tests/{launched.restarts}", store), store)


# The process groups of cases: for each number of ranks one that carries the case's bytes and one for its clock.


@dataclass
class Groups:
    """Made anew after a case that failed on some rank: what such a case left in a group would meet the next one.

    Dropping a group closes its connections, so ranks that still wait in it see an error at once.
    """

    peers: Peers
    device: torch.device
    seconds: float = 600.0
    """Seconds after which a collective that some rank never joins is an error; making a group takes at most as long."""
    generation: int = 0
    _made: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Groups for a case's bytes and for its clock."""

    def make(self, world: int) -> None:
        """Make a group; called by all ranks before a case of this many; only the first ones become members."""
        limit = timedelta(seconds=self.seconds)
        if not dist.is_initialized():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
                store=PrefixStore(f"groups/{self.generation}", self.peers.store),
                rank=self.peers.launched.rank,
                world_size=self.peers.launched.world,
                timeout=limit,
            )
        if world not in self._made:
            ranks = list(range(world))
            self._made[world] = (
                dist.new_group(ranks, timeout=limit),
                dist.new_group(ranks, timeout=limit, backend="gloo"),
            )

    def case(self, world: int) -> Any:
        return self._made[world][0]

    def clock(self, world: int) -> Any:
        return self._made[world][1]

    def ranks(self, sharing: Sharing) -> Any:
        """Return the `model.parallel.Ranks` of a case."""
        from perf_tests_suite.model.parallel import Ranks

        return Ranks(self.case(sharing.world), self.device, sharing.bucket_mb, not sharing.keeps_gathered)

    def part_of(self, batch: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        """Return this rank's rows of the global batch."""
        from perf_tests_suite.model.parallel import share

        return share(batch, self.ranks(sharing))

    def drop(self) -> None:
        self.generation += 1
        self._made.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


class RankClock(Clock):
    """Every rank reads the same: 0 before a round, the slowest rank's seconds after it.

    All ranks start a round together: the barrier comes before the first reading of the wall clock and the exchange
    after the second, so neither is in the time. Outside of a case on ranks it is the ordinary clock.
    """

    group: Any = None
    """A process group on the CPU; None for a case on one device."""

    def forget(self) -> None:
        super().forget()
        self.rank_seconds: list[float] = []
        """Seconds of this rank's rounds."""
        self.slowest_seconds: list[float] = []

    def now(self) -> float:
        """Return seconds that grow alike on all ranks, so that they decide alike."""
        return super().now() if self.group is None else sum(self.slowest_seconds)

    def __call__(self) -> float:
        if self.group is None:
            return super().__call__()
        if not self._is_running:
            self._device.synchronize()
            dist.barrier(group=self.group)
            super().__call__()
            return 0.0
        self.rank_seconds.append(super().__call__() - self._wall_start)
        slowest = torch.tensor(self.rank_seconds[-1], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self.group)
        self.slowest_seconds.append(float(slowest))
        return self.slowest_seconds[-1]

    def from_all(self, values: Sequence[float]) -> list[list[float]]:
        """Return as many values from each rank of the case, by rank."""
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(gathered, mine, group=self.group)
        return [found.tolist() for found in gathered]


# One collective alone: its tensors, what fills them, what must come out, and its row.


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
        """Fill the message with the rank's number, counted from 1."""
        self.taken.zero_()
        self.given.fill_(self.rank + 1)

    def run(self) -> None:
        _RUN[self.collective](self.given, self.taken, self.group)

    def check(self) -> None:
        """Check the last round; raises AssertionError unless it gave the sum of all numbers, or each number in its
        place.
        """
        numbers = torch.arange(1, self.world + 1, dtype=torch.float32, device=self.taken.device)
        wanted = numbers if self.collective == "all_gather" else numbers.sum()
        rows = self.taken.view(self.world, -1) if self.collective == "all_gather" else self.taken.view(1, -1)
        assert (rows == wanted.view(-1, 1)).all(), f"{self.collective} gave other numbers than the ranks have"


@dataclass(frozen=True)
class CollectiveRow(RowBuilder):
    """Bandwidths as nccl-tests defines them, in place of a model's rates of tokens and FLOPs.

    They are the message over its time, and what a rank has to send for it over the same: doc/PERFORMANCE.md of
    github.com/NVIDIA/nccl-tests.
    """

    case: CollectiveCase

    def _with_rates(self, facts: RowFacts, median_seconds: float) -> RowFacts:
        algorithm = self.case.exchanged_bytes / median_seconds
        return replace(
            facts,
            exchanged_bytes=self.case.exchanged_bytes,
            algorithm_bytes_per_second=algorithm,
            bus_bytes_per_second=algorithm * float(bus_share(self.case.collective, self.case.world)),
        )


# The rounds of a case on several ranks, timed alike on all of them; and what sharing a model costs beside them.


@dataclass(kw_only=True)
class MultiRankMeasure(TimedMeasure):
    """Times as on one device; the clock makes every rank see the slowest one's time."""

    def _with_more(self, measured: Measured, rounds: Rounds) -> Measured:
        """Return the row with the rounds and the peak of every rank."""
        clock = self.clock
        assert isinstance(clock, RankClock)
        seconds = clock.from_all(clock.rank_seconds[-self.rounds :])
        peak_bytes = self.device.peaks()[0]
        peaks = None if peak_bytes is None else [int(peak) for (peak,) in clock.from_all([float(peak_bytes)])]
        slowest = [max(range(len(seconds)), key=lambda rank: seconds[rank][number]) for number in range(self.rounds)]
        return replace(measured, rank_seconds=seconds, slowest_ranks=slowest, rank_peak_allocated_bytes=peaks)

    def _busy_seconds(self, rounds: Rounds, has_slices: bool) -> float | None:
        """None: how often the round would be issued again is each rank's own, and its collectives need all of them."""
        return None


CONFIDENCE = 0.95


@dataclass(kw_only=True)
class SharedStepMeasure(MultiRankMeasure):
    """Then runs as many pairs of rounds with and without the exchange, and one in which its messages are counted."""

    case: LanguageModelCase
    sharing: Sharing
    training: Training
    spending: Callable[[], AbstractContextManager[None]]
    """Takes the time of what is looked at beside the timed rounds."""

    def run_rounds(self, rounds: Rounds) -> None:
        if not self.case.phase_row.has_backward:
            # Imported late: earlier revisions of `model`, which the gate measures, lack it.
            from perf_tests_suite.model.parallel import free_gathered

            rounds.forget_more = partial(free_gathered, self.training.model)
        super().run_rounds(rounds)

    def _with_more(self, measured: Measured, rounds: Rounds) -> Measured:
        measured = super()._with_more(measured, rounds)
        with self.spending():
            return self._with_sent(self._with_exposed(measured, rounds), rounds)

    def _with_exposed(self, measured: Measured, rounds: Rounds) -> Measured:
        """Measure what the exchange of gradients adds to a round: the median difference to the round without it.

        Rounds with and without it take turns, and which is first alternates.
        """
        if "backward" not in self.case.phase_row.timed:
            return measured
        if reason := self._why_not_without():
            return replace(measured, exposed_communication_reason=reason)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(self.rounds):
            for exchanges in (True, False) if number % 2 else (False, True):
                seconds[exchanges].append(self._seconds(rounds, exchanges))
        differences = [with_it - without for with_it, without in zip(seconds[True], seconds[False], strict=True)]
        return replace(
            measured,
            exposed_communication_seconds=median(differences),
            exposed_communication_interval=Times(differences).median_interval(CONFIDENCE),
            seconds_with_communication=seconds[True],
            seconds_without_communication=seconds[False],
        )

    def _why_not_without(self) -> str | None:
        """Say why no round runs without the exchange, the same on all ranks; None where it does."""
        if self.sharing.parallel not in SHARDED:
            return None
        whole_bytes = 2 * FLOAT32_BYTES * (self.case.parameters or 0)
        held_bytes = self.device.peaks()[0] or needed_bytes(self.case)
        assert isinstance(self.clock, RankClock)
        assert self.row is not None
        left_bytes = (self.row.conditions.available_bytes or 0) - held_bytes
        room = min(left for (left,) in self.clock.from_all([float(left_bytes)]))
        if room < whole_bytes:
            return f"without exchange a rank holds all weights and gradients, {whole_bytes:,} bytes more than fit."
        return None

    def _seconds(self, rounds: Rounds, exchanges: bool) -> float:
        from perf_tests_suite.model.parallel import without_synchronization

        with nullcontext() if exchanges else without_synchronization(self.training, not self.sharing.keeps_gathered):
            rounds.prepare()
            with self.clock.round():
                rounds.run()
        return self.clock.wall_seconds[-1]

    def _with_sent(self, measured: Measured, rounds: Rounds) -> Measured:
        """Return the row with what one rank sends in one more round: counted, and by the closed form of its parts."""
        way, row = self.sharing, self.case.phase_row

        def region(part: str) -> str:
            """Return where a part of a round sends its messages."""
            return "forward" if part == "inference" else part

        def sent(messages: Mapping[str, Sequence[Message]]) -> tuple[int | float, Json]:
            timed = chain.from_iterable(messages.get(region(part), ()) for part in row.timed)
            return _plain(sent_bytes(timed, way.world)), values_by_part(messages, way.world)

        in_all, by_part = sent(messages_by_region(rounds.run_round))
        measured = replace(measured, sent_bytes=in_all, sent_by_part=by_part)
        if self.case.user_model is not None:
            return measured
        # Imported late: earlier revisions of `model`, which the gate measures, lack what it imports.
        from perf_tests_suite.perf_tests.predict.shapes import NORM_OF_EACH, parameter_shapes

        shapes, reshard = parameter_shapes(self.case.config), not way.keeps_gathered
        step = messages_by_part(way.parallel, shapes, way.world, way.bucket_mb, reshard, NORM_OF_EACH)
        in_all, by_part = sent({part: messages for part, messages in step.items() if part in map(region, row.parts)})
        return replace(measured, predicted_sent_bytes=in_all, predicted_sent_by_part=by_part)


REGIONS = ("forward", "loss", "backward", "optimizer")


def messages_by_region(work: Callable[[], object]) -> dict[str, list[Message]]:
    """Run the work and return the messages that each region issues.

    Messages of whole numbers, with which torch agrees, are left out.
    """
    messages: dict[str, list[Message]] = {}
    counter = CollectiveCounter()

    @contextmanager
    def benchmark_of(region: str) -> Iterator[None]:
        before = len(counter.seen)
        yield
        issued = [message for message, dtype in counter.seen[before:] if dtype.is_floating_point]
        messages.setdefault(region, []).extend(issued)

    with counter, regions_opened_by(lambda name: benchmark_of(name) if name in REGIONS else nullcontext()):
        work()
    return messages


def values_by_part(messages: Mapping[str, Sequence[Message]], world: int) -> dict[str, dict[str, object]]:
    """Return by part how many messages of each kind there are, and the bytes that one of `world` ranks sends."""
    return {
        part: {"collectives": dict(Counter(one.kind for one in sent)), "sent_bytes": _plain(sent_bytes(sent, world))}
        for part, sent in messages.items()
    }


def _plain(count: Fraction) -> int | float:
    """Return a mean over ranks, which need not be whole."""
    return int(count) if count.denominator == 1 else float(count)
