"""A device whose work is done later, in virtual time, as on a GPU; a benchmark fixture that only runs rounds; Linux."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.hardware.device import CpuDevice, Event
from tests.support.example_cases import CPU


@dataclass(frozen=True)
class QueueEvent:
    """The moment at which the work issued before it is done."""

    done_at: float
    device: "QueueDevice"

    def seconds_until(self, later: Event) -> float:
        assert isinstance(later, QueueEvent)
        return later.done_at - self.done_at

    def is_done(self) -> bool:
        return self.device.now >= self.done_at


class QueueDevice(CpuDevice):
    """Launching work takes no host time; `synchronize` moves the host's clock to the end of the queue.

    It stands in for the module `time` too, so that a clock reads its virtual seconds. `deaf_to` is the number of a
    synchronisation that does nothing, counted from 1. Where the queue holds `longest_queue` launches the host waits.
    """

    def __init__(self, deaf_to: int | None = None, longest_queue: int = 1000) -> None:
        super().__init__(CPU)
        self.waiting: deque[float] = deque(maxlen=longest_queue)
        self.now = self.done_at = 0.0
        self.deaf_to = deaf_to
        self.synchronisations = 0

    def launch(self, seconds: float) -> None:
        if len(self.waiting) == self.waiting.maxlen:
            self.now = max(self.now, self.waiting[0])
        self.done_at = max(self.done_at, self.now) + seconds
        self.waiting.append(self.done_at)

    hold = launch

    def synchronize(self) -> None:
        self.synchronisations += 1
        if self.synchronisations != self.deaf_to:
            self.now = max(self.now, self.done_at)

    def record_event(self) -> Event | None:
        return QueueEvent(max(self.done_at, self.now), self)

    def perf_counter(self) -> float:
        return self.now

    raw = perf_counter

    def process_time(self) -> float:
        return self.now / 2


class LoopBenchmark:
    """pytest-benchmark's fixture as far as `TimedMeasure` sees it."""

    disabled = False

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats = {"median": 1.0, "data": [1.0, 1.0, 1.0]}

    def pedantic(
        self, target: Callable[[], None], *, setup: Callable[[], None], rounds: int, warmup_rounds: int = 0
    ) -> None:
        for _ in range(warmup_rounds + rounds):
            setup()
            target()


def linux_says(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> None:
    """Make these the only files that a path reads."""

    def read_text(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
