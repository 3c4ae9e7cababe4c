"""Rounds on request: the warm-up of a timing, then each round when the gate asks for it."""

import time
from collections.abc import Callable, Iterator, Sequence
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


LONG_ROUND_SECONDS = 0.1
"""A case with rounds this long is warm after two: the first allocates, and short ones need more for the clock rates."""
FEWEST_ROUNDS = 2


@dataclass
class ServedMeasure(Measure):
    serve: Callable[[OneRound, Sequence[float]], None]
    """Called once the case is warm, with the seconds of each round of the warm-up."""
    clock: Clock
    device: Device
    warmup_rounds: int
    fewest_rounds: int = FEWEST_ROUNDS
    """Warm-up rounds of a case with long ones."""
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

        warmup_seconds: list[float] = []
        for _ in warm_up(self.device, max(1, self.warmup_rounds)):
            warmup_seconds.append(timed_round())
            if self._is_warm(warmup_seconds):
                break
        self.device.make_room()
        self.serve(one_round, warmup_seconds)

    def _is_warm(self, seconds: Sequence[float]) -> bool:
        """After few long rounds. The first may have compiled, and is no load."""
        is_long = min(seconds) >= LONG_ROUND_SECONDS and sum(seconds[1:]) >= self.device.warm_up_seconds
        return is_long and len(seconds) >= max(FEWEST_ROUNDS, self.fewest_rounds)

    @contextmanager
    def _round(self) -> Iterator[None]:
        if self.flush is not None:
            self.flush()
        with self.clock.round():
            yield
