"""How many warm-up rounds: as many as asked for, and as long as the device needs to reach its clock rates."""

import time
from collections.abc import Callable, Iterator
from itertools import count

from perf_tests.instruments.device import Device


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
