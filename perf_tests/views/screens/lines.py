"""A record as a person reads it in a terminal: plain lines, a pure function of the data."""

from collections.abc import Callable, Iterable, Sequence

from perf_tests.audit.row_flags import FLAGS
from perf_tests.records.record import OUTCOMES, Json

DASH = "-"

WIDTH = 120
"""Columns of a terminal that a table of results keeps to."""


def result_lines(record: Json) -> list[str]:
    """One row for each case: median, spread, throughput; then the cases without a timing, with their reasons."""
    lines = _result_table(record["benchmarks"]) if record["benchmarks"] else []
    for row in record["benchmarks"]:
        flags = row["extra_info"].get("flags", ())
        lines += [
            f"{case_name(row['fullname'])}: {FLAGS[flag].sentence}{_next_step(flag, row['extra_info'])}"
            for flag in flags
        ]
    lines += [
        f"{case_name(row['id'])}: {OUTCOMES[row['outcome']]}: {row['reason']}{_rounds_kept(row)}"
        for row in record["outcomes"]
    ]
    return lines


def _result_table(rows: Sequence[Json]) -> list[str]:
    """Not wider than `WIDTH` while there is a column that can go; what bounds a case is shown where it is known."""
    columns = [*_COLUMNS]
    if all(row["extra_info"].get("bound") is None for row in rows):
        columns = [column for column in columns if column not in ("bound", "roofline")]
    for name in (*_DROPPED_FIRST, None):
        shown_rows = [(case_name(row["fullname"]), *(_COLUMNS[column](row) for column in columns)) for row in rows]
        lines = table(("case", *columns), shown_rows)
        if len(lines[0]) <= WIDTH or name is None:
            break
        columns.remove(name)
    return [*lines, "; ".join(note for name, note in _NOTES.items() if name in columns)]


_COLUMNS: dict[str, Callable[[Json], str]] = {
    "median": lambda row: duration(row["stats"]["median"]),
    "spread": lambda row: f"{row['stats']['iqr'] / row['stats']['median']:.1%}",
    "tokens/s": lambda row: _rounded(row["extra_info"].get("tokens_per_second")),
    "TFLOP/s": lambda row: _rounded(row["extra_info"].get("tflops_per_second")),
    "of ceiling": lambda row: shown(row["extra_info"].get("share_of_matmul_ceiling"), ".0%"),
    "bound": lambda row: row["extra_info"].get("bound") or DASH,
    "roofline": lambda row: shown(row["extra_info"].get("roofline_fraction"), ".0%"),
}
_DROPPED_FIRST = ("of ceiling", "tokens/s", "TFLOP/s")
"""What else tells, when the names of the cases are long: the roofline, and the median."""

_NOTES = {
    "spread": "spread: interquartile range over median",
    "of ceiling": "ceiling: the best square product in this precision here",
    "roofline": "roofline: least time of its kernels here over median",
}


def _next_step(flag: str, info: Json) -> str:
    """What to set, where a flag has a figure for it."""
    rounds = info.get("suggested_warmup_rounds")
    return f"; set --warmup-rounds {rounds}" if flag == "short_warmup" and rounds is not None else ""


def _rounds_kept(outcome: Json) -> str:
    count = len(outcome.get("rounds") or ())
    return f" ({count} rounds kept)" if count else ""


def time_line(seconds: dict[str, float]) -> str:
    """Where the time of a run went, as shares of the whole."""
    total = seconds["total"] or 1.0
    counting, passes = seconds.get("counting", 0.0), seconds.get("passes", 0.0)
    rest = total - seconds["rounds"] - seconds["building"] - counting - passes
    extra = f"{passes / total:.0%} in extra passes, " if passes else ""
    return (
        f"{total:.0f} s: {seconds['rounds'] / total:.0%} in warm-up and measured rounds with their set-up "
        f"({seconds['compiling'] / total:.0%} of all in first calls that compile), "
        f"{seconds['building'] / total:.0%} building models, {counting / total:.0%} counting and ceilings, {extra}"
        f"{rest / total:.0%} start, checks and clean-up"
    )


def case_name(node_id: str) -> str:
    """`forward small-ctx128-fp32-naive` out of a node id."""
    function = node_id.rpartition("::")[2]
    name, _, parameters = function.removeprefix("test_").partition("[")
    return f"{name} {parameters.removesuffix(']')}"


def printable(text: object) -> str:
    """Control characters and lone surrogates as spaces: a name out of a file must not move a terminal's cursor."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def shown(value: float | None, form: str) -> str:
    """The value in a form of `format`; a dash where it is not known."""
    return DASH if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """Four significant digits in the unit that suits; a dash where it is not known."""
    if seconds is None:
        return DASH
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _rounded(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their content; the first to the left, figures to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
