"""What an audit says of a figure."""

from dataclasses import dataclass

IMPOSSIBLE = "impossible"
INCONSISTENT = "inconsistent"
SUSPICIOUS = "suspicious"
NOTICE = "notice"

VERDICTS = {
    IMPOSSIBLE: "breaks physics under its own labels",
    INCONSISTENT: "contradicts other figures of the same table",
    SUSPICIOUS: "may be right, and looks like a known mistake",
    NOTICE: "is right as a figure, and says less than it seems to",
}

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

    def sentence(self) -> str:
        where = self.places[0] if len(self.places) == 1 else f"{self.places[0]} and {len(self.places) - 1} more"
        return (
            f"{where}: {self.verdict}: {self.cell}: {self.figure}, limit {self.limit}: {self.why}. "
            f"Most likely: {self.likely_cause}."
        )


@dataclass(frozen=True)
class NotJudged:
    """A figure that the physics of one row could not be held against."""

    place: str
    reason: str
