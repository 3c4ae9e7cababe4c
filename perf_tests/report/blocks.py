"""What a section of the page holds, as data: texts, tables, figures. `page.html.jinja` has a macro for each class."""

import html
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low
from typing import Any, ClassVar

from perf_tests_suite.perf_tests.records.columns import CaseRow
from perf_tests_suite.perf_tests.records.format import order, printable
from perf_tests_suite.perf_tests.records.record import Json, collected
from perf_tests_suite.perf_tests.report import tables
from perf_tests_suite.perf_tests.report.tables import Label


@dataclass(frozen=True)
class Said:
    """A paragraph; `style` is `answer`, `note`, `warning` or `command`, which is to be copied, or empty."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Numbers:
    """Large numbers beside each other, each (value, what it counts, its tone: bad, good, lost or none)."""

    values: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class ElementLink:
    """A cell that leads to an element of the page."""

    words: str
    anchor: str


@dataclass(frozen=True)
class VerdictMark:
    """A verdict, coloured and signed by its tone: bad, good, lost or none."""

    words: str
    tone: str

    @classmethod
    def of(cls, words: str, tones: Mapping[str, str]) -> "VerdictMark | str":
        return cls(words, tones[words]) if words in tones else words


@dataclass(frozen=True)
class Spark:
    """A line as small as a word, its last value and the places where its level moved marked; coordinates of SVG."""

    words: str
    points: str
    marks: Sequence[str]
    last: tuple[str, str]
    width: ClassVar[int] = 110
    height: ClassVar[int] = 22
    edge: ClassVar[int] = 3


SPARK_VALUES = 60
"""The most values of a sparkline; of more, the median of each stretch is drawn."""
SPARK_LEAST_SHOWN = 0.05
"""Share of the median; less fills no more than its share of the height, so that noise does not look like a change."""


def sparkline(values: Sequence[float], words: str, marks: Sequence[int] = ()) -> "Spark | str":
    """A line through the values, empty for fewer than two; `words` say what it shows, `marks` are places among them."""
    if len(values) < 2:
        return ""
    stretch = -(-len(values) // SPARK_VALUES)
    drawn = [median_low(values[at : at + stretch]) for at in range(0, len(values), stretch)]
    middle = (min(drawn) + max(drawn)) / 2
    spread = max(max(drawn) - min(drawn), SPARK_LEAST_SHOWN * middle)

    def place(along: float, up: float) -> tuple[str, str]:
        wide, high = (side - 2 * Spark.edge for side in (Spark.width, Spark.height))
        return f"{round(Spark.edge + along * wide, 1):g}", f"{round(Spark.height - Spark.edge - up * high, 1):g}"

    points = [place(at / max(len(drawn) - 1, 1), 0.5 + (value - middle) / spread) for at, value in enumerate(drawn)]
    marked = [place(at / (len(values) - 1), 0)[0] for at in marks]
    return Spark(words, " ".join(map(",".join, points)), marked, points[-1])


CellOfRow = str | ElementLink | VerdictMark | Spark


@dataclass(frozen=True)
class TableRow:
    """Cells from the left on; (word, reason) of `lost` stands in place of those that are missing."""

    cells: Sequence[CellOfRow]
    anchor: str = ""
    lost: tuple[str, str] | None = None


SENTENCES = ("reading", "why", "subject")
"""Columns with a line of their own where a narrow window turns rows into cards."""


@dataclass(frozen=True)
class Rows:
    """A table with its notes below: the first `label_columns` are text, the others figures.

    A column without any figure is left out unless the table `keeps_columns`. The page's program adds sorting, filters
    and the rows as CSV.
    """

    name: str
    title: str
    header: Sequence[str]
    label_columns: int
    rows: Sequence[TableRow]
    notes: Sequence[str] = ()
    text_columns: Collection[str] = ()
    """Other columns without figures."""
    keeps_columns: bool = False

    @cached_property
    def columns(self) -> list[tuple[int, str, str]]:
        """(place, heading, class) of each column to show: figures end their column."""
        full = [row for row in self.rows if row.lost is None]
        text = {*self.header[: self.label_columns], *self.text_columns}
        return [
            (place, name, "w" if name in SENTENCES else "" if name in text else "n")
            for place, name in enumerate(self.header)
            if self.keeps_columns or place < self.label_columns or not full or any(row.cells[place] for row in full)
        ]


AXES: tuple[Label, ...] = (
    tables.SIZE, tables.CONTEXT, tables.HEAD_DIM, tables.SEQUENCE, tables.PHASE, tables.PRECISION,
    tables.IMPLEMENTATION, tables.BATCH,
    Label("Optimizer", lambda cell: cell.label("optimizer")),
    Label("Gradients", lambda cell: cell.label("zero_grad_policy").replace("_", " ")),
    Label("Device", lambda cell: cell.label("device")),
)  # fmt: skip
"""What a reader filters by, named as columns are: a table with such a column is filtered by it."""

Tags = tuple[str, ...]
"""A case's text under each of `AXES`; what has none passes that filter."""


