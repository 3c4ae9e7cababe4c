"""The rounds of one case under pytest-benchmark: warm-up, then measured rounds."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from perf_tests.instruments.busy_time import busy_seconds
from perf_tests.instruments.cache_flush import CacheFlush
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.compilation import cache_state, count_compilations
from perf_tests.instruments.device import Device
from perf_tests.instruments.gpu_health import RoundHealth
from perf_tests.instruments.machine import drifting_facts
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.row import Row, Timing
from perf_tests.measures.warm_up import warm_up
from perf_tests.records.record import Json


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
