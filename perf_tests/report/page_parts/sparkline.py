"""A line as small as a word, drawn without a program: how a figure went, its last value marked."""

from collections.abc import Sequence
from statistics import median_low

from perf_tests.report.page_parts.markup import Html, text

WIDTH, HEIGHT, EDGE = 110, 22, 3
MOST = 60
"""Values; of more, the median of each stretch is drawn."""
LEAST_SHOWN = 0.05
"""Of the median; less fills no more than its share of the height, so that noise does not look like a change."""


def sparkline(values: Sequence[float], words: str, marks: Sequence[int] = ()) -> Html:
    """Of at least two values; `words` say what it shows, `marks` are places where its level moved."""
    if len(values) < 2:
        return Html("")
    stretch = -(-len(values) // MOST)
    parts = [values[at : at + stretch] for at in range(0, len(values), stretch)]
    drawn = [median_low(part) for part in parts]
    middle = (min(drawn) + max(drawn)) / 2
    spread = max(max(drawn) - min(drawn), LEAST_SHOWN * middle)
    points = [
        _place(place / max(len(drawn) - 1, 1), 0.5 + (value - middle) / spread) for place, value in enumerate(drawn)
    ]
    lines = "".join(f'<path class="mark" d="M{_place(at / (len(values) - 1), 0)[0]:g} 0v{HEIGHT}"/>' for at in marks)
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    x, y = points[-1]
    return Html(
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{text(words)}">{lines}<polyline points="{path}"/><circle cx="{x:g}" cy="{y:g}" r="2.5"/></svg>'
    )


def _place(along: float, up: float) -> tuple[float, float]:
    return round(EDGE + along * (WIDTH - 2 * EDGE), 1), round(HEIGHT - EDGE - up * (HEIGHT - 2 * EDGE), 1)