def tags_of(cell: CaseRow) -> Tags:
    return tuple(axis.of(cell) for axis in AXES)


def choices_of(cells: Iterable[CaseRow]) -> list[tuple[str, list[str]]]:
    """(axis, its values in order) of each axis with more than one value: what the page offers to filter by."""
    found = {tags_of(cell) for cell in cells}
    values = {axis.name: {tags[place] for tags in found} - {""} for place, axis in enumerate(AXES)}
    return [
        (name, sorted(some, key=lambda value: order(int(value) if value.isascii() and value.isdigit() else value)))
        for name, some in values.items()
        if len(some) > 1
    ]


# Distinct on white and on black; markers and dashes tell series apart without colours too.
COLOURS = ("#3b82c4", "#e07b00", "#2a9d6f", "#c44e9b", "#8a6fd1", "#b8860b", "#d1495b", "#4fa3a5")
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "star", "hexagon", "cross", "pentagon", "bowtie",
    "hourglass", "diamond-tall", "triangle-left", "triangle-right", "hexagram", "star-square",
)  # fmt: skip
"""Markers; x is left to cases without a timing."""
PATTERNS = ("", "/", "x", ".", "\\", "+", "|", "-")
"""Fillings of bars and areas, which have no markers."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY = "#888888"

DIGITS = 5
"""Significant digits of a plotted value."""


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One value with the ends of its interval, and what the page filters it by."""

    x: float | str
    y: float
    text: str
    tags: Tags
    low: float | None = None
    high: float | None = None


def point(cell: CaseRow, x: float | str, y: float, text: str = "", *ends: float | None) -> PlotPoint:
    """A value of a case, named by it unless there is a text; `ends` are those of its interval."""
    return PlotPoint(x, y, text or cell.case, tags_of(cell), *ends)


@dataclass(frozen=True)
class PlotSeries:
    """Points that belong together; `colour` and `dash` count through the tables above."""

    name: str
    points: Sequence[PlotPoint]
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
    """Or `bar`, or `area`, stacked in order."""


@dataclass(frozen=True)
class Chart:
    """Axes, series and the conditions below them; `line_at` is a horizontal line with its label."""

    name: str
    title: str
    x_title: str
    y_title: str
    series: Sequence[PlotSeries]
    notes: Sequence[str]
    x_log: bool = False
    y_log: bool = False
    line_at: tuple[float, str] | None = None
    picks_one: bool = False
    """Whether a reader picks one group of series, where all are too many to tell apart."""
    x_values: Sequence[float] | Sequence[str] = ()
    """The axis' ticks, or the order of its names; Plotly's choice if empty."""
    over_commits: str = ""
    """The era from whose data the page's program draws it, where it has no series of its own."""
    case: int | None = None
    """The place of the only case that it shows of an era."""


@dataclass(frozen=True)
class Charts:
    """Figures beside each other as far as the window is wide."""

    figures: Sequence[Chart]


@dataclass(frozen=True)
class CommitChoice:
    """Two choices of a commit, hidden until the page's program runs; `sides` are (name, place of the commit shown)."""

    era: str
    options: Sequence[tuple[int, str]]
    sides: Sequence[tuple[str, int]]


PageBlock = Said | Numbers | Rows | Charts | CommitChoice


def markers(named: Iterable[tuple[str, PlotPoint]]) -> list[PlotSeries]:
    """A colour and a marker for each name, in order of first appearance."""
    return [
        PlotSeries(name, found, place, mode="markers") for place, (name, found) in enumerate(collected(named).items())
    ]


def bars(found: Iterable[tuple[CaseRow, str, float]], colour: Callable[[str], int]) -> list[PlotSeries]:
    """A stacked bar for each phase of a configuration, from (cell, part of the bar, height)."""
    drawn = collected(((cell.configuration, part), point(cell, cell.phase, tall, part)) for cell, part, tall in found)
    return [PlotSeries(part, some, colour(part), look="bar", group=group) for (group, part), some in drawn.items()]


