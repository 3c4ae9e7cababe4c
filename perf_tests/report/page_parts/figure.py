"""A figure as data: points in series, and their Plotly traces."""

import html
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf_tests.records.columns import Cell, labels_of, without_phase
from perf_tests.records.format import printable
from perf_tests.records.record import Json
from perf_tests.report.page_parts.axes import Tags, tags_of

# Distinct on white and on black; markers and dashes tell series apart without colours too.
COLOURS = ("#3b82c4", "#e07b00", "#2a9d6f", "#c44e9b", "#8a6fd1", "#b8860b", "#d1495b", "#4fa3a5")
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "star", "hexagon", "cross", "pentagon", "bowtie",
    "hourglass", "diamond-tall", "triangle-left", "triangle-right", "hexagram", "star-square",
)  # fmt: skip
"""Without x, the mark of a case without a timing."""
PATTERNS = ("", "/", "x", ".", "\\", "+", "|", "-")
"""For bars and areas, which have no markers."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY = "#888888"

DIGITS = 5
"""Significant digits of a plotted value."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value with the ends of its interval, and what the page filters it by."""

    x: float | str
    y: float
    text: str
    tags: Tags
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together; `colour` and `dash` count through the tables above."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dash: int = 0
    mode: str = "lines+markers"
    symbol: str = ""
    is_background: bool = False
    is_in_legend: bool = True
    group: str = ""
    """The choice that shows the series, where a reader picks one of many; its name if empty."""
    tied_to: str = ""
    """The series that this one belongs to: a legend hides and shows both."""
    look: str = "points"
    """Or `bar`, or `area`, stacked in order; or `lane`: x is the lane's name, drawn from low to high."""

    @property
    def drawn_colour(self) -> str:
        return GREY if self.is_background and not self.tied_to else COLOURS[self.colour % len(COLOURS)]


@dataclass(frozen=True)
class Figure:
    """Axes, series and the conditions below them; `line_at` is a horizontal line with its label."""

    name: str
    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    notes: Sequence[str]
    x_log: bool = False
    y_log: bool = False
    line_at: tuple[float, str] | None = None
    picks_one: bool = False
    """Whether a reader picks one group of series, where all are too many to tell apart."""
    x_values: Sequence[float] | Sequence[str] = field(default=())
    """The axis' ticks, or the order of its names; Plotly's choice if empty."""


def place_of(cell: Cell) -> str:
    return ", ".join(labels_of(cell)[:2])


def markers(named: Iterable[tuple[str, Point]]) -> list[Series]:
    """A colour and a marker for each name, in order of first appearance."""
    points: dict[str, list[Point]] = {}
    for name, point in named:
        points.setdefault(name, []).append(point)
    return [Series(name, found, place, mode="markers") for place, (name, found) in enumerate(points.items())]


def bars(found: Iterable[tuple[Cell, str, float]], colour: Callable[[str], int]) -> list[Series]:
    """A stacked bar for each phase of a configuration, from (cell, part of the bar, height)."""
    points: dict[tuple[str, str], list[Point]] = {}
    for cell, name, height in found:
        points.setdefault((without_phase(cell), name), []).append(Point(cell.phase, height, name, tags_of(cell)))
    return [Series(name, some, colour(name), look="bar", group=group) for (group, name), some in points.items()]


def plotly_of(figure: Figure) -> Json:
    """Traces and layout, without the theme's colours of text and grid, which the page adds."""
    traces = [_trace(series) for series in figure.series]
    xs, ys = ([value for trace in traces for value in trace[axis]] for axis in ("x", "y"))
    names = figure.x_values if any(isinstance(value, str) for value in ys) else ()
    return {
        "name": figure.name,
        "picks_one": figure.picks_one,
        "data": traces,
        "layout": {
            "xaxis": _axis(figure.x_title, figure.x_log, xs, () if names else figure.x_values, "B"),
            "yaxis": _axis(figure.y_title, figure.y_log, ys, names, "none"),
            "barmode": "stack",
            "shapes": [_line(*figure.line_at)] if figure.line_at else [],
        },
    }


