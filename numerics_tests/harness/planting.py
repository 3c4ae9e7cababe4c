"""Planting: a wrong function takes the place of one of `model/`, for everybody who has imported it.

A place is a name below `model`, as `attention.softmax`, `transformer.Block.forward` or `precision.PRECISIONS.fp16`. The
wrong function is made from the real one, as it stands at that moment: whoever writes that in another way changes no
fault.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

Wrong = Callable[[Any], Any]
"""The function of a place to what takes its place."""


class NoSuchPlaceError(LookupError):
    """`model/` has no such name; the message says which part is missing."""


@contextmanager
def planted(place: str, wrong: Wrong) -> Iterator[None]:
    """Return a context in which what `wrong` makes takes the place. Raises NoSuchPlaceError."""
    owner, name = _owner_of(place)
    real = owner[name] if isinstance(owner, dict) else inspect.getattr_static(owner, name)
    if inspect.ismodule(owner) and inspect.isfunction(real):
        # Others hold the function by a name of their own, so it stays, with another code.
        restore = _take_the_code(inspect.unwrap(real), wrong)
    else:
        put = owner.__setitem__ if isinstance(owner, dict) else lambda key, value: setattr(owner, key, value)
        put(name, wrong(real))

        def restore() -> None:
            put(name, real)

    try:
        yield
    finally:
        restore()


def _owner_of(place: str) -> tuple[Any, str]:
    file, *inner, name = place.split(".")
    owner: Any = importlib.import_module(f"model.{file}")
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
