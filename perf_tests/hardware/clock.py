"""The clock of every benchmark: wall time between two moments at which the device is idle."""

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.model.precision import PRECISIONS, Precision
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.device import (
    MIXED_PRECISION,
    Device,
    Event,
    float32_matmul_precision,
    is_out_of_memory,
    no_collections,
)
from perf_tests_suite.perf_tests.hardware.limits import Message, Rate
from perf_tests_suite.perf_tests.hardware.torch_private import TorchDispatchMode


class Clock:
    """A timer for pytest-benchmark, read before and after each round.

    Beside wall time it records for each round `device_seconds` (elapsed in the device's stream, host stalls included:
    the first event passes at once, because the stream is idle; empty where the device has no clock), `cpu_seconds` (of
    all threads of this process), `raw_seconds` (by a second clock) and `part_seconds` (of each part that called `mark`;
    by the device's clock if it has one).
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
        self.raw_seconds: list[float] = []
        self.wall_seconds: list[float] = []
        self.part_seconds: dict[str, list[float]] = {}
        self.last_seconds = 0.0
        self.begin_round()

    def begin_round(self) -> None:
        """The next reading starts a round; call it after the untimed set-up."""
        self._is_running = False
        self._marks: list[tuple[str, Event | None, float]] = []

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a round that pytest-benchmark does not time; its time is appended to `wall_seconds`."""
        self.begin_round()
        with no_collections():
            start = self()
            yield
            self.wall_seconds.append(self() - start)

    def now(self) -> float:
        """Seconds, for decisions on how many rounds to run."""
        return time.perf_counter()

    def mark(self, part: str) -> None:
        """Note that the work of `part` has been issued. Neither waits nor reads the device."""
        self._marks.append((part, self._device.record_event(), time.perf_counter()))

    def __call__(self) -> float:
        """Seconds since an arbitrary moment, once the device is idle."""
        if self._is_running:
            return self._stop()
        self._device.synchronize()
        self._is_running = True
        self._cpu_start = time.process_time()
        # The event first: recording it takes microseconds of the host, which are no part of the round.
        self._event_start = self._device.record_event()
        self._raw_start, self._wall_start = time.raw(), time.perf_counter()
        return self._wall_start

    def _stop(self) -> float:
        event_stop = self._device.record_event()
        self._device.synchronize()
        wall_stop, raw_stop = time.perf_counter(), time.raw()
        self.cpu_seconds.append(time.process_time() - self._cpu_start)
        self.raw_seconds.append(raw_stop - self._raw_start)
        if self._event_start is not None and event_stop is not None:
            self.device_seconds.append(self._event_start.seconds_until(event_stop))
        event, wall = self._event_start, self._wall_start
        for part, event_mark, wall_mark in self._marks:
            by_device = event is not None and event_mark is not None
            seconds = event.seconds_until(event_mark) if by_device else wall_mark - wall  # type: ignore[union-attr, arg-type]
            self.part_seconds.setdefault(part, []).append(seconds)
            event, wall = event_mark, wall_mark
        self._is_running = False
        self.last_seconds = wall_stop - self._wall_start
        return wall_stop


# How long the device works on a round: without the host's stalls, which lie between two events of a timed round.


HOLD_SECONDS = 0.05
"""Seconds of waiting before each slice: 125 us for each of its operations."""

BUSY_ROUNDS = 5
"""Rounds whose median is taken: one round of some microseconds is off by several."""

LONG_BUSY_SECONDS = 0.1
"""A round of this length stands for itself."""