def _trace(series: Series) -> Json:
    points, colour = series.points, series.drawn_colour
    trace: Json = {
        "name": plain(series.name),
        "group": plain(series.group or series.name),
        "x": [plain(point.x) if isinstance(point.x, str) else rounded(point.x) for point in points],
        "y": [rounded(point.y) for point in points],
        "text": _once([plain(point.text) for point in points]),
        "tags": _once([point.tags for point in points]),
        "look": {
            "hovertemplate": "%{text}<br>%{x}: %{y}<extra></extra>", "showlegend": series.is_in_legend, **_look(series)
        },
    }  # fmt: skip
    if series.tied_to:
        trace["legendgroup"] = plain(series.tied_to)
    if series.look == "lane":
        starts = [point.low or 0.0 for point in points]
        lengths = [rounded((point.high or 0.0) - start) for point, start in zip(points, starts, strict=True)]
        return {**trace, "x": lengths, "y": trace["x"], "base": list(map(rounded, starts))}
    if any(point.low is not None and point.high is not None for point in points):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [rounded((point.high or point.y) - point.y) for point in points],
            "arrayminus": [rounded(point.y - (point.low or point.y)) for point in points],
            "color": colour,
            "thickness": 1.2,
            "width": 3,
        }
    return trace


def _look(series: Series) -> Json:
    colour = series.drawn_colour
    pattern = {"shape": PATTERNS[series.colour % len(PATTERNS)], "size": 6, "solidity": 0.25}
    if series.look in ("bar", "lane"):
        along = {"orientation": "h"} if series.look == "lane" else {}
        return {"type": "bar", "textposition": "none", **along, "marker": {"color": colour, "pattern": pattern}}
    line = {"color": colour, "width": 1 if series.is_background else 2, "dash": DASHES[series.dash % len(DASHES)]}
    if series.look == "area":
        filled = {"stackgroup": "held", "fillcolor": colour, "fillpattern": pattern}
        return {"type": "scatter", "mode": "lines", "line": {**line, "width": 0.5}, **filled}
    size = 14 if series.symbol == "circle-open" else 9
    written = {"textposition": "top right"} if "text" in series.mode else {}
    return {
        "type": "scatter", "mode": series.mode, "line": line, "offsetgroup": str(series.colour), **written,
        "marker": {"color": colour, "size": size, "symbol": series.symbol or SYMBOLS[series.colour % len(SYMBOLS)]},
    }  # fmt: skip


def _once(values: list[Any]) -> list[Any]:
    """One value if all points agree: a history has hundreds of points of one case."""
    return values[:1] if all(value == values[0] for value in values) else values


def _axis(
    title: str, is_log: bool, data: Sequence[float | str], values: Sequence[float] | Sequence[str], exponents: str
) -> Json:
    """Of names where any value is one. The page labels a logarithmic axis without `values` at 1, 2 and 5."""
    axis: Json = {"title": {"text": plain(title)}, "automargin": True, "exponentformat": exponents}
    names = [plain(str(value)) for value in values]
    if any(isinstance(value, str) for value in data):
        return axis | {"type": "category", "categoryarray": names}
    axis |= {"type": "log"} if is_log else {}
    return axis | ({"tickvals": list(values), "ticktext": names} if values else {})


def _line(height: float, label: str) -> Json:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height,
        "line": {"color": GREY, "width": 1, "dash": "dash"}, "label": {"text": plain(label), "textposition": "end"},
    }  # fmt: skip


def plain(value: str) -> str:
    """Text without markup for Plotly, which reads some HTML."""
    return html.escape(printable(value), quote=False)


def with_shared_looks(figures: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Each look once, and the figures with the number of each trace's look, since thousands have few."""
    looks: dict[str, int] = {}
    shared = []
    for figure in figures:
        numbers = [looks.setdefault(json.dumps(trace["look"]), len(looks)) for trace in figure["data"]]
        traces = [{**_counted(trace), "look": n} for trace, n in zip(figure["data"], numbers, strict=True)]
        shared.append({**figure, "data": traces})
    return list(map(json.loads, looks)), shared


def _counted(trace: Json) -> Json:
    """Without x where it counts up by one: its first value suffices."""
    xs = trace["x"]
    if len(xs) < 3 or isinstance(xs[0], str) or xs != [xs[0] + place for place in range(len(xs))]:
        return trace
    return {"x_from": xs[0], **{name: value for name, value in trace.items() if name != "x"}}


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
