"""The rounds of a benchmark: an untimed set-up, then its target. A measure decides what happens around them."""

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from statistics import median
from typing import Any

from model.training import Training
from perf_tests.bench.profiler import Around
from perf_tests.bench.ranks import RankClock
from perf_tests.bench.row import Row, Timing
from perf_tests.cases.attention import CollectiveCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.sharing import SentByPart, Sharing, plain, values_by_part
from perf_tests.hardware.clock import Clock, busy_seconds
from perf_tests.hardware.device import CacheFlush, Device, begin_round, cache_state, count_compilations
from perf_tests.hardware.limits import FLOAT32_BYTES, SHARDED, Message, bus_share, messages_by_part, sent_bytes
from perf_tests.hardware.machine import RoundHealth, drifting_facts
from perf_tests.predict.counters import needed_bytes
from perf_tests.records.record import Json, Times

SetUp = Callable[[], tuple[Any, ...] | None]
"""Returns the arguments of the target."""


@dataclass
class Rounds:
    """`target(*setup())`, once per round; `result` is what the last round returned."""

    target: Callable[..., Any]
    setup: SetUp | None = None
    loss_scale: Callable[[], float] | None = None
    """When it falls between two rounds, the optimizer skipped a step."""
    forget_more: Callable[[], None] | None = None
    """Frees what a round leaves beside its result and the next must not find."""
    result: Any = None
    _arguments: tuple[Any, ...] = ()

    def forget(self) -> None:
        """Free what the last round left: its graph beside that of the next would double the peak."""
        self._arguments, self.result = (), None
        if self.forget_more is not None:
            self.forget_more()

    def prepare(self) -> None:
        """The set-up. The arguments are kept here, because pytest-benchmark would hold them until it has new ones."""
        self.forget()
        begin_round()
        self._arguments = (self.setup() if self.setup is not None else None) or ()

    def run(self) -> None:
        self.result = self.target(*self._arguments)

    def play(self, around_setup: Around = nullcontext, around_target: Around = nullcontext) -> None:
        """One round; only its result outlives it."""
        self.forget()
        with around_setup():
            self.prepare()
        with around_target():
            self.run()
        self._arguments = ()


@dataclass
class Measure(ABC):
    """What a benchmark calls once, with its rounds."""

    values: Json = field(default_factory=dict, init=False)
    """What `look` returned."""

    def __call__(
        self,
        target: Callable[..., Any],
        setup: SetUp | None = None,
        loss_scale: Callable[[], float] | None = None,
        forget_more: Callable[[], None] | None = None,
    ) -> Any:
        """The result of the last round of `target(*setup())`; see `Rounds`."""
        rounds = Rounds(target, setup, loss_scale, forget_more)
        self.values = self.look(rounds) or {}
        return rounds.result

    @abstractmethod
    def look(self, rounds: Rounds) -> Json | None:
        """Run the rounds; returns what they showed where a pass keeps it."""


# How many warm-up rounds: as many as asked for, and as long as the device needs to reach its clock rates.


def warm_up(
    device: Device, least_rounds: int, done: int = 0, now: Callable[[], float] = time.perf_counter
) -> Iterator[int]:
    """The number of each round to run now, after those `done`. Round 0 does not count as load: it may compile."""
    for number in count(done):
        if number <= 1:
            start = now()
        if number >= least_rounds and now() - start >= device.warm_up_seconds:
            return
        yield number


# The rounds of one case under pytest-benchmark: warm-up, then measured rounds.


