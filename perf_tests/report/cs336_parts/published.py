"""Figures of the five write-ups as their sources print them, laid out by row and column."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from perf_tests.records.format import significant, with_spread
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels
from perf_tests.report.cs336_parts.sources import Sources

Row = Mapping[str, str]
Fits = Callable[[Row], bool]
Text = Callable[[Row], str]

E2E, ATTENTION, MEMORY = "e2e_timing.csv", "attention_timing.csv", "memory.csv"
SAID, KERNELS = "answers.csv", "kernels.csv"
COLUMNS = {
    "Size": "size", "Context": "context", "Phase": "phase", "Pass": "scope", "Precision": "precision",
    "Width": "d_model", "Length": "seq_len",
}  # fmt: skip
"""Of each label, where a table has it."""
OUR_WORDS = {"fwd_bwd": "forward_backward", "full pass": "full_step"}
"""What published tables call phases."""

NAMES = {"charliesabino/cs336-assignment2": "write-up 004"}
"""A write-up that one table lists by its repository."""
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
    card = row.get("gpu", "").partition(" (")[0]
    card = "" if "unknown" in card or "not stated" in card else card
    name = ", ".join(part for part in (name_of(row), card, *more) if part)
    return f"{name} ({unit})" if unit else name


def write_ups(sources: Sources) -> list[WriteUp]:
    """The five, with what their tables name."""
    repositories: dict[str, str] = {name: repository for repository, name in NAMES.items()}
    cards: dict[str, list[str]] = {}
    for row in filter(is_write_up, sources.published(E2E)):
        name = name_of(row)
        inside = re.search(r"\(([\w.-]+/[\w.-]+)", row["source"])
        if inside:
            repositories.setdefault(name, inside[1])
        known = cards.setdefault(name, [])
        card = row["gpu"].partition(" (")[0] + ("" if row["gpu_basis"].startswith("stated") else ", inferred")
        known += [card] if card not in known else []
    return [WriteUp(name, repositories.get(name, NOT_STATED), tuple(cards[name])) for name in sorted(cards)]


def matching(rows: Iterable[Row], fits: Fits = is_write_up, /, **fixed: str | Sequence[str]) -> list[Row]:
    """Rows with the given values in the given columns, one of several for a sequence."""
    return [
        row
        for row in rows
        if fits(row)
        and all(row[name] == value if isinstance(value, str) else row[name] in value for name, value in fixed.items())
    ]


def of_table(
    table: str,
    text: str | Text,
    unit: str | Text = "",
    *words: str | Text,
    row: Sequence[str | Text] = (),
    fits: Fits = is_write_up,
    **fixed: str | Sequence[str],
) -> Figures:
    """A figure for each row that fits, read or made of it; `words` tell columns of one source apart.

    `row` replaces what the labels are in a table: columns, other texts, or what is made of the row.
    """
    read = text if callable(text) else itemgetter(text)

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for found in matching(sources.published(table), fits, **fixed):
            head = column(found, *(word if isinstance(word, str) else word(found) for word in (unit, *words)))
            yield Figure(place(found, row or labels), head, read(found), f"published/{table}")

    return figures


def of_ratios(
    table: str,
    along: str,
    base: str,
    other: str,
    words: str,
    fits: Fits = is_write_up,
    **fixed: str | Sequence[str],
) -> Figures:
    """Time over time of rows of one source that differ along that column alone."""
    fixed = {along: (base, other), **fixed}
    return lambda sources, labels: ratios(
        matching(sources.published(table), fits, **fixed), along, base, other, labels, words, f"published/{table}"
    )


def of_answers(question: str, row: Sequence[str] = ("item",)) -> Figures:
    """What write-ups say in words, by source and column."""
    return of_table(SAID, "value", "", itemgetter("column"), row=row, question=question)


def place(row: Row, labels: Iterable[str | Text]) -> tuple[str, ...]:
    """Texts of the row in our words; what is no column of the table stands for itself."""
    return tuple(label(row, COLUMNS.get(name, name)) if isinstance(name, str) else name(row) for name in labels)


def label(row: Row, name: str) -> str:
    value = row.get(name, name)
    return OUR_WORDS.get(value, value).removesuffix("_amp") or NOT_STATED


def time_text(row: Row) -> str:
    """The mean as printed, rounded to its spread where there is one; else the status."""
    if not row["mean_ms"]:
        return row["status"]
    return with_spread(float(row["mean_ms"]), float(row["std_ms"])) if row["std_ms"] else row["mean_ms"]


def is_warm(row: Row) -> bool:
    """Eager timings of the write-ups after a warm-up; those without one are another question's."""
    return is_write_up(row) and row["compiled"] == "no" and row["warmup"] not in SHORT_WARM_UP


def is_warm_time(row: Row) -> bool:
    return is_warm(row) and bool(row["mean_ms"])


def ratios(
    rows: Sequence[Row], along: str, base: str, other: str, labels: Labels, words: str, file: str = ""
) -> list[Figure]:
    """Time at `base` over time at `other`, of rows of one source that differ along that column alone."""
    same = [name for name in rows[0] if name not in (along, "mean_ms", "std_ms", "precision_that_ran")] if rows else []
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["mean_ms"] and float(row["mean_ms"]) > 0:
            groups.setdefault(tuple(row[name] for name in same), {}).setdefault(row[along], row)
    return [
        Figure(
            place(of[base], labels),
            column(of[base], "", words),
            significant(float(of[base]["mean_ms"]) / float(of[other]["mean_ms"]), 3),
            file,
        )
        for of in groups.values()
        if {base, other} <= of.keys()
    ]