def stored_data(figures: Iterable[Chart], cases: Mapping[str, Tags]) -> Json:
    """What the page's program draws, as Plotly's traces and layouts, and what it filters by.

    Each look and each case's tags stand there once, since thousands of points have few. The page adds the theme's
    colours of text and grid.
    """
    looks: dict[str, int] = {}
    numbers: dict[Tags, int] = {}
    drawn: list[Json] = []
    for figure in figures:
        traces = list(map(_trace, figure.series))
        across, up = ([value for trace in traces for value in trace[axis]] for axis in ("x", "y"))
        lines = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height,
             "line": {"color": GREY, "width": 1, "dash": "dash"},
             "label": {"text": plain(label), "textposition": "end"}}
            for height, label in ([figure.line_at] if figure.line_at else [])
        ]  # fmt: skip
        layout = {
            "xaxis": _axis(figure.x_title, figure.x_log, across, figure.x_values, "B"),
            "yaxis": _axis(figure.y_title, figure.y_log, up, (), "none"),
            "barmode": "stack",
            "shapes": lines,
        }
        drawn.append({"name": figure.name, "picks_one": figure.picks_one, "data": traces, "layout": layout})
    for trace in (trace for figure in drawn for trace in figure["data"]):
        trace["look"] = looks.setdefault(json.dumps(trace["look"]), len(looks))
        trace["tags"] = [numbers.setdefault(tags, len(numbers)) for tags in trace["tags"]]
        xs = trace["x"]
        if len(xs) > 2 and not isinstance(xs[0], str) and xs == [xs[0] + place for place in range(len(xs))]:
            trace["x_from"] = trace.pop("x")[0]  # the others count up by one
    return {
        "axes": [axis.name.lower() for axis in AXES],
        "cases": {name: numbers.setdefault(tags, len(numbers)) for name, tags in cases.items()},
        "tags": list(numbers),
        "looks": list(map(json.loads, looks)),
        "figures": drawn,
    }


def _trace(series: PlotSeries) -> Json:
    """A series as Plotly's trace; what it is drawn with, in Plotly's words, is its `look`."""
    points = series.points
    colour = GREY if series.is_background and not series.tied_to else COLOURS[series.colour % len(COLOURS)]
    pattern = {"shape": PATTERNS[series.colour % len(PATTERNS)], "size": 6, "solidity": 0.25}
    line = {"color": colour, "width": 1 if series.is_background else 2, "dash": DASHES[series.dash % len(DASHES)]}
    look: Json = {"hovertemplate": "%{text}<br>%{x}: %{y}<extra></extra>", "showlegend": series.is_in_legend}
    if series.look == "bar":
        look |= {"type": "bar", "textposition": "none", "marker": {"color": colour, "pattern": pattern}}
    elif series.look == "area":
        filled = {"stackgroup": "held", "fillcolor": colour, "fillpattern": pattern}
        look |= {"type": "scatter", "mode": "lines", "line": {**line, "width": 0.5}, **filled}
    else:
        symbol = series.symbol or SYMBOLS[series.colour % len(SYMBOLS)]
        size = 14 if symbol == "circle-open" else 9  # around another mark
        look |= {"type": "scatter", "mode": series.mode, "line": line, "offsetgroup": str(series.colour)}
        look |= {"textposition": "top right"} if "text" in series.mode else {}
        look["marker"] = {"color": colour, "size": size, "symbol": symbol}
    trace: Json = {
        "name": plain(series.name),
        "group": plain(series.group or series.name),
        "x": [plain(one.x) if isinstance(one.x, str) else rounded(one.x) for one in points],
        "y": [rounded(one.y) for one in points],
        "text": _once([plain(one.text) for one in points]),
        "tags": _once([one.tags for one in points]),
        "look": look,
    }
    if series.tied_to:
        trace["legendgroup"] = plain(series.tied_to)
    if any(one.low is not None and one.high is not None for one in points):
        above = [rounded((one.high or one.y) - one.y) for one in points]
        below = [rounded(one.y - (one.low or one.y)) for one in points]
        trace["error_y"] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below,
                            "color": colour, "thickness": 1.2, "width": 3}  # fmt: skip
    return trace


def _once(values: list[Any]) -> list[Any]:
    """One value if all points agree: a history has hundreds of points of one case."""
    return values[:1] if all(value == values[0] for value in values) else values


def _axis(
    title: str, is_log: bool, data: Sequence[float | str], values: Sequence[float] | Sequence[str], exponents: str
) -> Json:
    """An axis of names where any value is one. The page labels a logarithmic one without `values` at 1, 2 and 5."""
    axis: Json = {"title": {"text": plain(title)}, "automargin": True, "exponentformat": exponents}
    names = [plain(str(value)) for value in values]
    if any(isinstance(value, str) for value in data):
        return axis | {"type": "category", "categoryarray": names}
    axis |= {"type": "log"} if is_log else {}
    return axis | ({"tickvals": list(values), "ticktext": names} if values else {})


def plain(value: str) -> str:
    """Text without markup for Plotly, which reads some HTML."""
    return html.escape(printable(value), quote=False)


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