@dataclass
class TimedMeasure(Measure):
    """Times the target alone, never its set-up; `timing` is set after the rounds."""

    benchmark: Any
    """pytest-benchmark's fixture, whose class is not public."""
    clock: Clock
    device: Device
    rounds: int
    warmup_rounds: int
    """At least; 0 is none at all."""
    row: Row | None
    """None where the benchmark only runs once, as a test."""
    on_round: Callable[[int], None] = lambda number: None
    """Called with the number of each round before its set-up, warm-up rounds first."""
    health: RoundHealth = field(default_factory=lambda: RoundHealth(None))
    flush: CacheFlush | None = None
    """Called after the set-up of each measured round, before the clock starts."""
    sentinel: Callable[[], float] | None = None
    """Seconds of work that no change of the code affects, called before the first round and after the last."""
    timing: Timing | None = None
    _loss_scales: list[float] = field(default_factory=list)

    def look(self, rounds: Rounds) -> None:
        """Raises ImpossibleError after the rounds for a time below this machine's minimum."""
        self.clock.forget()
        if self.row is None:
            for _ in range(self.warmup_rounds):
                rounds.play()
            self.benchmark.pedantic(rounds.run, setup=rounds.prepare, rounds=1, warmup_rounds=0)
            return
        before = self._sentinel_seconds()
        self.timing = self._time(rounds)
        self.timing = replace(self.timing, sentinel_seconds=[*before, *self._sentinel_seconds()])
        self.row.refuse_the_impossible(self.timing)
        # After the last reading, because the round is not timed: its launches wait in the queue.
        self.timing = replace(self.timing, device_busy_seconds=self._busy_seconds(rounds, self.timing))
        self.benchmark.extra_info.update(self.row.of(self.timing))

    def _busy_seconds(self, rounds: Rounds, timing: Timing) -> float | None:
        prepare = partial(self._prepare_measured, rounds)
        return busy_seconds(prepare, rounds.run, self.device, has_slices=not timing.compiled_graphs)

    def _sentinel_seconds(self) -> list[float]:
        return [] if self.sentinel is None else [self.sentinel()]

    def _time(self, rounds: Rounds) -> Timing:
        gc.collect()
        allocated_before_bytes = self.device.allocated_bytes()
        before, compilations = self._drifting_facts(), count_compilations()
        start = time.perf_counter()
        # The benchmark would show a case that fails in the warm-up as measured, so the warm-up runs outside of it.
        first = self._first_round(rounds) if self.warmup_rounds else (None, None)
        first_compilations = count_compilations()
        warmup_rounds_run = self._warm_up(rounds) if self.warmup_rounds else 0
        if self.health.health is not None:
            before = self._drifting_facts()  # an idle GPU's clocks say nothing about its rounds
        self._measure(rounds)
        after = self._drifting_facts()
        rounds_seconds = time.perf_counter() - start
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        compiled = count_compilations() - compilations
        return Timing(
            seconds=self.benchmark.stats["data"],
            median_seconds=self.benchmark.stats["median"],
            device_seconds=self.clock.device_seconds[-self.rounds :],
            cpu_seconds=self.clock.cpu_seconds[-self.rounds :],
            all_part_seconds=self.clock.part_seconds,
            warmup_rounds_run=warmup_rounds_run,
            rounds_seconds=rounds_seconds,
            first_setup_seconds=first[0],
            first_round_seconds=first[1],
            compiled_graphs=compiled["graphs"],
            compile_cache=cache_state(compiled),
            recompiles=(count_compilations() - first_compilations)["graphs"],
            cudagraph_skips=compiled["cudagraph_skips"],
            loss_scales=self._loss_scales[-self.rounds - 1 :],
            drift={"before": before, "after": after, **self.health.facts()},
            peak_allocated_bytes=self._without_flush(self.device.peak_allocated_bytes()),
            peak_reserved_bytes=self._without_flush(self.device.peak_reserved_bytes()),
            flushed_bytes=None if self.flush is None else self.flush.bytes,
            allocated_before_bytes=self._without_flush(allocated_before_bytes),
        )

    def _without_flush(self, peak_bytes: int | None) -> int | None:
        return peak_bytes if peak_bytes is None or self.flush is None else peak_bytes - self.flush.bytes

    def _prepare(self, rounds: Rounds, number: int) -> None:
        rounds.forget()
        self.on_round(number)
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        if number < self.warmup_rounds:
            rounds.prepare()
        else:
            self._prepare_measured(rounds)
        self.clock.begin_round()

    def _prepare_measured(self, rounds: Rounds) -> None:
        rounds.prepare()
        if self.flush is not None:
            self.flush()

    def _first_round(self, rounds: Rounds) -> tuple[float, float]:
        """Seconds of its set-up and of its target, timed apart because either may compile."""
        start = time.perf_counter()
        self._prepare(rounds, 0)
        self.device.synchronize()
        prepared = time.perf_counter()
        self.clock()
        rounds.run()
        self.clock()
        return prepared - start, time.perf_counter() - prepared

    def _warm_up(self, rounds: Rounds) -> int:
        """The rest of the warm-up; how many rounds it had with the first."""
        done = 1
        for number in warm_up(self.device, self.warmup_rounds, done, self.clock.now):
            self._prepare(rounds, min(number, self.warmup_rounds - 1))
            with self.clock.round():
                rounds.run()
            done = number + 1
        return done

    def _measure(self, rounds: Rounds) -> None:
        numbers = count()

        def set_up() -> None:
            number = next(numbers)
            if number:
                self.health.end_of_round()
            self._prepare(rounds, self.warmup_rounds + number)

        rounds.forget()
        if self.warmup_rounds:
            self.device.make_room()
        self.device.start_peaks()
        self.health.begin()
        self.benchmark.pedantic(rounds.run, setup=set_up, rounds=self.rounds)
        self.device.synchronize()
        self.health.end_of_round()

    def _drifting_facts(self) -> Json:
        return drifting_facts(self.device.torch_device, self.health.health)


