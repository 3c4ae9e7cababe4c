"""A figure as SVG, drawn without a browser: the same bytes from the same points, in its reader's theme."""

import html
from collections.abc import Callable, Sequence
from math import floor, log10

from perf_tests.views.report.figure import Figure, Point, Series

WIDTH, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 860, 64, 40, 560, 300
LEGEND_LEFT = LEFT + PLOT_WIDTH + 24
LINE_HEIGHT = 18
BESIDE_TICKS = 44
"""Below the plot, before the title of the axis."""

STYLE = (
    "text { font: 12px system-ui, sans-serif; fill: #1b1f24 } .title { font-weight: 600 } "
    ".faint { fill: #5b6470; font-size: 11px } .grid { stroke: #d5dae1; stroke-width: 1 } .back { fill: #ffffff } "
    "@media (prefers-color-scheme: dark) { text { fill: #e4e8ee } .faint { fill: #9aa5b3 } .grid { stroke: #39424e } "
    ".back { fill: #14181d } }"
)
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 5", "longdashdot": "12 4 2 4"}
MARKERS = {
    "circle": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "square": "M-4 -4H4V4H-4Z",
    "diamond": "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
    "triangle-up": "M0 -5L5 4H-5Z",
    "triangle-down": "M0 5L5 -4H-5Z",
    "line-ew-open": "M-7 0H7",
}
"""By Plotly's names; any other symbol is a cross, which stands for a case without a timing."""
CROSS = "M-4 -4L4 4M-4 4L4 -4"

Scale = Callable[[float], float]


def svg_of(figure: Figure) -> str:
    """The figure with its legend beside and its conditions below. Raises ValueError for an axis of names."""
    series = figure.series
    points = [point for one in series for point in one.points]
    if not points or any(isinstance(point.x, str) for point in points):
        raise ValueError(f"{figure.name} has no points between numbers to draw.")
    x_ends, y_ends = _ends([_x(point) for point in points], 0.06), _ends(_heights(points), 0.06)
    x = _scale(*x_ends, LEFT, LEFT + PLOT_WIDTH)
    y = _scale(*y_ends, TOP + PLOT_HEIGHT, TOP)
    height = TOP + PLOT_HEIGHT + BESIDE_TICKS + LINE_HEIGHT * (1 + len(_notes(figure)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{_text(figure.title)}"><style>{STYLE}</style>',
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        _words(LEFT, TOP - 16, figure.title, 'class="title"'),
        *_grid(figure, x, y, y_ends),
        *(_drawn(one, x, y) for one in series),
        *_legend(series),
        *(
            _words(8, TOP + PLOT_HEIGHT + BESIDE_TICKS + LINE_HEIGHT * (place + 1), note, 'class="faint"')
            for place, note in enumerate(_notes(figure))
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _notes(figure: Figure) -> list[str]:
    return [note for note in figure.notes if note]


def _x(point: Point) -> float:
    return float(point.x)


def _heights(points: Sequence[Point]) -> list[float]:
    return [value for point in points for value in (point.y, point.low, point.high) if value is not None]


def _ends(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Logarithms of the smallest and the largest value, with room at either end."""
    low, high = log10(min(values)), log10(max(values))
    room = max((high - low) * margin, 0.02)
    return low - room, high + room


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (log10(value) - low) / (high - low) * (end - start)


def _grid(figure: Figure, x: Scale, y: Scale, y_ends: tuple[float, float]) -> list[str]:
    bottom, right = TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH
    lines = []
    for value in map(float, figure.x_values):
        lines += [_line(x(value), TOP, x(value), bottom), _words(x(value), bottom + 17, f"{value:g}", MIDDLE)]
    for value in ticks(*y_ends):
        lines += [_line(LEFT, y(value), right, y(value)), _words(LEFT - 6, y(value) + 4, f"{value:g}", END)]
    middle = TOP + PLOT_HEIGHT / 2
    return [
        *lines,
        _words(LEFT + PLOT_WIDTH / 2, bottom + 36, figure.x_title, MIDDLE),
        _words(16, middle, figure.y_title, f'{MIDDLE} transform="rotate(-90 16 {middle:g})"'),
    ]


MIDDLE, END = 'text-anchor="middle"', 'text-anchor="end"'


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade between two logarithms."""
    decades = range(floor(low), floor(high) + 1)
    values = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return [value for value in values if low <= log10(value) <= high]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _drawn(series: Series, x: Scale, y: Scale) -> str:
    """A line through the points, their intervals, a mark on each with what it is."""
    colour = series.drawn_colour
    places = [(x(_x(point)), y(point.y), point) for point in series.points]
    parts = [f'<g fill="none" stroke="{colour}" stroke-width="{_stroke(series)}">']
    if "lines" in series.mode and len(places) > 1:
        path = " L".join(f"{across:.1f} {up:.1f}" for across, up, _ in places)
        parts.append(f'<path d="M{path}"{_dash(series)}/>')
    for across, up, point in places:
        if point.low is not None and point.high is not None:
            ends = f"M{across:.1f} {y(point.low):.1f}V{y(point.high):.1f}"
            parts.append(f'<path d="{ends}" stroke-width="1.2"/>')
        parts.append(_mark(series, across, up, point.text))
    return "".join([*parts, "</g>"])


def _stroke(series: Series) -> int:
    return 1 if series.is_background else 2


def _dash(series: Series) -> str:
    dash = DASHES[series.drawn_dash]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _mark(series: Series, across: float, up: float, title: str = "") -> str:
    shape = MARKERS.get(series.drawn_symbol)
    fill = "none" if shape is None else series.drawn_colour
    said = f"<title>{_text(title)}</title>" if title else ""
    return f'<path transform="translate({across:.1f} {up:.1f})" fill="{fill}" d="{shape or CROSS}">{said}</path>'


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    for place, one in enumerate(one for one in series if one.is_in_legend):
        up = TOP + 8 + LINE_HEIGHT * place
        line = f'<path d="M{LEGEND_LEFT} {up}H{LEGEND_LEFT + 28}"{_dash(one)}/>' if "lines" in one.mode else ""
        marked = line + _mark(one, LEGEND_LEFT + 14, up)
        parts.append(f'<g fill="none" stroke="{one.drawn_colour}" stroke-width="{_stroke(one)}">{marked}</g>')
        parts.append(_words(LEGEND_LEFT + 36, up + 4, one.name))
    return parts


def _words(across: float, up: float, words: str, attributes: str = "") -> str:
    return f'<text x="{across:.1f}" y="{up:.1f}"{" " + attributes if attributes else ""}>{_text(words)}</text>'


def _text(value: str) -> str:
    return html.escape("".join(character if character.isprintable() else " " for character in value), quote=True)
