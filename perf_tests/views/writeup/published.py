"""Figures of the five write-ups as their sources print them, laid out by row and column."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perf_tests.views.tables.digits import significant, with_spread
from perf_tests.views.writeup.answer import Figure
from perf_tests.views.writeup.sources import Sources

Row = Mapping[str, str]

NAMES = {"charliesabino/cs336-assignment2": "write-up 004"}
"""A write-up that one table lists by its repository."""
SAID = "published/answers.csv"
NOT_STATED = "not stated"
SHORT_WARM_UP = ("0", "1")


@dataclass(frozen=True)
class WriteUp:
    name: str
    repository: str
    gpus: tuple[str, ...]


def name_of(row: Row) -> str:
    """`write-up 001`; another source by its repository."""
    source = row["source"]
    found = re.match(r"write-up \d+", source)
    if found:
        return found[0]
    repository = source.partition(":")[0].partition(" (")[0]
    return NAMES.get(repository, repository)


def is_write_up(row: Row) -> bool:
    return name_of(row).startswith("write-up ")


def column(row: Row, unit: str = "", *more: str) -> str:
    """`write-up 001, T4-16GB, fp16 (ms)`."""
    card = row["gpu"].partition(" (")[0]
    card = "" if "unknown" in card or "not stated" in card else card
    name = ", ".join(part for part in (name_of(row), card, *more) if part)
    return f"{name} ({unit})" if unit else name


def write_ups(sources: Sources) -> list[WriteUp]:
    """The five, with what their tables name."""
    repositories: dict[str, str] = {name: repository for repository, name in NAMES.items()}
    cards: dict[str, list[str]] = {}
    for row in filter(is_write_up, sources.published("e2e_timing.csv")):
        name = name_of(row)
        inside = re.search(r"\(([\w.-]+/[\w.-]+)", row["source"])
        if inside:
            repositories.setdefault(name, inside[1])
        known = cards.setdefault(name, [])
        card = row["gpu"].partition(" (")[0] + ("" if row["gpu_basis"].startswith("stated") else ", inferred")
        known += [card] if card not in known else []
    return [WriteUp(name, repositories.get(name, NOT_STATED), tuple(cards[name])) for name in sorted(cards)]


def matching(
    rows: Iterable[Row], fits: Callable[[Row], bool] = is_write_up, /, **fixed: str | Sequence[str]
) -> list[Row]:
    """Rows with the given values in the given columns, one of several for a sequence."""
    return [
        row
        for row in rows
        if fits(row)
        and all(row[name] == value if isinstance(value, str) else row[name] in value for name, value in fixed.items())
    ]


def said(sources: Sources, question: str) -> list[Row]:
    """What write-ups answer in words."""
    return matching(sources.published("answers.csv"), question=question)


def source_of(row: Row, *words: str) -> str:
    """The column of a figure without a card."""
    return ", ".join((name_of(row), *words))


def label(row: Row, name: str) -> str:
    return row[name] or NOT_STATED


def time_text(row: Row) -> str:
    """The mean as printed, rounded to its spread where there is one; else the status."""
    if not row["mean_ms"]:
        return row["status"]
    return with_spread(float(row["mean_ms"]), float(row["std_ms"])) if row["std_ms"] else row["mean_ms"]


def warmed_up(sources: Sources, **fixed: str | Sequence[str]) -> list[Row]:
    """Eager timings of the write-ups after a warm-up; those without one are another question's."""
    rows = matching(sources.published("e2e_timing.csv"), is_write_up, compiled="no", **fixed)
    return [row for row in rows if row["warmup"] not in SHORT_WARM_UP]


def times(sources: Sources, **fixed: str | Sequence[str]) -> list[Figure]:
    """By size and context; the column names the precision where several are asked for."""
    several = not isinstance(fixed.get("precision", ""), str)
    return [
        Figure(
            (label(row, "size"), label(row, "context")),
            column(row, "ms", *([row["precision"]] * several)),
            time_text(row),
        )
        for row in warmed_up(sources, **fixed)
    ]


def ratios(rows: Sequence[Row], along: str, base: str, other: str, labels: Sequence[str], words: str) -> list[Figure]:
    """Time at `base` over time at `other`, of rows of one source that differ along that column alone."""
    same = [name for name in rows[0] if name not in (along, "mean_ms", "std_ms", "precision_that_ran")] if rows else []
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["mean_ms"] and float(row["mean_ms"]) > 0:
            groups.setdefault(tuple(row[name] for name in same), {}).setdefault(row[along], row)
    return [
        Figure(
            tuple(label(of[base], name) for name in labels),
            column(of[base], "", words),
            significant(float(of[base]["mean_ms"]) / float(of[other]["mean_ms"]), 3),
        )
        for of in groups.values()
        if {base, other} <= of.keys()
    ]
