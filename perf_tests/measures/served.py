"""Rounds on request: the warm-up of a timing, then each round when the gate asks for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from perf_tests.instruments.cache_flush import CacheFlush
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.device import Device
from perf_tests.measures.rounds import Measure, Rounds
from perf_tests.measures.warm_up import warm_up

OneRound = Callable[[], tuple[float, float | None]]
"""Runs a round, and returns once the device is idle: its wall and CPU seconds.

CPU time is None on a GPU: it is that of a thread that spins until the device is idle.
"""


@dataclass
class ServedMeasure(Measure):
    serve: Callable[[OneRound, float], None]
    """Called once the case is warm, with the seconds of a round."""
    clock: Clock
    device: Device
    warmup_rounds: int
    flush: CacheFlush | None = None
    """Called before each round, outside of its time."""

    def look(self, rounds: Rounds) -> None:
        spins = self.device.torch_device.type == "cuda"

        def one_round() -> tuple[float, float | None]:
            rounds.play(around_target=self._round)
            # The clocks count nanoseconds; further digits are the float's own.
            return round(self.clock.wall_seconds[-1], 9), None if spins else round(self.clock.cpu_seconds[-1], 9)

        def timed_round() -> float:
            start = time.perf_counter()
            one_round()
            return time.perf_counter() - start

        warmup_seconds = [timed_round() for _ in warm_up(self.device, max(1, self.warmup_rounds))]
        self.device.make_room()
        # The shortest was disturbed least, above all by the other side, which warms up at the same time.
        self.serve(one_round, min(warmup_seconds))

    @contextmanager
    def _round(self) -> Iterator[None]:
        if self.flush is not None:
            self.flush()
        with self.clock.round():
            yield
