"""Figures of the ledger of exact counters, and of the shapes of the course's sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from perf_tests.records.format import GIB, MIB, significant
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels
from perf_tests.report.cs336_parts.sources import CONTEXTS, SIZES, Shape, Sources

MODEL_CASE = "{size}-ctx{context}-{precision}-naive"
SHAPES = "published/e2e_timing.csv"
"""Which has the sizes' shapes."""


def of_ledger(
    counter: str,
    column: str,
    text: Callable[[int], str],
    case: str = MODEL_CASE,
    of: str = "{phase}",
    **axes: Sequence[object],
) -> Figures:
    """A figure for each combination of the axes, whose names stand in braces; `of` is the phase counted."""
    axes = {"size": SIZES, "context": (128,), "precision": ("fp32",), **axes}

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for values in product(*axes.values()):
            names = dict(zip(axes, map(str, values), strict=True))
            value = sources.counted(of.format(**names), case.format(**names), counter)
            row = tuple(names["phase" if label == "Pass" else label.lower()] for label in labels)
            yield Figure(row, column.format(**names), text(value), sources.ledger_name)

    return figures


def of_shapes(columns: Mapping[str, Callable[[Shape, int], str]]) -> Figures:
    """Closed forms of each size and context."""

    def figures(sources: Sources, _: Labels) -> Iterator[Figure]:
        for (size, shape), context in product(sources.shapes.items(), CONTEXTS):
            for column, text in columns.items():
                yield Figure((size, str(context)), column, text(shape, context), SHAPES)

    return figures


def mebibytes(value: float) -> str:
    return significant(value / MIB)


def gibibytes(value: float) -> str:
    return significant(value / GIB)


def thousands(value: int) -> str:
    return f"{value:,}"