# The row of a collective alone: rates of bytes, where a model's row has rates of tokens and FLOPs.


@dataclass(frozen=True)
class CollectiveRow(Row):
    """Bandwidths as nccl-tests defines them: doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests."""

    case: CollectiveCase

    def _rates(self, median_seconds: float) -> Json:
        """Of the message over its time, and of what a rank has to send for it."""
        algorithm = self.case.exchanged_bytes / median_seconds
        return {
            "exchanged_bytes": self.case.exchanged_bytes,
            "algorithm_bytes_per_second": algorithm,
            "bus_bytes_per_second": algorithm * float(bus_share(self.case.collective, self.case.world)),
        }


# The rounds of a case on several ranks, timed alike on all of them.


@dataclass(kw_only=True)
class RankedMeasure(TimedMeasure):
    """As on one device; the clock makes every rank see the slowest one's time."""

    def look(self, rounds: Rounds) -> None:
        super().look(rounds)
        if self.row is not None:
            self.benchmark.extra_info.update(self._of_each_rank())

    def _busy_seconds(self, rounds: Rounds, timing: Timing) -> float | None:
        """None: how often the round would be issued again is each rank's own, and its collectives need all of them."""
        return None

    def _of_each_rank(self) -> Json:
        clock = self.clock
        assert isinstance(clock, RankClock)
        seconds = clock.from_all(clock.own_seconds[-self.rounds :])
        slowest = [max(range(len(seconds)), key=lambda rank: seconds[rank][number]) for number in range(self.rounds)]
        peak_bytes = self.device.peak_allocated_bytes()
        peaks = None if peak_bytes is None else [int(peak) for (peak,) in clock.from_all([float(peak_bytes)])]
        return {"rank_seconds": seconds, "slowest_ranks": slowest, "rank_peak_allocated_bytes": peaks}


# What the communication of a model that ranks share costs, beside its timed rounds.


CONFIDENCE = 0.95


