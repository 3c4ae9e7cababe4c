"""What warm-up rounds do, as tables: times after so many of them, and what the first round is spent on."""

from collections.abc import Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, shown
from perf_tests.views.tables.cells import Cell, distinct, finite
from perf_tests.views.tables.digits import count_in, figure_in, significant, with_spread
from perf_tests.views.tables.pass_cells import LABELS, inside, labels_of, lost_lines, lost_row, name_of, rows_in
from perf_tests.views.tables.timing import Table

WARMUP_NOTE = (
    "mean ± standard deviation; each number of warm-up rounds in a process of its own; first round and steady from: "
    "of the process without a warm-up, whose rounds agree from there on"
)

FIRST_ROUND_NOTE = "one process more, under a profiler: what its first round takes more than a steady one, part by part"


def warmup_table(cells: Sequence[Cell]) -> Table | None:
    """Mean and spread after each number of warm-up rounds, and how many this machine needs."""
    series = [(cell, {series_name(row): row for row in rows_in(cell.info, "series")}) for cell in cells]
    known = [(cell, of) for cell, of in series if of or cell.outcome]
    names = distinct(name for _, of in known for name in of)
    header = (*LABELS, *(f"after {name} (ms)" for name in names), "first round (ms)", "steady from", "recommended")
    rows = tuple(
        lost_row(cell, len(header))
        if cell.outcome
        else (
            *labels_of(cell),
            *(_mean(of.get(name)) for name in names),
            *_steady(of),
            count_in(cell.info, "recommended_warmup_rounds"),
        )
        for cell, of in known
    )
    notes = (WARMUP_NOTE, *_recommendations(cells), *lost_lines(cells))
    return Table("warmup", "Time after warm-up rounds", header, len(LABELS), rows, notes).or_none()


def series_name(series: Json) -> str:
    """How many rounds came first, and whether what is timed was among them."""
    name = shown(finite(series.get("warmup_rounds")), ".0f")
    return f"{name} without the timed phase" if series.get("leaves_out_timed_phase") is True else name


def seconds_of(series: Json, name: str) -> list[float]:
    """The rounds under that name, those that are numbers."""
    found = series.get(name)
    values = map(finite, found if isinstance(found, list) else [])
    return [value for value in values if value is not None and value > 0]


def _mean(series: Json | None) -> str:
    """Mean and spread of the measured rounds, with the places of the outliers among them."""
    mean = None if series is None else finite(series.get("mean_seconds"))
    if series is None or mean is None:
        return DASH
    spread, outliers = finite(series.get("std_seconds")), series.get("outliers")
    said = with_spread(mean * 1e3, spread and spread * 1e3)
    if isinstance(outliers, list) and outliers:
        return f"{said} (outlier: round {', '.join(map(str, outliers))})"
    return said


def _steady(series: dict[str, Json]) -> tuple[str, str]:
    """Of the process without a warm-up: its first round, and the round from which all agree."""
    row = series.get("0", {})
    rounds = seconds_of(row, "seconds")
    return significant(rounds[0] * 1e3) if rounds else DASH, count_in(row, "steady_from_round")


def _recommendations(cells: Sequence[Cell]) -> list[str]:
    """What covers every case of the study, and what is said of the cases whose warm-up was too short."""
    found = [(finite(cell.info.get("recommended_warmup_rounds")), cell) for cell in cells]
    needed = [(rounds, cell) for rounds, cell in found if rounds is not None]
    if not needed:
        return []
    most, cell = max(needed, key=lambda pair: pair[0])
    short = [cell for _, cell in needed if cell.flags]
    return [
        f"for this machine: --warmup-rounds {most:.0f}, which {name_of(cell)} needs",
        *(f"{name_of(cell)}: {cell.info['recommendation']}" for cell in short if cell.info.get("recommendation")),
    ]


def first_round_table(cells: Sequence[Cell]) -> Table | None:
    """What the very first round of a process is spent on."""
    chosen = [(cell, parts) for cell in cells if (parts := first_round_parts(cell.info))]
    names = distinct(name for _, parts in chosen for name in parts)
    rows = tuple((*labels_of(cell), *(figure_in(parts, name, 1e3) for name in names)) for cell, parts in chosen)
    header = (*LABELS, *(f"{part_name(name)} (ms)" for name in names))
    title = "What the first round of a process is spent on"
    return Table("first_rounds", title, header, len(LABELS), rows, (FIRST_ROUND_NOTE,)).or_none()


def part_name(field: str) -> str:
    """`module loading` of `module_loading_seconds`."""
    return field.removesuffix("_seconds").replace("_", " ")


def first_round_parts(values: Json) -> dict[str, float]:
    """Seconds by name, of the process without a warm-up or else of the first that says."""
    said = sorted(rows_in(values, "series"), key=lambda row: finite(row.get("warmup_rounds")) or 0.0)
    parts = next((found for row in said if (found := inside(row, "first_round_parts"))), {})
    return {name: value for name, seconds in parts.items() if (value := finite(seconds)) is not None}


WARMUP_TABLES = (warmup_table, first_round_table)
