"""Whether data from any source has the shape that the code after it takes for granted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = Any
"""A `Value`, `[shape]` of a list's items, or a dict of shapes by key; a key that ends in `?` may be missing."""


@dataclass(frozen=True)
class Value:
    is_right: Callable[[Any], bool]
    words: str
    """What a message calls the right values."""


@dataclass(frozen=True)
class OrNull:
    """Null, or of this shape."""

    shape: Shape


def _is_number(value: Any) -> bool:
    """Small enough that the square of a sum of them is finite."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < 1e100


NUMBER = Value(_is_number, "a number")
AMOUNT = Value(lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
TEXT = Value(lambda value: isinstance(value, str), "a string")
FLAG = Value(lambda value: isinstance(value, bool), "true or false")
KEY = Value(lambda value: isinstance(value, str | int | float), "a number or a string")
ANYTHING = Value(lambda _: True, "anything")


def misshapen(value: object, shape: Shape, place: str) -> str | None:
    """What is wrong, as `PLACE is VALUE, not WHAT IT MUST BE`; None for the right shape."""
    if isinstance(shape, OrNull):
        return None if value is None else misshapen(value, shape.shape, place)
    if isinstance(shape, Value):
        return None if shape.is_right(value) else f"{place} is {value!r:.40}, not {shape.words}"
    kind, words = (list, "a list") if isinstance(shape, list) else (dict, "an object")
    if not isinstance(value, kind):
        return f"{place} is {value!r:.40}, not {words}"
    if isinstance(value, list):
        parts = [(f"{place}[{number}]", item, shape[0]) for number, item in enumerate(value)]
    else:
        assert isinstance(value, dict)
        lacking = next((key for key in shape if not key.endswith("?") and key not in value), None)
        if lacking is not None:
            return f"{place} has no {lacking!r}"
        given = ((key.removesuffix("?"), inner) for key, inner in shape.items())
        parts = [(f"{place}.{key}", value[key], inner) for key, inner in given if key in value]
    return next((wrong for where, item, inner in parts if (wrong := misshapen(item, inner, where))), None)
