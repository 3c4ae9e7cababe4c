"""What a reader filters by: the labels of a case, and the choice of each that has several values."""

from collections.abc import Iterable, Sequence

from perf_tests.records.columns import Cell
from perf_tests.records.format import order
from perf_tests.records.record import Json
from perf_tests.report.page_parts.markup import text
from perf_tests.report.tables import BATCH, CONTEXT, HEAD_DIM, IMPLEMENTATION, PHASE, PRECISION, SEQUENCE, SIZE, Label

AXES: tuple[Label, ...] = (
    SIZE, CONTEXT, HEAD_DIM, SEQUENCE, PHASE, PRECISION, IMPLEMENTATION, BATCH,
    Label("Optimizer", lambda cell: cell.label("optimizer")),
    Label("Gradients", lambda cell: cell.label("zero_grad_policy").replace("_", " ")),
    Label("Device", lambda cell: cell.label("device")),
)  # fmt: skip
"""By the names of their columns: a table with such a column is filtered by it."""

Tags = tuple[str, ...]
"""Under each of `AXES`; a case without one passes that filter."""


def tags_of(cell: Cell) -> Tags:
    return tuple(axis.of(cell) for axis in AXES)


def tags_with(**values: str) -> Tags:
    """Of what is no case: `precision="fp32"`."""
    return tuple(values.get(axis.name.lower(), "") for axis in AXES)


def filter_form(cells: Iterable[Cell]) -> str:
    """A search and a choice for each axis with more than one value; hidden until the page's program runs."""
    tags = {tags_of(cell) for cell in cells}
    choices = "".join(_choice(axis.name, {found[place] for found in tags} - {""}) for place, axis in enumerate(AXES))
    search = '<label class="search">Search cases <input type="search" id="search" autocomplete="off"></label>'
    reset = '<button type="reset">Clear</button><output id="shown"></output>'
    return f'<form id="filters" aria-label="Search and filters of this page" hidden>{search}{choices}{reset}</form>'


def _choice(name: str, values: Iterable[str]) -> str:
    is_number = {value: value.isascii() and value.isdigit() for value in values}
    ordered = sorted(is_number, key=lambda value: order(int(value) if is_number[value] else value))
    if len(ordered) < 2:
        return ""
    options = "".join(f'<option value="{text(value)}">{text(value)}</option>' for value in ordered)
    return (
        f'<label>{text(name)} <select data-filter="{text(name.lower())}"><option value="">all</option>{options}'
        "</select></label>"
    )


def shared_tags(figures: Sequence[Json], cases: Iterable[tuple[str, Tags]]) -> Json:
    """Figures and cases with the number of their tags in one list, since thousands of points have few."""
    numbers: dict[Tags, int] = {}

    def number(tags: Tags) -> int:
        return numbers.setdefault(tuple(tags), len(numbers))

    numbered = [
        {**figure, "data": [{**trace, "tags": list(map(number, trace["tags"]))} for trace in figure["data"]]}
        for figure in figures
    ]
    by_name = {name: number(tags) for name, tags in cases}
    return {"axes": [axis.name.lower() for axis in AXES], "tags": list(numbers), "cases": by_name, "figures": numbered}
