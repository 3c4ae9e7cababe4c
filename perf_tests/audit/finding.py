"""The findings of an audit."""

from collections.abc import Sequence
from dataclasses import dataclass

from perf_tests.audit.figures import LabelledFigure

IMPOSSIBLE = "impossible"
INCONSISTENT = "inconsistent"
SUSPICIOUS = "suspicious"
NOTICE = "notice"

VERDICTS = {
    IMPOSSIBLE: "breaks physics under its own labels",
    INCONSISTENT: "contradicts other figures of the same table",
    SUSPICIOUS: "may be right, but resembles a known mistake",
    NOTICE: "is correct, but shows less than it seems to",
}
"""Gravest first."""

ACCUSING = (IMPOSSIBLE, INCONSISTENT)
"""Verdicts that call a figure wrong."""


@dataclass(frozen=True)
class Finding:
    """One rule that fired. `figure` and `limit` carry their units."""

    verdict: str
    rule: str
    places: tuple[str, ...]
    """The figures that are accused, or that a notice is about."""
    cell: str
    figure: str
    limit: str
    why: str
    likely_cause: str
    series: str = ""
    excess: float = 1.0
    """How many times its limit the figure is, or its limit the figure."""

    def sentence(self) -> str:
        where = self.places[0] if len(self.places) == 1 else f"{self.places[0]} and {len(self.places) - 1} more"
        return (
            f"{where}: {self.verdict}: {self.cell}: {self.figure}, limit {self.limit}: {self.why}. "
            f"Most likely: {self.likely_cause}."
        )


@dataclass(frozen=True)
class NotJudged:
    """A figure that could not be judged by the physics of its row."""

    place: str
    reason: str
    """The same for all figures of which it holds."""
    detail: str = ""

    def sentence(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


def found(
    verdict: str,
    rule: str,
    rows: Sequence[LabelledFigure],
    figure: str,
    limit: str,
    why: str,
    likely_cause: str,
    excess: float = 1.0,
) -> Finding:
    """A finding on these rows, described by the first."""
    places = tuple(row.place for row in rows)
    cell, series = rows[0].describe().removeprefix(": "), rows[0].series
    return Finding(verdict, rule, places, cell, figure, limit, why, likely_cause, series, excess)