EMPTY_ROUNDS = 100

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
    The median of a few rounds, of long ones a single one; None too where memory runs out, because the dispatch mode
    keeps tensors longer than a timed round does.
    """
    if device.record_event() is None:
        return None
    found: list[float] = []
    try:
        while len(found) < BUSY_ROUNDS and max(found, default=0.0) < LONG_BUSY_SECONDS:
            set_up()
            device.synchronize()
            held = _HeldWork(device)
            held.begin_slice()
            with no_collections(), held if has_slices else nullcontext():
                work()
            held.end_slice()
            device.synchronize()
            if (seconds := held.seconds()) is None:
                return None
            found.append(seconds)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return median(found)


def empty_round_seconds(clock: "Clock", device: Device) -> float | None:
    """Return the median wall time of a round without work, which every timed round contains; None without events."""
    if device.record_event() is None:
        return None
    seconds = []
    for _ in range(EMPTY_ROUNDS):
        clock.begin_round()
        start = clock()
        seconds.append(clock() - start)
    clock.forget()
    return median(seconds)


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
        """Seconds, read once the device is idle."""
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


# Frozen kernels that no change of the code under test can affect: if they change, the machine did.


_SENTINEL_WIDTH = {"cpu": 384, "cuda": 4096}
"""The width of the square product: milliseconds on either."""
_COPY_BYTES = {"cpu": 2**24, "cuda": 2**30}
"""Far more than any cache of a GPU."""
_STEPS = 60_000
_PRODUCTS = 7
"""Products of which the median is taken: some milliseconds together."""


def sentinel_bytes(device: torch.device) -> int:
    """What the sentinels hold, with the product that one of them makes; nothing to speak of on a CPU."""
    if device.type == "cpu":
        return 0
    return 3 * 4 * _SENTINEL_WIDTH[device.type] ** 2 + 2 * _COPY_BYTES[device.type]


def sentinels(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return the sentinels by their bound: arithmetic, memory, interpreter. Each takes a few milliseconds."""
    source = torch.zeros(_COPY_BYTES[device.type] // 4, device=device)
    target = torch.zeros_like(source)

    def count_in_python() -> int:
        total = 0
        for step in range(_STEPS):
            total += step & 7
        return total

    return {"arithmetic": _product(device), "memory": lambda: target.copy_(source), "interpreter": count_in_python}


def _product(device: torch.device) -> Callable[[], object]:
    generator, width = torch.Generator().manual_seed(0), _SENTINEL_WIDTH[device.type]
    left, right = (torch.randn(width, width, generator=generator).to(device) for _ in range(2))

    def product() -> None:
        of_case = float32_matmul_precision()
        PRECISIONS["fp32"].apply()
        torch.mm(left, right)
        if of_case != MIXED_PRECISION:
            torch.set_float32_matmul_precision(of_case)

    return product


def product_seconds(device: Device) -> float:
    """The arithmetic sentinel's product, which an ordinary run times around each case; its memory is given back."""
    product = _product(device.torch_device)
    product()
    seconds = [_call_seconds(product, device) for _ in range(_PRODUCTS)]
    del product
    device.release_memory()
    return median(seconds)


# The model's regions as NVTX ranges, which Nsight Systems shows on its timeline and filters by.


DOMAIN = "transformer-perf-tests"
"""The suite's own domain, so that its ranges do not mix with others."""


def why_no_ranges() -> str | None:
    """None where ranges can be made, else one sentence with the next step."""
    if importlib.util.find_spec("nvtx") is None:
        return "--nvtx needs the package nvtx, and it is not installed; run `pip install nvtx`."
    return None


class NvtxRanges:
    """Opens a range for each region; without a profiler nothing happens."""

    def __init__(self) -> None:
        import nvtx  # here, so that a run without ranges needs no such package

        self._domain: Any = nvtx.get_domain(DOMAIN)
        # Registered once each, as nsys requires to start a capture at a range; it is also cheaper.
        self._attributes: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        # Inside compiled code there is nothing to mark.
        return nullcontext() if torch.compiler.is_compiling() else self._range(name)

    @contextmanager
    def _range(self, name: str) -> Iterator[None]:
        if name not in self._attributes:
            self._attributes[name] = self._domain.get_event_attributes(message=name)
        self._domain.push_range(self._attributes[name])
        try:
            yield
        finally:
            self._domain.pop_range()


@contextmanager
def capture(device: torch.device) -> Iterator[None]:
    """The range that `nsys profile --capture-range=cudaProfilerApi` captures; nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()


# The machine's ceilings, measured: rates of matrix products and of memory traffic.


# Large enough to be compute-bound: 0.1 s on a 0.2 TFLOP/s CPU, 20 ms on a 50 TFLOP/s GPU.
_WIDTH = {"cpu": 2048, "cuda": 8192}
_ROUNDS = 10

# Each of three arrays; larger than any last-level cache that one process has for itself.
_ARRAY_BYTES = {"cpu": 2**28, "cuda": 2**30}

_CALLS_PER_BATCH = 4
"""Calls between two events, because the first one is recorded before the first call is launched."""

LOAD_SECONDS = 0.3
"""Seconds of work before the sustained rate: until then a GPU may run above the clocks that its power allows."""


def tensor_dtype(precision: Precision) -> torch.dtype:
    """Dtype in which attention alone is given its tensors; earlier revisions of `model` know float32 alone."""
    return getattr(precision, "tensor_dtype", torch.float32)


def multiplied_dtype(precision: Precision) -> torch.dtype:
    """Dtype of the factors of matrix products."""
    return precision.autocast_dtype or tensor_dtype(precision)


def matmul_rate(precision: Precision, device: Device, enough: float = math.inf) -> Rate:
    """FLOP/s of large square products in the dtype that `precision` multiplies in.

    Leaves the process in the TF32 mode of `precision`. A CPU stops at the first product that reaches `enough`.
    """
    precision.apply()
    width = _WIDTH[device.torch_device.type]
    dtype = multiplied_dtype(precision)
    left, right = (torch.randn(width, width, device=device.torch_device).to(dtype) for _ in range(2))
    return rate_of(lambda: torch.mm(left, right), 2 * width**3, device, enough)


def memory_rate(device: Device) -> Rate:
    """Bytes/s of sums of two arrays into a third: two reads and a write, as STREAM counts."""
    elements = _ARRAY_BYTES[device.torch_device.type] // 4
    left, right, out = (torch.ones(elements, device=device.torch_device) for _ in range(3))
    return rate_of(lambda: torch.add(left, right, out=out), 3 * 4 * elements, device)


def strided_rate(device: Device) -> Rate:
    """Elements/s of the difference of a matrix and a column, which is broadcast."""
    elements = _ARRAY_BYTES[device.torch_device.type] // 4
    matrix, out = (torch.ones(elements // 4096, 4096, device=device.torch_device) for _ in range(2))
    column = matrix[:, :1].clone()
    return rate_of(lambda: torch.sub(matrix, column, out=out), elements, device)


def rate_of(work: Callable[[], object], amount: int, device: Device, enough: float = math.inf) -> Rate:
    """`amount` over the seconds of one call; on a device without events both rates are that of the fastest call.

    The first call warms up. Disturbances only slow calls down.
    """
    if device.record_event() is None:
        least = math.inf
        for _ in range(_ROUNDS + 1):
            least = min(least, _call_seconds(work, device))
            if least <= amount / enough:
                break
        return Rate(amount / least, amount / least)
    first = [_batch_seconds(work, device) for _ in range(_ROUNDS)]
    loaded = _CALLS_PER_BATCH * sum(first)
    while loaded < LOAD_SECONDS:
        loaded += _CALLS_PER_BATCH * _batch_seconds(work, device)
    later = [_batch_seconds(work, device) for _ in range(_ROUNDS)]
    return Rate(burst=amount / min(*first, *later), sustained=amount / median(later))


def _batch_seconds(work: Callable[[], object], device: Device) -> float:
    """Device seconds of one call among several."""
    start = device.record_event()
    for _ in range(_CALLS_PER_BATCH):
        work()
    end = device.record_event()
    device.synchronize()
    assert start is not None
    assert end is not None
    return start.seconds_until(end) / _CALLS_PER_BATCH


def _call_seconds(work: Callable[[], object], device: Device) -> float:
    """Wall time of one call between two moments at which the device is idle."""
    device.synchronize()
    start = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - start


# Which collectives a rank takes part in, with the exact bytes of each, read off as they are issued.


# Where each operator holds the tensor, or list of tensors, of its whole message: what all ranks have together.
_MESSAGES = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
}
_WITHOUT_BYTES = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


class CollectiveCounter(TorchDispatchMode):
    """A mode in which `seen` grows by each message and its dtype. Raises ValueError for a kind whose bytes it does not
    know.
    """

    def __init__(self) -> None:
        # Imported late: distributed tensors take seconds to load, which no run on one device needs.
        from torch.distributed.tensor import DTensor

        super().__init__()  # type: ignore[no-untyped-call]
        self._distributed = DTensor
        self.seen: list[tuple[Message, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, self._distributed) for kind in types):
            return NotImplemented  # a distributed tensor issues its collectives on plain ones, which come here again
        name = func.name()
        if func.namespace in ("c10d", "_c10d_functional") and name not in _WITHOUT_BYTES:
            if name not in _MESSAGES:
                raise ValueError(f"the bytes of {name} are not known; count it in {__name__}.")
            kind, place = _MESSAGES[name]
            tensors: list[Tensor] = [args[place]] if isinstance(args[place], Tensor) else list(args[place])
            self.seen += [(Message(kind, tensor.nbytes), tensor.dtype) for tensor in tensors]
        return func(*args, **(kwargs or {}))
