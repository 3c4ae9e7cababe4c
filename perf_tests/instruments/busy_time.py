"""How long the device works on a round: without the host's stalls, which lie between two events of a timed round."""

from collections.abc import Callable

from perf_tests.instruments.device import Device
from perf_tests.instruments.garbage import no_collections

HOLD_SECONDS = 0.05
"""A queue takes about 1000 launches before the host must wait; this is 50 us for each of them."""


def busy_seconds(set_up: Callable[[], object], work: Callable[[], object], device: Device) -> float | None:
    """Seconds between two events around `work` while the device lags behind the host, so that it never waits for it.

    None on a device without a clock, and where the first event passed before all of `work` was issued: it waits for
    the device itself, or launches more than the queue takes. A profiler would know more, but slows down what runs
    after it (pytorch/pytorch#144455).
    """
    if device.record_event() is None:
        return None
    set_up()
    device.synchronize()
    device.hold(HOLD_SECONDS)
    start = device.record_event()
    with no_collections():
        work()
    stop = device.record_event()
    assert start is not None
    assert stop is not None
    was_ahead = not start.is_done()
    device.synchronize()
    return start.seconds_until(stop) if was_ahead else None
