"""The gate's options, which pytest's `--help` shows in repositories of the user's too, and so load no torch."""

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

Parse = Callable[[str, str], Any]
"""Maps an option's name and its text to the value; raises ValueError with one sentence."""


def as_typed(option: str, text: str) -> str:
    return text


def one_of(known: Collection[str], option: str, text: str, next_step: str = "") -> str:
    if text not in known:
        raise ValueError(f"{option} {text!r} is unknown; choose from {', '.join(known)}{next_step}.")
    return text


def minutes(option: str, text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise ValueError(f"{option} {text!r} is not a positive number of minutes.")


def gate_minutes(option: str, text: str) -> float:
    with suppress(ValueError):
        if float(text) == 0:
            return 0.0
    return minutes(option, text)


@dataclass(frozen=True)
class Option:
    """One option of the command line, its default in words; a switch where `parse` is None."""

    name: str
    text: str
    default: str = ""
    parse: Parse | None = None
    metavar: str = ""
    typed_by_default: str | None = None
    """The text that `getoption` returns where nothing was typed."""
    is_repeatable: bool = False


GATE = (
    Option("--against", "gate: measure the working tree interleaved with this git revision, one verdict per case",
           parse=as_typed, metavar="REV"),
    Option("--against-option", "gate: base runs with this value of an axis, for example attention=sdpa",
           parse=as_typed, metavar="AXIS=VALUE"),
    Option("--against-python", "gate: base runs under this interpreter, whose torch may be another",
           parse=as_typed, metavar="PYTHON"),
    Option("--gate-minutes", "gate: measure for at most this many minutes; 0: programs and counters alone", "15",
           gate_minutes, "MINUTES"),
    Option("--gate-compile", "gate: also judge the seconds to compile, cold and warm, by fresh processes"),
    Option("--gate-measure-same", "gate: also measure cases whose program is the same on both sides"),
    Option("--bisect", "gate: end as `git bisect run` reads it: 0 not slower, 1 slower or more, 125 cannot be "
           "judged, 130 and above stop; with `perf-tests run`"),
    Option("--gate-undecided", "gate: an undecided case counts as pass or fail", "pass",
           partial(one_of, ("pass", "fail")), "VERDICT"),
    Option("--gate-summary", "gate: also write the verdicts to this file as Markdown", parse=as_typed,
           metavar="FILE"),
)  # fmt: skip

TIME_LIMIT = Option("--time-limit", "stop before a case that would pass this many minutes; --resume continues", "none",
                    minutes, "MINUTES")  # fmt: skip

OF_THEIR_TESTS = (*GATE, TIME_LIMIT)
"""What a gate of tests of the user's takes beside the options of their pytest."""


def argparse_keywords(option: Option) -> dict[str, Any]:
    """Return what argparse and pytest are told of an option beside its name."""
    if option.parse is None:
        return {"action": "store_true", "help": option.text}
    return {
        "action": "append" if option.is_repeatable else "store",
        "default": option.typed_by_default,
        "metavar": option.metavar or option.name.strip("-").upper().replace("-", "_"),
        "help": f"{option.text} (default: {option.default})" if option.default else option.text,
    }
