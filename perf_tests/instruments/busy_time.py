"""How long the device works on a round: without the host's stalls, which lie between two events of a timed round."""

from collections.abc import Callable
from typing import Any

from perf_tests.instruments.device import Device, Event
from perf_tests.instruments.garbage import no_collections
from perf_tests.instruments.torch_private import TorchDispatchMode

HOLD_SECONDS = 0.05
"""Before each slice: 125 us for each of its operations."""

OPERATIONS_OF_A_SLICE = 400
"""A queue takes about 1000 launches before the host must wait; most operations are one launch or none."""


def busy_seconds(
    set_up: Callable[[], object], work: Callable[[], object], device: Device, *, has_slices: bool
) -> float | None:
    """Seconds of the device's own work while it lags behind the host, so that it never waits for it.

    The work waits in the queue behind a kernel that holds it, and lies between two events. `has_slices`: another hold
    precedes each 400 operations, for a round of more launches than the queue takes; not for compiled code, which a
    dispatch mode would keep from running. None on a device without a clock, and where the first event of a slice
    passed before all of the slice was issued: the host waits for the device, stalls longer than a hold, or launches
    more than the queue takes. A profiler would know more, but slows down what runs after it (pytorch/pytorch#144455).
    """
    if device.record_event() is None:
        return None
    set_up()
    device.synchronize()
    held = _HeldWork(device)
    held.begin_slice()
    with no_collections():
        if has_slices:
            with held:
                work()
        else:
            work()
    held.end_slice()
    device.synchronize()
    return held.seconds()


class _HeldWork(TorchDispatchMode):
    """Slices of the queue, each behind a hold of its own; entered, it begins one after every few operations."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._slices: list[tuple[Event, Event]] = []
        self._was_ahead = True
        self._operations = 0

    def begin_slice(self) -> None:
        self._device.hold(HOLD_SECONDS)
        self._start = self._event()

    def end_slice(self) -> None:
        self._slices.append((self._start, self._event()))
        self._was_ahead = self._was_ahead and not self._start.is_done()

    def seconds(self) -> float | None:
        """Once the device is idle."""
        return sum(start.seconds_until(stop) for start, stop in self._slices) if self._was_ahead else None

    def _event(self) -> Event:
        event = self._device.record_event()
        assert event is not None
        return event

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._operations == OPERATIONS_OF_A_SLICE:
            self.end_slice()
            self.begin_slice()
            self._operations = 0
        self._operations += 1
        return func(*args, **(kwargs or {}))
