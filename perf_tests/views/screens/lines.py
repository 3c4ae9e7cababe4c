"""A record in a terminal: plain lines, a pure function of the data."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

from perf_tests.audit.row_flags import FLAGS
from perf_tests.identity import is_collective
from perf_tests.records.record import OUTCOMES, Json

DASH = "-"

WIDTH = 120
"""Characters per line of a table of results."""

T = TypeVar("T")
Columns = dict[str, Callable[[T], str]]
"""Each column's heading, and what it shows of a row."""


def result_lines(record: Json) -> list[str]:
    """One row for each case that computes: median, spread, throughput; then flags, and cases without a timing."""
    computing = [row for row in record["benchmarks"] if not is_collective(row["extra_info"])]
    lines = _result_table(computing) if computing else []
    for row in record["benchmarks"]:
        for flag in row["extra_info"].get("flags", ()):
            rounds = row["extra_info"].get("suggested_warmup_rounds") if flag == "short_warmup" else None
            advice = "" if rounds is None else f"; set --warmup-rounds {rounds}"
            lines.append(f"{case_name(row['fullname'])}: {FLAGS[flag].sentence}{advice}")
    for row in record["outcomes"]:
        kept = f" ({len(row['rounds'])} rounds kept)" if row.get("rounds") else ""
        lines.append(f"{case_name(row['id'])}: {OUTCOMES[row['outcome']]}: {row['reason']}{kept}")
    return lines


def _result_table(rows: Sequence[Json]) -> list[str]:
    """At most `WIDTH` characters wide while a column can be dropped; what bounds a case is shown where it is known."""
    unknown = {"bound", "roofline"} if all(row["extra_info"].get("bound") is None for row in rows) else set()
    columns = {name: cell for name, cell in _COLUMNS.items() if name not in unknown}
    for name in _DROPPED_FIRST:
        if len(column_table(columns, rows)[0]) > WIDTH:
            del columns[name]
    return [*column_table(columns, rows), "; ".join(note for name, note in _NOTES.items() if name in columns)]


_COLUMNS: Columns[Json] = {
    "case": lambda row: case_name(row["fullname"]),
    "median": lambda row: duration(row["stats"]["median"]),
    "spread": lambda row: f"{row['stats']['iqr'] / row['stats']['median']:.1%}",
    "tokens/s": lambda row: _rounded(row["extra_info"].get("tokens_per_second")),
    "TFLOP/s": lambda row: _rounded(row["extra_info"].get("tflops_per_second")),
    "of ceiling": lambda row: shown(row["extra_info"].get("share_of_matmul_ceiling"), ".0%"),
    "bound": lambda row: row["extra_info"].get("bound") or DASH,
    "roofline": lambda row: shown(row["extra_info"].get("roofline_fraction"), ".0%"),
}
_DROPPED_FIRST = ("of ceiling", "tokens/s", "TFLOP/s")
"""Where the names of the cases are long: the roofline and the median say nearly the same."""
_NOTES = {
    "spread": "spread: interquartile range over median",
    "of ceiling": "ceiling: the best square product in this precision here",
    "roofline": "roofline: least time of its kernels here over median",
}


def time_line(seconds: dict[str, float]) -> str:
    total = seconds["total"] or 1.0
    counting, passes, sharing = (seconds.get(kind, 0.0) for kind in ("counting", "passes", "communication"))
    rest = total - seconds["rounds"] - seconds["building"] - counting - passes - sharing
    extra = f"{passes / total:.0%} in extra passes, " if passes else ""
    extra += f"{sharing / total:.0%} in rounds that show what communication costs, " if sharing else ""
    return (
        f"{total:.0f} s: {seconds['rounds'] / total:.0%} in warm-up and measured rounds with their set-up "
        f"({seconds['compiling'] / total:.0%} of all in first calls that compile), "
        f"{seconds['building'] / total:.0%} building models, {counting / total:.0%} counting and ceilings, {extra}"
        f"{rest / total:.0%} start, checks and clean-up"
    )


def case_name(node_id: str) -> str:
    """`forward small-ctx128-fp32-naive` from a node id."""
    function = node_id.rpartition("::")[2]
    name, _, parameters = function.removeprefix("test_").partition("[")
    return f"{name} {parameters.removesuffix(']')}"


def printable(text: object) -> str:
    """Control characters and lone surrogates as spaces: a name from a file must not move a terminal's cursor."""
    words = str(text)
    return words if words.isprintable() else "".join(one if one.isprintable() else " " for one in words)


def shown(value: float | None, form: str) -> str:
    """The value in a form of `format`; a dash for None."""
    return DASH if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """Four significant digits in a fitting unit; a dash for None."""
    if seconds is None:
        return DASH
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def duration_range(low_seconds: float, high_seconds: float) -> str:
    """`32 to 61 ms`: three significant digits, in the unit of the higher end."""
    units = ((1, "s"), (1e3, "ms"), (1e6, "us"))
    factor, unit = next((one for one in units if high_seconds * one[0] >= 1), units[-1])
    return f"{_three_digits(low_seconds * factor)} to {_three_digits(high_seconds * factor)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Container[str] = ()) -> list[str]:
    """Columns as wide as their content; the first and those headed as in `left` to the left, figures to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    aligned = [
        [cell.ljust(width) if not place or column[0] in left else cell.rjust(width) for cell in column]
        for place, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return ["  ".join(line) for line in zip(*aligned, strict=True)]


def column_table(columns: Columns[T], rows: Iterable[T]) -> list[str]:
    """The same, from each column's heading and what it shows of a row."""
    return table(tuple(columns), [[cell(row) for cell in columns.values()] for row in rows])
