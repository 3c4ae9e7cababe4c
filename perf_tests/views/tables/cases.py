"""The table `cases`: a row for each case of a record, a speed-up along an axis, and the table as text for people."""

from collections.abc import Mapping, Sequence

from perf_tests.records.record import Json, identity_of
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.case_columns import COLUMNS, SPEEDUP, Known, Value
from perf_tests.views.tables.cells import PASSES, Cell, cells_of, collectives_of, pairs_along, pass_cells
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.table import Table

NAME = "cases"
NOT_TIMED = "not_timed"
"""The outcome of a case that only extra passes looked at."""

Row = dict[str, Value]


def case_rows(record: Json, record_name: str, against: tuple[str, str] | None = None) -> list[Row]:
    """A row for each case of the record, with every column, collectives last; `against` is an axis and its value."""
    found: dict[str, dict[str, Json]] = {}
    passed: dict[str, Cell] = {}
    for extra_pass in PASSES:
        for cell in pass_cells(record, extra_pass):
            found.setdefault(_key(cell.identity), {})[extra_pass] = cell.info
            passed.setdefault(_key(cell.identity), Cell(cell.id, cell.identity, {}, outcome=NOT_TIMED))
    outcomes = {row["id"]: row for row in record["outcomes"]}
    cells = [
        cell if cell.is_timed else _with_memory(cell, outcomes) for cell in (*cells_of(record), *collectives_of(record))
    ]
    to_be_timed = {_key(cell.identity) for cell in cells}
    cells += [cell for key, cell in passed.items() if key not in to_be_timed]
    knowns = [Known(cell, record, record_name, found.get(_key(cell.identity), {})) for cell in cells]
    rows = [{name: column.value(known) for name, column in COLUMNS.items()} for known in knowns]
    speedups = {} if against is None else _speedups(cells, *against)
    return [{**row, SPEEDUP.name: speedups.get(id(cell))} for cell, row in zip(cells, rows, strict=True)]


def _key(identity: Mapping[str, object]) -> str:
    return repr(sorted(identity.items()))


def _with_memory(cell: Cell, outcomes: Mapping[str, Json]) -> Cell:
    """A case without a timing, with the memory that its outcome names."""
    row = outcomes[cell.id]
    return Cell(cell.id, identity_of(row), row, outcome=cell.outcome, reason=cell.reason)


def _speedups(cells: Sequence[Cell], axis: str, value: str) -> dict[int, float]:
    """By `id` of a cell, how many times as fast it is as the cell that differs only along the axis."""
    found = {id(cell): 1.0 for cell in cells if cell.is_timed and cell.label(axis) == value}
    for base, other in pairs_along(cells, axis, value):
        if base.is_timed and other.is_timed:
            found[id(other)] = base.median_seconds / other.median_seconds
    return found


def as_table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    """For people: four significant digits, in the columns' own units."""
    kinds = {**COLUMNS, SPEEDUP.name: SPEEDUP}
    labels = next((place for place, name in enumerate(names) if kinds[name].kind is float), len(names))
    texts = tuple(tuple(_text(row[name]) for name in names) for row in rows)
    records = ", ".join(dict.fromkeys(str(row["record"]) for row in rows))
    return Table(NAME, "Cases", tuple(names), labels, texts, (f"record {records}",))


def _text(value: Value) -> str:
    if value is None:
        return DASH
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() else significant(value)
