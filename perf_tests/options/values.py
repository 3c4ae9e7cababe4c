"""Texts of the command line as values: numbers, amounts, lists; what is wrong is a ValueError of one sentence."""

import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

Parse = Callable[[str, str], Any]
"""From an option's name and its text to the value; raises ValueError with one sentence."""


def as_typed(option: str, text: str) -> str:
    return text


def one_of(known: Collection[str], option: str, text: str, next_step: str = "") -> str:
    if text not in known:
        raise ValueError(f"{option} {text!r} is unknown; choose from {', '.join(known)}{next_step}.")
    return text


def entries(option: str, text: str) -> list[str]:
    """Of a comma-separated list."""
    found = [entry.strip() for entry in text.split(",")]
    if ";" in text:
        raise ValueError(f"{option} {text!r} has a semicolon; write values with commas in between.")
    if "" in found:
        raise ValueError(f"{option} {text!r} has an empty entry; write one value, or values with commas in between.")
    return found


def some_of(known: Collection[str], option: str, text: str, apart: Collection[str] = ()) -> tuple[str, ...]:
    """A comma-separated list, sorted as `known`; `all` leaves out those `apart`."""
    if text == "all":
        return tuple(name for name in known if name not in apart)
    chosen = {one_of(known, option, name, ", or all") for name in entries(option, text)}
    return tuple(name for name in known if name in chosen)


def refuse_doubled(option: str, what: str, names: Sequence[str]) -> None:
    """Raises ValueError where cases of two would have one id."""
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise ValueError(f"{option} names two {what} {doubled[0]!r}; give each a name of its own.")


def whole_number(option: str, text: str, least: int = 1, most: int = 10**9) -> int:
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise ValueError(f"{option} {text!r} is not a whole number; give it without a unit, at least {least}.")
    number = int(text.strip()[:30])  # with more digits it is beyond any limit
    if number < least:
        raise ValueError(f"{option} is {number}; it must be at least {least}.")
    if number > most:
        raise ValueError(f"{option} {text!r} is too large; it must be at most {most}.")
    return number


def whole_numbers(everything: tuple[int, ...], option: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of numbers from 1, sorted."""
    if text == "all":
        return everything
    return tuple(sorted({whole_number(option, item) for item in entries(option, text)}))


def thread_count(option: str, text: str) -> int:
    threads, logical = whole_number(option, text), len(os.sched_getaffinity(0))
    if threads > logical:
        raise ValueError(f"{option} is {threads}; this process may use at most {logical}.")
    return threads


def byte_count(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)", text.strip())
    if match is None:
        raise ValueError(f"{option} {text!r} is not an amount of memory; write, for example, 12GiB or 800MB.")
    factor = 1024 if "i" in match[2] else 1000
    count = float(match[1]) * factor ** "BKMG".index(match[2][0])
    if not 1 <= count < 2**63:
        raise ValueError(f"{option} {text!r} is {'less than a byte' if count < 1 else 'more than any machine has'}.")
    return int(count)


def byte_counts(everything: tuple[int, ...], option: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of amounts, smallest first."""
    return everything if text == "all" else tuple(sorted({byte_count(option, item) for item in entries(option, text)}))


def minutes(option: str, text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise ValueError(f"{option} {text!r} is not a positive number of minutes.")


def share(option: str, text: str) -> tuple[int, int]:
    """`2/3` as (2, 3): the second of three shares."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{option} {text!r} is no share of a grid; write K/N with K from 1 to N, for example 1/2.")
    return int(match[1]), int(match[2])
