"""The clock of every benchmark: wall time between two moments at which the device is idle."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from perf_tests.instruments.device import Device, Event
from perf_tests.instruments.garbage import no_collections


class Clock:
    """A timer for pytest-benchmark, read before and after each round.

    Beside wall time it records for each round `device_seconds` (elapsed in the device's stream, host stalls included:
    the first event passes at once, because the stream is idle; empty where the device has no clock), `cpu_seconds` (of
    all threads of this process) and `part_seconds` (of each part that called `mark`; by the device's clock if it has
    one).
    """

    # pytest-benchmark writes this name into the record.
    __name__ = "device_synchronised_clock"

    def __init__(self, device: Device) -> None:
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Drop the rounds of the last case."""
        self.device_seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.wall_seconds: list[float] = []
        self.part_seconds: dict[str, list[float]] = {}
        self.begin_round()

    def begin_round(self) -> None:
        """The next reading starts a round; call it after the untimed set-up."""
        self._is_running = False
        self._marks: list[tuple[str, Event | None, float]] = []

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round that pytest-benchmark does not time; its time is appended to `wall_seconds`."""
        self.begin_round()
        with no_collections():
            start = self()
            yield
            self.wall_seconds.append(self() - start)

    def now(self) -> float:
        """Seconds, for decisions on how many rounds to run."""
        return time.perf_counter()

    def mark(self, part: str) -> None:
        """The work of `part` has been issued. Neither waits nor reads the device."""
        self._marks.append((part, self._device.record_event(), time.perf_counter()))

    def __call__(self) -> float:
        """Seconds since an arbitrary moment, once the device is idle."""
        if self._is_running:
            return self._stop()
        self._device.synchronize()
        self._is_running = True
        self._cpu_start = time.process_time()
        self._event_start = self._device.record_event()
        self._wall_start = time.perf_counter()
        return self._wall_start

    def _stop(self) -> float:
        event_stop = self._device.record_event()
        self._device.synchronize()
        wall_stop = time.perf_counter()
        self.cpu_seconds.append(time.process_time() - self._cpu_start)
        if self._event_start is not None and event_stop is not None:
            self.device_seconds.append(self._event_start.seconds_until(event_stop))
        event, wall = self._event_start, self._wall_start
        for part, event_mark, wall_mark in self._marks:
            by_device = event is not None and event_mark is not None
            seconds = event.seconds_until(event_mark) if by_device else wall_mark - wall  # type: ignore[union-attr, arg-type]
            self.part_seconds.setdefault(part, []).append(seconds)
            event, wall = event_mark, wall_mark
        self._is_running = False
        return wall_stop
