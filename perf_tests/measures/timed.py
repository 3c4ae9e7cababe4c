"""The rounds of one case under pytest-benchmark: warm-up, then measured rounds, with clocks and allocator read."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from perf_tests.instruments.clock import Clock
from perf_tests.instruments.compilation import count_compilations
from perf_tests.instruments.device import Device
from perf_tests.instruments.gpu_health import RoundHealth
from perf_tests.instruments.machine import drifting_facts
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.row import Row, Timing
from perf_tests.records.record import Json


class Benchmark(Protocol):
    """The public face of pytest-benchmark's fixture, as far as it is used here."""

    disabled: bool
    extra_info: dict[str, Any]
    stats: Any

    def pedantic(
        self, target: Callable[..., Any], *, setup: Callable[[], Any], rounds: int, warmup_rounds: int
    ) -> object: ...


@dataclass
class TimedMeasure(Measure):
    """Times the target alone, never its set-up. `timing` is there once the rounds are over."""

    benchmark: Benchmark
    clock: Clock
    device: Device
    rounds: int
    warmup_rounds: int
    row: Row | None
    """What is written down of the rounds; None where the benchmark only runs once, as a test."""
    on_round: Callable[[int], None] = lambda number: None
    """Told the number of each round before its set-up; warm-up rounds come first."""
    health: RoundHealth = field(default_factory=lambda: RoundHealth(None))
    timing: Timing | None = None
    _round: int = 0
    _loss_scales: list[float] = field(default_factory=list)

    def look(self, rounds: Rounds) -> None:
        """Raises ImpossibleError, the rounds kept, for a time that this machine cannot reach."""
        self.clock.forget()
        if self.row is None:
            self.benchmark.pedantic(rounds.run, setup=rounds.prepare, rounds=1, warmup_rounds=0)
            return
        self.timing = self._time(rounds)
        self.row.refuse_the_impossible(self.timing)
        self.benchmark.extra_info.update(self.row.of(self.timing))

    def _time(self, rounds: Rounds) -> Timing:
        gc.collect()
        before, compilations = self._drifting_facts(), count_compilations()
        start = time.perf_counter()
        # The first round runs outside of the benchmark, which would show a case that fails in it as measured.
        first = self._first_round(rounds) if self.warmup_rounds else None
        first_compilations = count_compilations()
        self.benchmark.pedantic(
            rounds.run,
            setup=lambda: self._prepare(rounds),
            rounds=self.rounds,
            warmup_rounds=self.warmup_rounds - (first is not None),
        )
        self.device.synchronize()
        self._ask_health()
        rounds_seconds = time.perf_counter() - start
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        compiled = count_compilations().since(compilations)
        return Timing(
            seconds=self.benchmark.stats["data"],
            median_seconds=self.benchmark.stats["median"],
            device_seconds=self.clock.device_seconds[-self.rounds :],
            cpu_seconds=self.clock.cpu_seconds[-self.rounds :],
            all_part_seconds=self.clock.part_seconds,
            rounds_seconds=rounds_seconds,
            first_setup_seconds=first[0] if first else None,
            first_round_seconds=first[1] if first else None,
            compiled_graphs=compiled.graphs,
            compile_cache=compiled.cache_state,
            recompiles=count_compilations().since(first_compilations).graphs,
            loss_scales=self._loss_scales[-self.rounds - 1 :],
            before=before,
            after=self._drifting_facts(),
            health=self.health.facts(),
            peak_allocated_bytes=self.device.peak_allocated_bytes(),
            peak_reserved_bytes=self.device.peak_reserved_bytes(),
        )

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
        self._round += 1
        self.clock.begin_round()

    def _first_round(self, rounds: Rounds) -> tuple[float, float]:
        """Seconds of its set-up and of its target, timed apart: compiled code is generated in either."""
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
        """Between two rounds: the one before has just ended."""
        if self._round == self.warmup_rounds:
            self.health.begin()
        elif self._round > self.warmup_rounds:
            self.health.end_of_round()
