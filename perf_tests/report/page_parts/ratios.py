"""Speed-up of lower precisions, and backward over forward: ratios of two cases of one run."""

from collections.abc import Iterable, Sequence

from perf_tests.records.columns import Cell, case_name, pairs_along, rounds_line
from perf_tests.records.format import Table, distinct
from perf_tests.records.store import ratio_interval
from perf_tests.report.page_parts.axes import tags_of
from perf_tests.report.page_parts.figure import Figure, Point, markers, place_of
from perf_tests.report.page_parts.run import RecordedRun
from perf_tests.report.tables import (
    BASE_PRECISION,
    BATCH,
    CONTEXT,
    IMPLEMENTATION,
    PRECISION,
    RATIO_NOTE,
    SIZE,
    ratio,
)

Pair = tuple[Cell, Cell]
INTERVAL_NOTE = "ratio of medians with its 95 % interval within this launch"


def speed_up(run: RecordedRun) -> list[Figure]:
    """fp32 over each other precision, by size and context; parity is drawn."""
    pairs = pairs_along(
        (cell for cell in run.cells if cell.is_timed and not cell.is_attention), "precision", BASE_PRECISION
    )
    return run.figures(
        "precision", "Speed-up over fp32", ("size, context", "fp32 / other"),
        markers((f"{other.label('precision')}, {other.phase}", _point(base, other)) for base, other in pairs),
        [INTERVAL_NOTE, rounds_line(_both(pairs))],
        line_at=(1.0, "parity"), x_values=_places(pairs),
    )  # fmt: skip


def backward_over_forward(run: RecordedRun) -> list[Figure]:
    """Backward over forward; a model's arithmetic gives 2."""
    figures = []
    for alone, name, place, line in (
        (False, "model", "size, context", (2.0, "twice the arithmetic")),
        (True, "attention", "d, sequence", None),
    ):
        pairs = _passes(cell for cell in run.cells if cell.is_attention == alone)
        figures += run.figures(
            f"{name}-backward", f"Backward / forward, {name}", (place, "backward / forward"),
            markers((f"{pair[0].label('precision')} {pair[0].implementation}", _point(*pair)) for pair in pairs),
            [INTERVAL_NOTE, rounds_line(_both(pairs))],
            line_at=line, x_values=_places(pairs),
        )  # fmt: skip
    return figures


def passes_table(cells: Sequence[Cell]) -> Table | None:
    pairs = _passes(cell for cell in cells if not cell.is_attention)
    if not pairs:
        return None
    labels = (SIZE, CONTEXT, IMPLEMENTATION, PRECISION, BATCH)
    rows = tuple((*(label.of(forward) for label in labels), ratio(back, forward)) for back, forward in pairs)
    header = (*(label.name for label in labels), "backward / forward")
    return Table("passes", "Backward over forward", header, len(labels), rows, (RATIO_NOTE,))


def _passes(cells: Iterable[Cell]) -> list[Pair]:
    """(backward, forward) of each configuration that has both."""
    return pairs_along((cell for cell in cells if cell.is_timed), "phase", "backward", "forward")


def _point(over: Cell, under: Cell) -> Point:
    low, high = ratio_interval(over.rounds, under.rounds) or (None, None)
    tags = tags_of(under if over.phase == under.phase else over)
    return Point(place_of(over), over.median_seconds / under.median_seconds, case_name(under.id), tags, low, high)


def _places(pairs: Iterable[Pair]) -> list[str]:
    return distinct(place_of(over) for over, _ in pairs)


def _both(pairs: Iterable[Pair]) -> list[Cell]:
    return [cell for pair in pairs for cell in pair]
