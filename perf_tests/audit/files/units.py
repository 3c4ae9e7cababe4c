"""Figures with their units as tables write them: `35 ms`, `1,234`, `34.2 ± 3`, `MiB (written MB)`."""

import re
from functools import lru_cache

SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"), 1e-9),
}
"""By the word of the unit, with u for the Greek letter."""

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FIGURE = re.compile(
    r"([-+]?[\d.,]*\d[\d.,]*(?:e[-+]?\d+)?)\s*(?:(?:±|\+/?-)\s*([\d.,]*\d(?:e-?\d+)?))?\s*([a-z%]*)", re.I
)
_SIGNED = re.compile(r"[-+\d.,]*")
_DIGITS = re.compile(r"\d*")
_EITHER_COMMA = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
"""Decimals or thousands: tabs between columns do not tell which, as commas (a decimal point) and semicolons do."""
_RANGE = re.compile(r"\d+ ?- ?\d+|up to \d+")


class UnreadableError(ValueError):
    """A cell that is no figure. `reason` is the same for all such cells of a column; `detail` is this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@lru_cache(maxsize=4096)
def seconds_in(word: str) -> float | None:
    """Seconds of one unit; None for another word."""
    return SECONDS.get(word.strip().casefold().replace("µ", "u").replace("μ", "u"))


@lru_cache(maxsize=4096)
def bytes_in(unit: str) -> tuple[float, float] | None:
    """The fewest and most bytes of one unit; None for another word.

    MB and GB are powers of 1000 or of 1024; a remark in parentheses, `(1e6)` or `(written MB)`, tells which.
    """
    name, _, remark = unit.casefold().replace(" ", "").partition("(")
    if name in ("byte", "bytes"):
        return 1.0, 1.0
    match = re.fullmatch(r"([kmgt]?)(i?)b", name)
    if match is None:
        return None
    power = _POWERS[match[1]]
    least, most = 1000.0**power, 1024.0**power
    if match[2]:
        return most, most
    return (least, least) if re.match(r"1e\d|10\^|decimal", remark) else (least, most)


def number_in(text: str, column: str, separator: str = ",") -> tuple[float, float | None, str] | None:
    """The figure, its deviation after a plus-minus sign, and its unit; None for no figure and for a range.

    `separator` is the sign between columns, which tells what a comma stands for.
    """
    if (
        not text
        or text.casefold() in ("-", "\N{EM DASH}", "\N{EN DASH}", "n/a", "na", "none", "null", "oom")
        or _RANGE.fullmatch(text)
    ):
        return None
    match = _FIGURE.fullmatch(text)
    if match is None:
        raise UnreadableError(f"{column} is not a number", repr(text[:40]))
    deviation = _plain(match[2], separator) if match[2] else None
    return _plain(match[1], separator), deviation, match[3]


def half_digit(text: str, separator: str = ",") -> float:
    """By how much a figure may have been rounded: half of its last digit; 0 in a notation with an exponent."""
    if "e" in text or "E" in text:
        return 0.0
    is_comma = separator != "," and _ends_in_comma(_SIGNED.match(text)[0])  # type: ignore[index]  # it matches any text
    _, _, decimals = text.partition("," if is_comma else ".")
    return float(0.5 * 10.0 ** -len(_DIGITS.match(decimals)[0]))  # type: ignore[index]  # it matches any text


def _plain(digits: str, separator: str) -> float:
    if separator == "\t" and _EITHER_COMMA.fullmatch(digits):
        raise UnreadableError("a comma before three digits may begin decimals or separate thousands", repr(digits))
    if separator != "," and _ends_in_comma(digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", digits):
        digits = digits.replace(",", "")
    try:
        return float(digits)
    except ValueError:
        raise UnreadableError("a figure is not a number", repr(digits[:40])) from None


def _ends_in_comma(digits: str) -> bool:
    """Whether the last sign is the one comma; of two signs the last one begins the decimals."""
    return digits.count(",") == 1 and digits.rfind(",") > digits.rfind(".")
