"""What warm-up rounds do, as tables: times after so many of them, and what the first round is spent on."""

from collections.abc import Sequence
from functools import partial

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, Columns, shown
from perf_tests.views.tables.cells import Cell, distinct, finite, inside, lost_lines, name_of, rows_in
from perf_tests.views.tables.digits import count_in, figure_in, mean_in, significant
from perf_tests.views.tables.table import Table, pass_table

WARMUP_NOTE = (
    "mean ± standard deviation; each number of warm-up rounds in its own process; first round and steady from: "
    "of the process without a warm-up, whose rounds agree from there on"
)
FIRST_ROUND_NOTE = "one profiled process: extra time of its first round over a steady one, by part"


def warmup_table(cells: Sequence[Cell]) -> Table | None:
    series = [(cell, {series_name(row): row for row in rows_in(cell.info, "series")}) for cell in cells]
    rows = [(cell, {**cell.info, "by_name": of}) for cell, of in series if of or cell.outcome]
    columns: Columns[Json] = {
        f"after {name} (ms)": partial(_mean, name) for name in distinct(name for _, of in series for name in of)
    }
    columns |= {
        "first round (ms)": lambda row: _first_round(row["by_name"].get("0", {})),
        "steady from": lambda row: count_in(row["by_name"].get("0", {}), "steady_from_round"),
        "recommended": lambda row: count_in(row, "recommended_warmup_rounds"),
    }
    notes = (WARMUP_NOTE, *_recommendations(cells), *lost_lines(cells))
    return pass_table("warmup", "Time after warm-up rounds", columns, rows, notes)


def series_name(series: Json) -> str:
    """The number of warm-up rounds, and whether they left out the timed phase."""
    name = shown(finite(series.get("warmup_rounds")), ".0f")
    return f"{name} without the timed phase" if series.get("leaves_out_timed_phase") is True else name


def seconds_of(series: Json, name: str) -> list[float]:
    """The positive finite rounds under that name."""
    found = series.get(name)
    values = map(finite, found if isinstance(found, list) else [])
    return [value for value in values if value is not None and value > 0]


def _mean(name: str, row: Json) -> str:
    """Mean and spread of the measured rounds, with the places of the outliers among them."""
    series = row["by_name"].get(name, {})
    said, outliers = mean_in(series, "std_seconds", 1e3), series.get("outliers")
    if said != DASH and isinstance(outliers, list) and outliers:
        return f"{said} (outlier: round {', '.join(map(str, outliers))})"
    return said


def _first_round(series: Json) -> str:
    rounds = seconds_of(series, "seconds")
    return significant(rounds[0] * 1e3) if rounds else DASH


def _recommendations(cells: Sequence[Cell]) -> list[str]:
    """The number that covers every case of the study, and advice for cases whose warm-up was too short."""
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
    rows = [(cell, parts) for cell in cells if (parts := first_round_parts(cell.info))]
    columns: Columns[Json] = {
        f"{part_name(name)} (ms)": partial(figure_in, name=name, factor=1e3)
        for name in distinct(name for _, parts in rows for name in parts)
    }
    title = "What the first round of a process is spent on"
    return pass_table("first_rounds", title, columns, rows, [FIRST_ROUND_NOTE])


def part_name(field: str) -> str:
    """`module loading` of `module_loading_seconds`."""
    return field.removesuffix("_seconds").replace("_", " ")


def first_round_parts(values: Json) -> dict[str, float]:
    """Seconds by name, from the process without a warm-up or the first that has them."""
    said = sorted(rows_in(values, "series"), key=lambda row: finite(row.get("warmup_rounds")) or 0.0)
    parts = next((found for row in said if (found := inside(row, "first_round_parts"))), {})
    return {name: value for name, seconds in parts.items() if (value := finite(seconds)) is not None}


WARMUP_TABLES = (warmup_table, first_round_table)
