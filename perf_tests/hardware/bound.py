"""Clocks and judges as they were before any code of the user's ran, what that code has replaced since, and whether it
still works once the clock is read.

Code that goes around Python, by ctypes or by writing into this process's memory, is out of this module's reach: only a
sandbox could refuse it."""

import builtins
import sys
import threading
import time as _time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from perf_tests_suite.perf_tests.hardware.clocks import Clocks
from perf_tests_suite.perf_tests.hardware.clocks import time as time


def rate_of_clocks() -> float:
    """Return seconds of the first clock in one of the second, now.

    A program that sets the time, such as chrony, may let the first run faster or slower by up to 10 % for a while
    (adjtimex(2), tick). 1 where they differ by more, which no such program explains.
    """
    first, second = time.perf_counter(), time.raw()
    time.sleep(WATCHED_SECONDS)
    rate = (time.perf_counter() - first) / (time.raw() - second)
    return rate if abs(rate - 1) <= MOST_CORRECTION else 1.0


MOST_CORRECTION = 0.1
"""The share by which a program that sets the time may change the rate of the first clock."""

# Clocks and judges that are compared by identity: by the words that name their owner in a sentence.


_JUDGES: tuple[tuple[str, Any, str], ...] = (
    ("time", _time, "perf_counter perf_counter_ns process_time process_time_ns monotonic monotonic_ns thread_time "
                    "thread_time_ns clock_gettime clock_gettime_ns sleep"),
    ("builtins", builtins, "abs all any bool float len max min round sorted sum"),
    ("torch", torch, "all allclose any equal isclose isfinite isnan"),
    ("torch.Tensor", Tensor, "abs all allclose any backward clone double equal isclose isfinite isnan item"),
    ("torch.autograd", torch.autograd, "backward grad"),
    ("torch.testing", torch.testing, "assert_close"),
    ("torch.cuda", torch.cuda, "Event current_stream synchronize"),
    ("torch.cuda.Event", torch.cuda.Event, "elapsed_time query record synchronize"),
)  # fmt: skip

_OWN = ("perf_tests_suite", "pytest_benchmark")
"""Packages whose functions and classes are compared, each as far as it is loaded."""


@dataclass(frozen=True)
class _Bound:
    """One thing as it was."""

    name: str
    owner: Any
    attribute: str
    value: Any
    code: Any = None
    """The code of a function where it is defined: it can be replaced inside it."""

    def put_back(self) -> bool:
        """Return whether it had been replaced."""
        # A tensor inherits its operators.
        now = vars(self.owner).get(self.attribute) or getattr(self.owner, self.attribute, None)
        if now is self.value and (self.code is None or now.__code__ is self.code):
            return False
        with suppress(AttributeError, TypeError):
            (object.__setattr__ if isinstance(self.owner, Clocks) else setattr)(self.owner, self.attribute, self.value)
            if self.code is not None:
                self.value.__code__ = self.code
        return True


def _one(name: str, owner: Any, attribute: str) -> _Bound:
    value = vars(owner).get(attribute) or getattr(owner, attribute)
    is_defined_here = name.startswith(f"{getattr(value, '__module__', None)}.")
    return _Bound(name, owner, attribute, value, getattr(value, "__code__", None) if is_defined_here else None)


def _of_the_suite() -> Iterator[_Bound]:
    """Yield functions and classes of the loaded modules, and what each class defines."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _OWN or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, FunctionType | BuiltinFunctionType | type | ModuleType | Clocks):
                yield _one(f"{name}.{attribute}", module, attribute)
            if isinstance(value, Clocks):
                yield from (
                    _Bound(f"{name}.{attribute}.{inner}", value, inner, one) for inner, one in vars(value).items()
                )
            if isinstance(value, type) and value.__module__ == name:
                for inner, member in list(vars(value).items()):
                    if isinstance(member, FunctionType | property | classmethod | staticmethod):
                        yield _one(f"{name}.{attribute}.{inner}", value, inner)


_bound: list[_Bound] = []
_modules: dict[str, ModuleType] = {}
_threads: frozenset[int] = frozenset()


def bind() -> None:
    """Take everything for genuine as it is now, where code of the user's is measured; call it before that may run."""
    global _bound, _modules, _threads
    judges = (_one(f"{words}.{name}", owner, name) for words, owner, names in _JUDGES for name in names.split())
    _bound = [*judges, *_of_the_suite()]
    _modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _OWN}
    _threads = frozenset(sys._current_frames())


def bind_again() -> None:
    """Bind once more where it was done."""
    if _bound:
        bind()


def unbind() -> None:
    """Compare nothing any more: the process goes on to other things, as tests do, which replace what they like."""
    _bound.clear()
    _modules.clear()


def put_back() -> list[str]:
    """Return the names of what was replaced since `bind`, sorted, and put each back as it was; nothing without it."""
    replaced = [one.name for one in _bound if one.put_back()]
    others = [name for name, module in _modules.items() if sys.modules.get(name) is not module]
    sys.modules.update({name: _modules[name] for name in others})
    return sorted({*replaced, *others})


# What goes on once the clock is read.


WATCHED_SECONDS = 0.02
AT_WORK_SHARE = 0.2
"""A thread that waits, as those of compilers and monitors do, uses much less."""
_SAMPLE = 2**16
"""Elements of an output that are looked at twice."""


def late_work(output: object) -> list[str]:
    """Return a clause for each sign that the round which made `output` goes on after the clock was read.

    Threads of Python that started since `bind` are watched; those of C++, which spin for a while after each region in
    the suite's own code too, show by what they write.
    """
    found = []
    tensor = output if isinstance(output, Tensor) else None
    if tensor is not None and type(tensor) not in (Tensor, nn.Parameter) and type(tensor).__module__[:6] != "torch.":
        found.append(f"its output is a {type(tensor).__name__}, a subclass of torch.Tensor that may compute it later")
        tensor = None
    before = None if tensor is None or tensor.layout != torch.strided else _sample(tensor)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread that ended in between would have no clock, and asking for it may crash
    try:
        started = [ident for ident in sys._current_frames() if ident not in _threads]
        clocks = {_time.pthread_getcpuclockid(ident): names.get(ident, "without a name") for ident in started}
    finally:
        sys.setswitchinterval(interval)
    used = {clock: -_seconds(clock) for clock in clocks}
    time.sleep(WATCHED_SECONDS)
    for clock, name in clocks.items():
        if used[clock] + _seconds(clock) > AT_WORK_SHARE * WATCHED_SECONDS:
            found.append(f"the thread {name!r}, which it started, works between the rounds")
    if tensor is not None and before is not None and not torch.equal(before, _sample(tensor)):
        found.append("its output is written after the clock was read")
    return found


def _sample(tensor: Tensor) -> Tensor:
    """Return bytes of some elements, which compare where numbers are NaN."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone().view(torch.uint8)


def _seconds(clock: int) -> float:
    """Return 0 once the thread has ended."""
    with suppress(OSError):
        return _time.clock_gettime(clock)
    return 0.0


def shares_memory(output: object, inputs: Sequence[Tensor]) -> bool:
    """Whether the output lies in the memory of an input."""
    if not isinstance(output, Tensor) or output.layout != torch.strided:
        return False
    places = {one.untyped_storage().data_ptr() for one in inputs}
    return output.untyped_storage().data_ptr() in places
