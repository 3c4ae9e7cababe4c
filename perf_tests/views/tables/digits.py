"""Figures in as many digits as their spread allows."""

import math

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import shown
from perf_tests.views.tables.cells import finite

GIB, MIB = 2**30, 2**20

SPREAD_DIGITS = 2
"""Significant digits of a standard deviation; the mean ends at the same place."""
EXACT_DIGITS = 4
"""Significant digits of a figure without a spread."""


def with_spread(value: float, spread: float | None) -> str:
    """`875 ± 12`; without a spread, or with none to see, four significant digits of the value alone."""
    if spread is None or not spread > 0 or not math.isfinite(spread) or not math.isfinite(value):
        return significant(value)
    places = _places(spread, SPREAD_DIGITS)
    return f"{_rounded(value, places)} ± {_rounded(spread, places)}"


def significant(value: float, digits: int = EXACT_DIGITS) -> str:
    """At least `digits` significant digits, never as a power of ten; whole numbers stay whole."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return _rounded(value, max(_places(value, digits), 0))


def _places(value: float, digits: int) -> int:
    """Decimal places that show `digits` significant digits of `value` as it reads once rounded: 0.0996 is 0.10."""
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return digits - 1 - exponent


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):.{max(places, 0)}f}"


def ratio_spread(
    ratio: float, spread_over: float | None, over: float, spread_under: float | None, under: float
) -> float:
    """Standard deviation of over / under from those of both, to first order and taken as independent."""
    return abs(ratio) * math.hypot((spread_over or 0.0) / over, (spread_under or 0.0) / under)


def figure_in(values: Json, name: str, factor: float = 1.0) -> str:
    """The figure of that name in another unit; a dash where there is none, here and below."""
    value = finite(values.get(name))
    return shown(None, "") if value is None else significant(value * factor)


def mean_in(values: Json, spread_name: str, factor: float) -> str:
    """The mean in another unit, beside its spread."""
    mean, spread = finite(values.get("mean_seconds")), finite(values.get(spread_name))
    return shown(None, "") if mean is None else with_spread(mean * factor, spread and spread * factor)


def mebibytes_in(values: Json, name: str) -> str:
    return figure_in(values, name, 1 / MIB)


def count_in(values: Json, name: str) -> str:
    return shown(finite(values.get(name)), "g")


def percent_in(values: Json, name: str) -> str:
    """Of a share, without the sign."""
    value = finite(values.get(name))
    return shown(value and value * 100, ".1f")
