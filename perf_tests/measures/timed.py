"""The rounds of one case under pytest-benchmark: warm-up, then measured rounds."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perf_tests.instruments.cache_flush import CacheFlush
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.compilation import cache_state, count_compilations
from perf_tests.instruments.device import Device
from perf_tests.instruments.gpu_health import RoundHealth
from perf_tests.instruments.machine import drifting_facts
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.row import Row, Timing
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
    row: Row | None
    """None where the benchmark only runs once, as a test."""
    on_round: Callable[[int], None] = lambda number: None
    """Called with the number of each round before its set-up, warm-up rounds first."""
    health: RoundHealth = field(default_factory=lambda: RoundHealth(None))
    flush: CacheFlush | None = None
    """Called after the set-up of each measured round, before the clock starts."""
    timing: Timing | None = None
    _round: int = 0
    _loss_scales: list[float] = field(default_factory=list)

    def look(self, rounds: Rounds) -> None:
        """Raises ImpossibleError after the rounds for a time below this machine's minimum."""
        self.clock.forget()
        if self.row is None:
            for _ in range(self.warmup_rounds):
                rounds.play()
            self.benchmark.pedantic(rounds.run, setup=rounds.prepare, rounds=1, warmup_rounds=0)
            return
        self.timing = self._time(rounds)
        self.row.refuse_the_impossible(self.timing)
        self.benchmark.extra_info.update(self.row.of(self.timing))

    def _time(self, rounds: Rounds) -> Timing:
        gc.collect()
        before, compilations = self._drifting_facts(), count_compilations()
        start = time.perf_counter()
        # The benchmark would show a case that fails in its first round as measured, so that round runs outside of it.
        first = self._first_round(rounds) if self.warmup_rounds else (None, None)
        first_compilations = count_compilations()
        self.benchmark.pedantic(
            rounds.run,
            setup=lambda: self._prepare(rounds),
            rounds=self.rounds,
            warmup_rounds=max(0, self.warmup_rounds - 1),
        )
        self.device.synchronize()
        self._ask_health()
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
            rounds_seconds=rounds_seconds,
            first_setup_seconds=first[0],
            first_round_seconds=first[1],
            compiled_graphs=compiled["graphs"],
            compile_cache=cache_state(compiled),
            recompiles=(count_compilations() - first_compilations)["graphs"],
            cudagraph_skips=compiled["cudagraph_skips"],
            loss_scales=self._loss_scales[-self.rounds - 1 :],
            drift={"before": before, "after": self._drifting_facts(), **self.health.facts()},
            peak_allocated_bytes=self._without_flush(self.device.peak_allocated_bytes()),
            peak_reserved_bytes=self._without_flush(self.device.peak_reserved_bytes()),
            flushed_bytes=None if self.flush is None else self.flush.bytes,
        )

    def _without_flush(self, peak_bytes: int | None) -> int | None:
        return peak_bytes if peak_bytes is None or self.flush is None else peak_bytes - self.flush.bytes

    def _prepare(self, rounds: Rounds) -> None:
        self._ask_health()
        rounds.forget()
        self.on_round(self._round)
        if self._round == self.warmup_rounds:
            if self._round:
                self.device.make_room()
            self.device.start_peaks()
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        rounds.prepare()
        if self.flush is not None and self._round >= self.warmup_rounds:
            self.flush()
        self._round += 1
        self.clock.begin_round()

    def _first_round(self, rounds: Rounds) -> tuple[float, float]:
        """Seconds of its set-up and of its target, timed apart because either may compile."""
        start = time.perf_counter()
        self._prepare(rounds)
        self.device.synchronize()
        prepared = time.perf_counter()
        self.clock()
        rounds.run()
        self.clock()
        return prepared - start, time.perf_counter() - prepared

    def _drifting_facts(self) -> Json:
        return drifting_facts(self.device.torch_device, self.health.health)

    def _ask_health(self) -> None:
        """Call it between two rounds, right after the earlier one."""
        if self._round == self.warmup_rounds:
            self.health.begin()
        elif self._round > self.warmup_rounds:
            self.health.end_of_round()
