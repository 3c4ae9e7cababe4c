"""Planting: a wrong function takes the place of one of `model/`, for everybody who has imported it.

A place is a name below `model`, as `attention.softmax`, `transformer.Block.forward` or `precision.PRECISIONS.fp16`. The
wrong function is made from the real one, as it stands at that moment: whoever writes that in another way changes no
fault.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

Wrong = Callable[[Any], Any]
"""The function of a place to what takes its place."""


def behind(change: Callable[[Any], Any]) -> Wrong:
    """Plant a change of what a function returns."""
    return lambda real: lambda *given, **named: change(real(*given, **named))


def before(change: Callable[[Any], Any]) -> Wrong:
    """Plant a change of the last argument of a function."""
    return lambda real: lambda *given: real(*given[:-1], change(given[-1]))


def once_made(change: Callable[[Any], object]) -> Wrong:
    """Plant a change of each object that an `__init__` has made."""

    def make(real: Any) -> Any:
        def changed(self: Any, *given: Any, **named: Any) -> None:
            real(self, *given, **named)
            change(self)

        return changed

    return make


class NoSuchPlaceError(LookupError):
    """`model/` has no such name, and the message says which part is missing; or the claim never calls it."""


@dataclass(frozen=True)
class Planted:
    """What takes the place of a function of `model/`, and the claim that must notice."""

    name: str
    caught_by: str
    """Name of the claim's test function, without `test_`."""
    place: str
    wrong: Wrong
    reference: str | None = None
    """The one implementation that it changes; None where it may change each that the claim judges."""


_in_force: list[str] = []


def in_force() -> str:
    """The name of what is planted now; "" without one."""
    return _in_force[-1] if _in_force else ""


@contextmanager
def planted(fault: Planted) -> Iterator[list[str]]:
    """Return a context in which the fault is in force, and a list with a name for each call of it until then.

    Raises NoSuchPlaceError.
    """
    calls: list[str] = []

    def wrong(real: Any) -> Any:
        made = fault.wrong(real)

        def noted(*given: Any, **named: Any) -> Any:
            calls.append(fault.name)
            return made(*given, **named)

        if callable(made):
            return noted
        calls.append(fault.name)  # an entry of a table is not called
        return made

    owner, name = _owner_of(fault.place)
    real = owner[name] if isinstance(owner, dict) else inspect.getattr_static(owner, name)
    if inspect.ismodule(owner) and inspect.isfunction(real):
        # Others hold the function by a name of their own, so it stays, with another code.
        restore = _take_the_code(inspect.unwrap(real), wrong)
    else:
        put = owner.__setitem__ if isinstance(owner, dict) else lambda key, value: setattr(owner, key, value)
        put(name, wrong(real))

        def restore() -> None:
            put(name, real)

    _in_force.append(fault.name)
    try:
        yield calls
    finally:
        _in_force.pop()
        restore()


def _owner_of(place: str) -> tuple[Any, str]:
    file, *inner, name = place.split(".")
    owner: Any = importlib.import_module(f"perf_tests_suite.model.{file}")
    for part in (*inner, name):
        if not (part in owner if isinstance(owner, dict) else hasattr(owner, part)):
            raise NoSuchPlaceError(f"model/{file}.py has no {place.partition('.')[2]}: {part!r} is missing.")
        owner, before = (owner[part] if isinstance(owner, dict) else getattr(owner, part)), owner
    return before, name


def _take_the_code(function: FunctionType, wrong: Wrong) -> Callable[[], None]:
    """Let the function run what `wrong` makes of a copy; returns how to undo that."""
    code, defaults, kwdefaults = function.__code__, function.__defaults__, function.__kwdefaults__
    copy = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    copy.__kwdefaults__ = kwdefaults
    stand_in = f"_planted_{function.__name__}"
    function.__globals__[stand_in] = wrong(copy)
    calls: FunctionType = eval(f"lambda *args, **kwargs: {stand_in}(*args, **kwargs)")
    function.__code__, function.__defaults__, function.__kwdefaults__ = calls.__code__, None, None

    def restore() -> None:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, kwdefaults
        del function.__globals__[stand_in]

    return restore
