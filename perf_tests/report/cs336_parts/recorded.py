"""Figures of the records: one for each case and column, named by labels of the case."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from perf_tests.records.columns import Cell
from perf_tests.records.format import finite, significant
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels
from perf_tests.report.cs336_parts.sources import Found, Sources
from perf_tests.report.tables import ratio

FP32, BF16 = "fp32", "bf16"
Fits = Callable[[Cell], bool]
Cases = Callable[[Sources], Iterable[Found]]
Text = Callable[[Cell], str]
Row = tuple[tuple[str, ...], str, str]
"""Labels, column and text of one figure."""


def plain(*phases: str, precision: Sequence[str] = (FP32,)) -> Fits:
    """Of the reference: naive, eager, the course's batch."""
    return lambda cell: (
        (cell.implementation, cell.label("batch_size"), cell.is_attention) == ("naive", "4", False)
        and cell.label("precision") in precision
        and (not phases or cell.phase in phases)
    )


def timed(fits: Fits) -> Cases:
    """Each case that fits, those without a timing too."""
    return lambda sources: sources.timed(fits)


def passed(name: str, fits: Fits) -> Cases:
    """The results of an extra pass."""
    return lambda sources: sources.passed(name, fits)


def names_of(cell: Cell) -> dict[str, str]:
    """What a case is, by the labels in lower case and what a head may name besides."""
    size, context = cell.label("size"), cell.label("context_length")
    return {
        "size": size, "context": context, "width": cell.label("head_dim"), "length": cell.label("sequence_length"),
        "phase": cell.phase, "pass": cell.phase, "precision": cell.label("precision"),
        "case": f"{size} {context}", "attention": cell.implementation,
    }  # fmt: skip


def place(cell: Cell, labels: Labels) -> tuple[str, ...]:
    """The row of a case."""
    names = names_of(cell)
    return tuple(names[label.lower()] for label in labels)


def of_rows(cases: Cases, rows: Callable[[Cell, Labels], Iterable[Row]]) -> Figures:
    """Any rows that a case has; `{size}` in a column is that of the case."""

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for found in cases(sources):
            for row, column, text in rows(found.cell, labels):
                yield Figure(row, column.format(**names_of(found.cell)), text, found.file)

    return figures


def of_cases(cases: Cases, columns: Mapping[str, Text]) -> Figures:
    """A row for each case."""
    return of_rows(
        cases, lambda cell, labels: ((place(cell, labels), column, text(cell)) for column, text in columns.items())
    )


def of_items(
    cases: Cases, items: Callable[[Cell], Iterable[Json]], columns: Mapping[str, Callable[[Json], str]]
) -> Figures:
    """Figures of each item that a case lists; `{item[name]}` in a column is the item's, as is a label of no case."""

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for found in cases(sources):
            names = names_of(found.cell)
            for item in items(found.cell):
                row = tuple(str({**item, **names}.get(label.lower())) for label in labels)
                for column, text in columns.items():
                    yield Figure(row, column.format(item=item, **names), text(item), found.file)

    return figures


def of_ratios(
    axis: str, base: str, other: str, fits: Fits, column: str, times: Mapping[str, Text] | None = None
) -> Figures:
    """Time over time of each pair of one record; `times` are columns of both cases before it."""

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        pairs = sources.pairs(axis, base, other, fits)
        yield from of_cases(lambda _: (one for pair in pairs for one in pair), times or {})(sources, labels)
        for one, two in pairs:
            yield Figure(place(one.cell, labels), column, ratio(one.cell, two.cell), one.file)

    return figures


def number(name: str, factor: float = 1.0, digits: int = 4) -> Text:
    """A number of the identity or of the row, in another unit."""
    return lambda cell: in_digits(cell.number(name), factor, digits)


def item(name: str, factor: float = 1.0, digits: int = 4) -> Callable[[Json], str]:
    """A number of an item, in another unit."""
    return lambda values: in_digits(values.get(name), factor, digits)


def share(name: str) -> Callable[[Json], str]:
    return lambda values: percent(values.get(name))


def count(name: str) -> Callable[[Json], str]:
    return lambda values: f"{finite(values.get(name)) or 0:g}"


def in_digits(value: object, factor: float = 1.0, digits: int = 4) -> str:
    """Nothing for what is no number."""
    known = finite(value)
    return "" if known is None else significant(known * factor, digits)


def percent(value: object, places: int = 1) -> str:
    known = finite(value)
    return "" if known is None else f"{known:.{places}%}"