@dataclass(kw_only=True)
class SharedStepMeasure(RankedMeasure):
    """Then as many pairs of rounds with and without the exchange, and one in which its messages are counted."""

    case: LanguageModelCase
    sharing: Sharing
    training: Training
    spending: Callable[[], AbstractContextManager[None]]
    """Takes the time of what is looked at beside the timed rounds."""

    def look(self, rounds: Rounds) -> None:
        if not self.case.row.has_backward:
            # Imported late: earlier revisions of `model`, which the gate measures, lack it.
            from model.parallel import free_gathered

            rounds.forget_more = partial(free_gathered, self.training.model)
        super().look(rounds)
        if self.row is not None:
            with self.spending():
                self.benchmark.extra_info.update(self._exposed(rounds) | self._sent(rounds))

    def _exposed(self, rounds: Rounds) -> Json:
        """What the exchange of gradients adds to a round: the median difference to the round without it.

        Rounds with and without it take turns, and which is first alternates.
        """
        if "backward" not in self.case.row.timed:
            return {}
        if reason := self._why_not_without():
            return {"exposed_communication_seconds": None, "exposed_communication_reason": reason}
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(self.rounds):
            for exchanges in (True, False) if number % 2 else (False, True):
                seconds[exchanges].append(self._seconds(rounds, exchanges))
        differences = [with_it - without for with_it, without in zip(seconds[True], seconds[False], strict=True)]
        return {
            "exposed_communication_seconds": median(differences),
            "exposed_communication_interval": Times(differences).median_interval(CONFIDENCE),
            "seconds_with_communication": seconds[True],
            "seconds_without_communication": seconds[False],
        }

    def _why_not_without(self) -> str | None:
        """Why no round runs without the exchange, the same on all ranks; None where it does."""
        if self.sharing.parallel not in SHARDED:
            return None
        whole_bytes = 2 * FLOAT32_BYTES * (self.case.parameters or 0)
        held_bytes = self.device.peak_allocated_bytes() or needed_bytes(self.case)
        assert isinstance(self.clock, RankClock)
        assert self.row is not None
        room = min(left for (left,) in self.clock.from_all([float((self.row.available_bytes or 0) - held_bytes)]))
        if room < whole_bytes:
            return f"without exchange a rank holds all weights and gradients, {whole_bytes:,} bytes more than fit."
        return None

    def _sent(self, rounds: Rounds) -> Json:
        """What one rank sends in one more round, counted and by the closed form."""
        sent = SentByPart()
        with sent.counting():
            rounds.play()
        return {
            "sent_bytes": self._sent_while_timed(sent.messages),
            "sent_by_part": values_by_part(sent.messages, self.sharing.world),
            **self._predicted(),
        }

    def _predicted(self) -> Json:
        """By the closed form of a step, of the parts that this phase runs."""
        row, way = self.case.row, self.sharing
        if self.case.own is not None:
            return {"predicted_sent_bytes": None, "predicted_sent_by_part": None}
        # Imported late: earlier revisions of `model`, which the gate measures, lack what it imports.
        from perf_tests.predict.ranks import NORM_OF_EACH, parameter_shapes

        shapes, reshard = parameter_shapes(self.case.config), not way.keeps_gathered
        step = messages_by_part(way.parallel, shapes, way.world, way.bucket_mb, reshard, NORM_OF_EACH)
        by_part = {part: sent for part, sent in step.items() if part in map(_region, row.parts)}
        return {
            "predicted_sent_bytes": self._sent_while_timed(by_part),
            "predicted_sent_by_part": values_by_part(by_part, way.world),
        }

    def _sent_while_timed(self, messages: Mapping[str, Sequence[Message]]) -> int | float:
        timed = chain.from_iterable(messages.get(_region(part), ()) for part in self.case.row.timed)
        return plain(sent_bytes(timed, self.sharing.world))

    def _seconds(self, rounds: Rounds, exchanges: bool) -> float:
        from model.parallel import without_synchronization

        with nullcontext() if exchanges else without_synchronization(self.training, not self.sharing.keeps_gathered):
            rounds.prepare()
            with self.clock.round():
                rounds.run()
        return self.clock.wall_seconds[-1]


def _region(part: str) -> str:
    """The region in which a part of a round sends its messages."""
    return "forward" if part == "inference" else part
