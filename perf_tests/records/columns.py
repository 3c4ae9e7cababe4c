"""A record as cells: every case with its labels, and its rounds or the reason for having none.

In a cell of an extra pass `info` holds what the pass found; a case that it lost has its outcome."""

import difflib
import math
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, TypeVar

from perf_tests.audit.rounds import FLAGS
from perf_tests.phases import (
    FAMILIES,
    OF_A_PHASE,
    PHASES,
    is_attention,
    is_collective,
    label_of,
    optimizer_in_words,
    place_of,
)
from perf_tests.records.record import OUTCOMES, Json, Times, how_many, identity_of, timing_outcomes
from perf_tests.records.store import StoredRecord

# A record in a terminal: plain lines, a pure function of the data.


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
    "tokens/s": lambda row: _rounded_rate(row["extra_info"].get("tokens_per_second")),
    "TFLOP/s": lambda row: _rounded_rate(row["extra_info"].get("tflops_per_second")),
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


def _rounded_rate(value: float | None) -> str:
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


PASSES = ("kernels", "memory", "warmup")
"""The extra passes, in the order of a write-up."""

LABELS = ("Size", "Context", "Phase", "Precision", "Implementation")
SHORT_OUTCOMES = {**OUTCOMES, "out_of_memory": "OOM"}
"""For a cell between figures."""

NEVER_TIMED = Times()


@dataclass(frozen=True)
class Cell:
    """One case of one run; `rounds` are empty for a case without a valid timing."""

    id: str
    identity: Json
    info: Json
    rounds: Times = NEVER_TIMED
    outcome: str = ""
    reason: str = ""

    @property
    def is_attention(self) -> bool:
        return is_attention(self.identity)

    @property
    def is_timed(self) -> bool:
        return bool(self.rounds)

    @property
    def median_seconds(self) -> float:
        return self.rounds.median

    @property
    def mean_seconds(self) -> float:
        return self.rounds.mean

    @property
    def std_seconds(self) -> float | None:
        return self.rounds.deviation

    @property
    def percentile_seconds(self) -> dict[int, float]:
        return self.rounds.percentiles

    def label(self, name: str) -> str:
        """An identity field as text; empty where it is null or missing."""
        value = self.identity.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        """A finite number of the identity or the row's other fields; else None."""
        return finite(self.identity.get(name, self.info.get(name)))

    @property
    def flags(self) -> list[str]:
        found = self.info.get("flags")
        return list(map(str, found)) if isinstance(found, list) else []

    @cached_property
    def phase(self) -> str:
        """`forward` for attention's forward pass too."""
        return label_of(self.label("phase"))

    @cached_property
    def implementation(self) -> str:
        """How the same function is computed: attention, and the other axes where they are not the default."""
        parts = [self.label("attention")]
        for name, default, words in (
            ("execution", "eager", "{} model"), ("checkpoint", "none", "checkpoint {}"), ("model", "ours", "{}"),
            ("cache", "", "{} cache"),
        ):  # fmt: skip
            if self.label(name) not in ("", default):
                parts.append(words.format(self.label(name)))
        return ", ".join(part for part in (*parts, *self._sharing) if part)

    @property
    def _sharing(self) -> list[str]:
        """How ranks share it, in words; none on one device."""
        if not self.label("parallel"):
            return []
        bucket_bytes = self.number("bucket_bytes")
        return [
            f"{self.label('parallel')} on {self.label('world')} ranks",
            "a batch each" if self.label("scaling") == "weak" else "",
            "" if bucket_bytes is None else f"buckets of {bucket_bytes / 2**20:g} MiB",
            "not resharded" if self.identity.get("reshard") is False else "",
        ]


def finite(value: object) -> float | None:
    """The value where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def cells_of(record: Json) -> list[Cell]:
    """Every case of the record that computes, by family, size, length, implementation, precision and phase."""
    return sorted((cell for cell in _cells(record) if not is_collective(cell.identity)), key=_order)


def collectives_of(record: Json) -> list[Cell]:
    """Every collective alone, in the order of the record: it computes nothing, so most tables leave it out."""
    return [cell for cell in _cells(record) if is_collective(cell.identity)]


def _cells(record: Json) -> list[Cell]:
    timed = [
        Cell(row["fullname"], identity_of(row), row["extra_info"], Times.of(row["stats"]["data"]))
        for row in record["benchmarks"]
    ]
    return [*timed, *map(_lost, timing_outcomes(record))]


def _lost(row: Json) -> Cell:
    return Cell(row["id"], identity_of(row), {}, outcome=row["outcome"], reason=row["reason"])


def _order(cell: Cell) -> tuple[Any, ...]:
    if cell.is_attention:
        place: tuple[Any, ...] = (order(cell.identity.get("head_dim")), order(cell.identity.get("sequence_length")))
    else:
        place = (size_order(cell), order(cell.identity.get("context_length")))
    names = (
        (cell.implementation != "naive", cell.implementation),
        (cell.label("precision") != "fp32", cell.label("precision")),
    )
    return cell.is_attention, place, *names, phase_order(cell), cell.id


def phase_order(cell: Cell) -> tuple[tuple[bool, int], str]:
    """Phases in the order of a training step, then all others."""
    return place_of(cell.phase), cell.phase


def order(value: object) -> tuple[int, float, str]:
    """A sort key of any value: numbers before words."""
    number = finite(value)
    return (0, number, "") if number is not None else (1, 0.0, str(value))


def size_order(cell: Cell) -> tuple[float, str]:
    """Smallest model first, by the parameters of its blocks; ours have four d x d and three d x d_ff matrices each."""
    shape = [finite(cell.identity.get(name)) for name in ("d_model", "d_ff", "num_layers")]
    if any(value is None for value in shape):
        return math.inf, cell.label("size")
    d_model, d_ff, num_layers = (value or 0.0 for value in shape)
    return num_layers * (4 * d_model * d_model + 3 * d_model * d_ff), cell.label("size")


def distinct(values: Iterable[str]) -> list[str]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))


def pairs_along(cells: Iterable[Cell], axis: str, base: str, other: str = "") -> list[tuple[Cell, Cell]]:
    """Each (cell at `base`, cell at `other`, or at any other) that differ only along `axis`."""
    follow = (axis, *OF_A_PHASE) if axis == "phase" else (axis,)
    groups: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        same = tuple(f"{name}={value}" for name, value in cell.identity.items() if name not in follow)
        groups.setdefault(same, {})[cell.phase if axis == "phase" else cell.label(axis)] = cell
    found = (of for of in groups.values() if base in of)
    return [(of[base], of[name]) for of in found for name in of if name != base and other in ("", name)]


def pass_cells(record: Json, name: str) -> list[Cell]:
    """The rows of one pass in the order of the record, then the cases without one."""
    found = [
        Cell(row["id"], row["identity"], row["values"])
        for row in rows_in(record, "passes")
        if row.get("pass") == name
        and isinstance(row.get("id"), str)
        and all(isinstance(row.get(part), dict) for part in ("identity", "values"))
    ]
    return found + [_lost(row) for row in rows_in(record, "outcomes") if row.get("pass") == name]


def labels_of(cell: Cell) -> tuple[str, ...]:
    """The case's text under each of `LABELS`; for attention alone, width and length."""
    if cell.is_attention:
        place = f"d {cell.label('head_dim')}", cell.label("sequence_length")
    else:
        place = cell.label("size"), cell.label("context_length")
    return (*place, cell.phase, cell.label("precision"), cell.implementation)


def name_of(cell: Cell) -> str:
    """The labels as a name on an axis or in a list."""
    return " ".join(label for label in labels_of(cell) if label)


def without_phase(cell: Cell) -> str:
    """The name of a configuration, whatever its phase."""
    size, context, _, *others = labels_of(cell)
    return " ".join(label for label in (size, context, *others) if label)


def last_phases(cells: Sequence[Cell]) -> list[Cell]:
    """The last phase of each configuration that has a row: a full step contains what the others hold."""
    known = (cell for cell in sorted(cells, key=phase_order) if not cell.outcome)
    last = {without_phase(cell): cell for cell in known}
    return [cell for cell in cells if last.get(without_phase(cell)) is cell]


def lost_row(cell: Cell, columns: int) -> tuple[str, ...]:
    """The row of a case that the pass lost: its outcome, and dashes in the other columns."""
    said = (*labels_of(cell), SHORT_OUTCOMES[cell.outcome])
    return (*said, *[DASH] * (columns - len(said)))


def lost_lines(cells: Iterable[Cell]) -> tuple[str, ...]:
    """A sentence for each case without a timing, or without a row of its pass."""
    return tuple(f"{case_name(cell.id)}: {OUTCOMES[cell.outcome]}: {cell.reason}" for cell in cells if cell.outcome)


def rows_in(values: Json, *names: str) -> Iterator[Json]:
    """The rows of a list that may be nested, missing or damaged."""
    found = inside(values, *names[:-1]).get(names[-1])
    return (row for row in (found if isinstance(found, list) else ()) if isinstance(row, dict))


def inside(values: Json, *names: str) -> Json:
    """The innermost of nested objects; empty where one is missing or damaged."""
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


# The conditions of a record's figures, in words.


def machine_name(record: Json) -> str:
    """The GPU, else the CPU with its count of cores, as the machine names them."""
    machine = record["machine_info"]
    gpu = (machine.get("torch") or {}).get("gpu")
    if gpu:
        return str(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu)
    cpu = machine.get("cpu") or {}
    count = finite(cpu.get("count"))
    cores = "" if count is None else f", {how_many(round(count), 'core')}"
    return f"{cpu.get('brand_raw') or machine.get('machine') or 'unknown CPU'}{cores}"


def machine_line(record: Json) -> str:
    facts = record["machine_info"].get("torch") or {}
    known = {
        "torch {}": facts.get("torch"),
        "driver {}": inside(facts, "gpu").get("driver"),
        "{} threads": facts.get("threads"),
        "deterministic algorithms": facts.get("deterministic_algorithms") is True,
    }
    parts = [words.format(value) for words, value in known.items() if value]
    environment = [f"{name}={value}" for name, value in sorted(inside(facts, "environment").items())]
    return ", ".join([machine_name(record), *parts, *environment])


def commit_of(record: Json) -> str:
    """The abbreviated revision, marked where the working tree had changes."""
    commit = record.get("commit_info")
    if not isinstance(commit, dict) or not commit.get("id"):
        return ""
    return str(commit["id"])[:12] + (" with changes" if commit.get("dirty") else "")


def date_of(record: Json) -> str:
    return str(record.get("datetime") or "")[:16].replace("T", " ")


def rounds_line(cells: list[Cell]) -> str:
    """Batch, warm-up and measured rounds, TF32 state: each value that occurs among these cells."""
    timed = [cell for cell in cells if cell.is_timed]
    found: dict[str, Iterable[str]] = {
        "batch {}": (cell.label("batch_size") for cell in cells),
        "{} measured rounds": (str(len(cell.rounds)) for cell in timed),
        "{} warm-up rounds": (_warmups(cell) for cell in timed),
        "{}": (optimizer_in_words(name) for cell in timed if (name := cell.label("optimizer"))),
        "float32 products {}": (str(cell.info.get("float32_matmul_precision") or "") for cell in timed),
        "SDPA backend {}": (str(cell.info.get("sdpa_backend") or "") for cell in timed),
    }
    known = {words: [value for value in distinct(values) if value] for words, values in found.items()}
    return ", ".join(words.format(" and ".join(values)) for words, values in known.items() if values)


def _warmups(cell: Cell) -> str:
    """As many as asked for; a GPU may have needed more to reach its clock rates."""
    asked, ran = cell.number("warmup_rounds"), cell.number("warmup_rounds_run")
    if asked is None:
        return ""
    return f"{'at least ' if ran is not None and ran > asked else ''}{asked:.0f}"


# Figures in as many digits as their spread allows.


GIB, MIB = 2**30, 2**20

SPREAD_DIGITS = 2
"""Significant digits of a standard deviation; the mean ends at the same place."""
EXACT_DIGITS = 4
"""Significant digits of a figure without a spread."""


def with_spread(value: float, spread: float | None) -> str:
    """`875 ± 12`; without a spread, or with none to see, four significant digits of the value alone."""
    if spread is None or not spread > 0 or not math.isfinite(spread) or not math.isfinite(value):
        return significant(value)
    places = _places(spread, SPREAD_DIGITS)
    return f"{_rounded(value, places)} ± {_rounded(spread, places)}"


def significant(value: float, digits: int = EXACT_DIGITS) -> str:
    """At least `digits` significant digits, never as a power of ten; whole numbers stay whole."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return _rounded(value, max(_places(value, digits), 0))


def _places(value: float, digits: int) -> int:
    """Decimal places that show `digits` significant digits of `value` as it reads once rounded: 0.0996 is 0.10."""
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return digits - 1 - exponent


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):.{max(places, 0)}f}"


def ratio_spread(
    ratio: float, spread_over: float | None, over: float, spread_under: float | None, under: float
) -> float:
    """Standard deviation of over / under from those of both, to first order and taken as independent."""
    return abs(ratio) * math.hypot((spread_over or 0.0) / over, (spread_under or 0.0) / under)


def figure_in(values: Json, name: str, factor: float = 1.0) -> str:
    """The figure of that name in another unit; a dash where there is none, here and below."""
    value = finite(values.get(name))
    return shown(None, "") if value is None else significant(value * factor)


def mean_in(values: Json, spread_name: str, factor: float) -> str:
    """The mean in another unit, beside its spread."""
    mean, spread = finite(values.get("mean_seconds")), finite(values.get(spread_name))
    return shown(None, "") if mean is None else with_spread(mean * factor, spread and spread * factor)


def mebibytes_in(values: Json, name: str) -> str:
    return figure_in(values, name, 1 / MIB)


def count_in(values: Json, name: str) -> str:
    return shown(finite(values.get(name)), "g")


def percent_in(values: Json, name: str) -> str:
    """Of a share, without the sign."""
    value = finite(values.get(name))
    return shown(value and value * 100, ".1f")


# A table as data, and as Markdown, LaTeX or Typst. A cell's content stays text in all of them.


@dataclass(frozen=True)
class Table:
    """The first `label_columns` say what a row is, the others hold figures."""

    name: str
    title: str
    header: tuple[str, ...]
    label_columns: int
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


PassRow = tuple[Cell, Json]
"""A case, and what a pass found of it."""


def pass_table(
    name: str, title: str, columns: Columns[Json], rows: Sequence[PassRow], notes: Sequence[str], words: int = 0
) -> Table | None:
    """Rows of an extra pass, each case's labels first; the first `words` columns are labels too. None without rows."""
    if not rows:
        return None
    header = (*LABELS, *columns)
    texts = tuple(
        lost_row(cell, len(header))
        if cell.outcome
        else (*labels_of(cell), *(text(values) for text in columns.values()))
        for cell, values in rows
    )
    return Table(name, title, header, len(LABELS) + words, texts, tuple(notes))


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, the title above and the conditions below."""
    lines: list[str] = []
    for table in tables:
        lines += [f"**{in_markdown(table.title)}**", "", *pipe_table(table.header, table.rows, table.label_columns)]
        lines += ["", *(f"- {in_markdown(note)}" for note in table.notes), ""]
    return "\n".join(lines)


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]], label_columns: int = 1) -> list[str]:
    """Lines of a Markdown table, labels to the left and figures to the right."""
    rule = [":---"] * label_columns + ["---:"] * (len(header) - label_columns)
    cells = [list(map(in_markdown, header)), rule, *(map(in_markdown, row) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def in_markdown(text: str) -> str:
    """Text on one line, with every character of markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>&|~$#!@])", r"\\\1", _one_line(text))


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip


def latex(tables: Sequence[Table]) -> str:
    r"""`table` environments for `\usepackage{booktabs}`, the conditions in a comment line above and in the caption."""
    return "\n".join([r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}", *map(_latex, tables)])


def _latex(table: Table) -> str:
    columns = "l" * table.label_columns + "r" * (len(table.header) - table.label_columns)
    caption = f"{_in_latex(table.title)}. {'; '.join(_in_latex(note) for note in table.notes)}."
    rows = "\n".join(map(_latex_row, table.rows))
    return rf"""\begin{{table}}
\centering
\caption{{{caption}}}
\label{{tab:{table.name.replace("_", "-")}}}
\begin{{tabular}}{{{columns}}}
\toprule
{_latex_row(table.header)}
\midrule
{rows}
\bottomrule
\end{{tabular}}
\end{{table}}
"""


def _latex_row(cells: Sequence[str]) -> str:
    # An empty group first: a row that began with a bracket would be read as an argument of the line break before it.
    return "{}" + " & ".join(map(_in_latex, cells)) + r" \\"


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in _one_line(text))


def typst(tables: Sequence[Table]) -> str:
    """Figures with a table each; every text is a string literal, in which Typst reads no markup."""
    return "\n".join(map(_typst, tables))


def _typst(table: Table) -> str:
    alignment = ", ".join("left" if i < table.label_columns else "right" for i in range(len(table.header)))
    rows = "\n".join(f"    {', '.join(map(_in_typst, row))}," for row in table.rows)
    return f"""#figure(
  table(
    columns: {len(table.header)},
    align: ({alignment},),
    table.header({", ".join(map(_in_typst, table.header))}),
{rows}
  ),
  caption: text({_in_typst(f"{table.title}. {'; '.join(table.notes)}.")}),
) <tab-{table.name.replace("_", "-")}>
"""


def _in_typst(text: str) -> str:
    return '"' + _one_line(text).replace("\\", r"\\").replace('"', r"\"") + '"'


def _one_line(text: str) -> str:
    """Line breaks and other control characters, lone surrogates among them, as spaces."""
    return " ".join(printable(text).split())


# The columns of the table `cases`: one row a case of one record, with everything that the record says of it.
#
# Names and units stay as they are; a new column goes to the end of its group.


Value = str | int | float | bool | None


@dataclass(frozen=True)
class Known:
    """What the columns of one case are read from."""

    cell: Cell
    record: Json
    record_name: str
    passes: Mapping[str, Json] = field(default_factory=dict)
    """By the name of an extra pass, what it found of the case."""


@dataclass(frozen=True)
class Column:
    """`kind` is `str`, `int`, `float` or `bool`; a cell that is not known is null, whatever its column holds."""

    name: str
    kind: type
    meaning: str
    of: Callable[[Known], object]

    def value(self, known: Known) -> Value:
        """Null where a damaged or hostile record has another kind of value there."""
        found = self.of(known)
        if self.kind is str:
            return None if found is None else str(found).encode("utf-8", "replace").decode()
        if self.kind is bool:
            return found if isinstance(found, bool) else None
        number = finite(found)
        if number is None or self.kind is float:
            return number
        return int(number) if number.is_integer() and abs(number) < 2**63 else None


def _of_case(name: str, kind: type, meaning: str) -> Column:
    """A field of the identity, or of what was recorded with it."""
    return Column(name, kind, meaning, lambda known: known.cell.identity.get(name, known.cell.info.get(name)))


def _rounds(name: str, kind: type, meaning: str, of: Callable[[Cell], object]) -> Column:
    """A figure of the measured rounds; null for a case without a timing."""
    return Column(name, kind, meaning, lambda known: of(known.cell) if known.cell.is_timed else None)


def _median_of(name: str, column: str, meaning: str, *inside_of: str) -> Column:
    """Of a list with a figure for each round."""

    def of(known: Known) -> object:
        found = inside(known.cell.info, *inside_of).get(name)
        values = [value for item in found if (value := finite(item)) is not None] if isinstance(found, list) else []
        return median(values) if values else None

    return Column(column, float, meaning, of)


def _of_record(name: str, kind: type, meaning: str, *path: str) -> Column:
    """A fact of the record, by its path there."""
    return Column(name, kind, meaning, lambda known: inside(known.record, *path[:-1]).get(path[-1]))


def _of_pass(name: str, kind: type, meaning: str, extra_pass: str, *path: str) -> Column:
    return Column(name, kind, meaning, lambda k: inside(k.passes.get(extra_pass, {}), *path[:-1]).get(path[-1]))


def _of_state(name: str, moment: str, meaning: str) -> Column:
    """`before` or `after` the rounds."""
    words = f"{meaning}, {moment} the rounds"
    return Column(f"{name}_{moment}", float, words, lambda known: inside(known.cell.info, moment).get(name))


def _end_of_interval(place: int) -> Callable[[Cell], object]:
    def of(cell: Cell) -> object:
        interval = cell.rounds.median_interval(0.95)
        return None if interval is None else interval[place]

    return of


_NUMBERS = {field.name: int for family in FAMILIES
            for field in family.__dataclass_fields__.values() if "int" in str(field.type)}  # fmt: skip

_MEANINGS = {
    "phase": "what is timed", "model": "`ours`, or a model of one's own", "size": "name of the shape",
    "d_model": "width", "d_ff": "width of the feed-forward part", "num_layers": "blocks", "num_heads": "heads",
    "vocab_size": "tokens in the vocabulary", "context_length": "tokens in a sequence of a language model",
    "batch_size": "sequences in a batch", "precision": "of the products", "attention": "implementation of attention",
    "execution": "of the whole model: eager, or a mode of torch.compile", "checkpoint": "activation checkpointing",
    "optimizer": "AdamW's implementation, in phases with a step", "zero_grad_policy": "when gradients are cleared",
    "device": "`cpu` or `cuda`", "model_args": "arguments of a model of one's own",
    "model_digest": "of these arguments and of a configuration", "head_dim": "width of attention alone",
    "sequence_length": "tokens in a sequence of attention alone", "cache": "`cold` where caches are flushed each round",
    "parallel": "how ranks share the model", "scaling": "`strong`: the ranks divide the batch; `weak`: each has one",
    "world": "ranks", "nodes": "machines of the ranks", "backend": "`gloo` or `nccl`, which carries their bytes",
    "collective": "exchange between ranks, without a model", "message_bytes": "of a collective, as asked for",
    "dtype": "of a collective's message",
}  # fmt: skip

WHERE = (
    Column("record", str, "folder and name of the record", lambda known: known.record_name),
    _of_record("run", str, "the run, however often it was saved", "suite", "run"),
    _of_record("written", str, "when the record was saved, ISO 8601", "datetime"),
    _of_record("commit", str, "git's hash", "commit_info", "id"),
    _of_record("commit_time", str, "when the commit was made, ISO 8601", "commit_info", "time"),
    _of_record("commit_has_changes", bool, "whether the working tree had changes", "commit_info", "dirty"),
    _of_record("source", str, "digest of the code", "suite", "source"),
    Column("device_name", str, "the GPU, else the CPU with its cores", lambda known: machine_name(known.record)),
    _of_record("driver", str, "of the GPU", "machine_info", "torch", "gpu", "driver"),
    _of_record("torch", str, "version", "machine_info", "torch", "torch"),
    _of_record("cuda", str, "version", "machine_info", "torch", "cuda"),
    _of_record("python", str, "version", "machine_info", "python_version"),
    _of_record("threads", int, "CPU threads of PyTorch", "machine_info", "torch", "threads"),
)

CASE = (
    Column("id", str, "node id of the benchmark", lambda known: known.cell.id),
    *(_of_case(name, _NUMBERS.get(name, str), meaning) for name, meaning in _MEANINGS.items()),
    _of_case("seed", int, "of weights and inputs"),
    _of_case("warmup_rounds", int, "unmeasured rounds asked for"),
    _of_case("warmup_rounds_run", int, "unmeasured rounds that ran"),
    _of_case("float32_matmul_precision", str, "`highest` is TF32 off"),
    _of_case("sdpa_backend", str, "kernel behind sdpa"),
)

OUTCOME = (
    Column("outcome", str, "`measured`, why there is no timing, or `not_timed` where only extra passes ran",
           lambda known: known.cell.outcome or "measured"),
    Column("reason", str, "the sentence of a case without a timing", lambda known: known.cell.reason or None),
    Column("flags", str, "remarks on the figure, separated by spaces",
           lambda known: " ".join(known.cell.flags) or None),
    _of_case("needed_bytes", int, "memory that a case without a timing needs at least"),
    _of_case("available_bytes", int, "memory that it may use"),
)  # fmt: skip

TIMES = (
    _rounds("rounds", int, "measured rounds", lambda cell: len(cell.rounds)),
    _rounds("median_seconds", float, "of the rounds", lambda cell: cell.median_seconds),
    _rounds("median_low_seconds", float, "lower end of its 95 % interval", _end_of_interval(0)),
    _rounds("median_high_seconds", float, "upper end", _end_of_interval(1)),
    _rounds("mean_seconds", float, "of the rounds", lambda cell: cell.mean_seconds),
    _rounds("stddev_seconds", float, "with n - 1", lambda cell: cell.std_seconds),
    _rounds("min_seconds", float, "fastest round", lambda cell: cell.rounds.ordered[0]),
    _rounds("max_seconds", float, "slowest round", lambda cell: cell.rounds.ordered[-1]),
    _rounds("p95_seconds", float, "95th percentile, from 100 rounds on", lambda cell: cell.percentile_seconds.get(95)),
    _rounds("p99_seconds", float, "99th percentile, from 100 rounds on", lambda cell: cell.percentile_seconds.get(99)),
    _median_of("device_seconds", "device_median_seconds", "in the device's stream, median"),
    _median_of("cpu_seconds", "cpu_median_seconds", "CPU time of the process in a round, median"),
    _of_case("device_busy_seconds", float, "of a round in which the device never waits for the host"),
    _median_of("sentinel_seconds", "sentinel_median_seconds", "of the product that shows the machine's drift, median"),
    *(_median_of(part, f"{part}_part_seconds", "part of a full step, median", "part_seconds")
      for part in PHASES["full_step"].timed),
    _of_case("first_setup_seconds", float, "first set-up, unmeasured"),
    _of_case("first_round_seconds", float, "first round, unmeasured"),
    _of_case("compile_seconds", float, "of the first round where it compiled"),
)  # fmt: skip

RATES = (
    _of_case("tokens_per_second", float, "at the median"),
    _of_case("tflops_per_second", float, "model FLOPs at the median"),
    _of_case("matmul_ceiling_tflops_per_second", float, "best square product here in this precision"),
    _of_case("share_of_matmul_ceiling", float, "of that rate, from 0 to 1"),
    _of_case("sustained_matmul_tflops_per_second", float, "the same under load"),
    _of_case("memory_ceiling_gigabytes_per_second", float, "memory traffic of large operations here"),
    _of_case("roofline_seconds", float, "least time of the case's kernels here"),
    _of_case("roofline_fraction", float, "roofline_seconds over median_seconds"),
    _of_case("launching_seconds", float, "predicted host time of its launches"),
    _of_case("bound", str, "`launch`, `compute` or `memory`"),
    _of_case("mfu", float, "model FLOPs utilisation against the datasheet"),
    _of_case("exchanged_bytes", int, "of a collective, after what the ranks cannot divide is cut"),
    _of_case("algorithm_bytes_per_second", float, "of a collective: exchanged_bytes over median_seconds"),
    _of_case("bus_bytes_per_second", float, "of a collective: what a rank must send over median_seconds"),
)

COUNTERS = (
    _of_case("parameters", int, "of the model"),
    _of_case("model_flops", int, "of a round, full T x T"),
    _of_case("executed_flops", int, "of a round, as its kernels do"),
    _of_case("kernel_launches", int, "of a round"),
    _of_case("bytes_touched", int, "of a round"),
    _of_case("saved_bytes", int, "for the backward pass"),
    _of_case("predicted_peak_bytes", int, "of a whole round"),
    _of_case("counters_reason", str, "why exact counters are not known"),
)

MEMORY = (
    _of_case("peak_allocated_bytes", int, "of the measured rounds"),
    _of_case("peak_reserved_bytes", int, "of the measured rounds"),
    _of_case("allocated_before_bytes", int, "before the first round"),
    _of_case("bytes_before_backward", int, "held before the backward pass"),
)

STATE = (
    _of_case("recompiles", int, "after the first warm-up round"),
    _of_case("compile_cache", str, "`warm` or `cold`"),
    _of_case("skipped_steps", int, "by the loss scaler"),
    _of_case("suggested_warmup_rounds", int, "where the warm-up was too short"),
    _of_case("energy_joules_per_round", float, "of the GPU, set-up included"),
    *(_of_state(name, moment, meaning) for moment in ("before", "after")
      for name, meaning in {"load_average_1min": "load", "cpu_clock_mhz": "clock", "sm_clock_mhz": "GPU clock",
                            "temperature_celsius": "GPU", "power_watts": "GPU", "usable_processors": "of the process",
                            "processor_quota": "share of their time", "memory_limit_bytes": "of the control group",
                            "booted_unix_seconds": "by the date; moves when that is set",
                            "suspended_seconds": "since the boot"}.items()),
)  # fmt: skip

PASS_COLUMNS = (
    _of_pass("traced_launches", int, "kernels pass: launches of a round", "kernels", "launches"),
    _of_pass("traced_kernel_seconds", float, "kernels pass: device time of a round", "kernels", "kernel_seconds"),
    _of_pass("traced_busy_share", float, "kernels pass: of the time the device works", "kernels", "busy_share"),
    _of_pass("traced_products_share", float, "kernels pass: matrix products in kernel time", "kernels",
             "matrix_products", "share_of_kernel_time"),
    _of_pass("memory_pass_peak_bytes", int, "memory pass: peak of allocated bytes", "memory", "peak_allocated_bytes"),
    _of_pass("memory_pass_predicted_bytes", int, "memory pass: its prediction", "memory", "predicted_peak_bytes"),
    _of_pass("recommended_warmup_rounds", int, "warm-up study", "warmup", "recommended_warmup_rounds"),
)  # fmt: skip

GROUPS = {
    "where": WHERE, "case": CASE, "outcome": OUTCOME, "times": TIMES, "rates": RATES, "counters": COUNTERS,
    "memory": MEMORY, "state": STATE, "passes": PASS_COLUMNS,
}  # fmt: skip
COLUMNS = {column.name: column for group in GROUPS.values() for column in group}

SPEEDUP = Column("speedup", float, "with --against-axis: median_seconds at its value over this row's", lambda _: None)

AXES = ("phase", "context_length", "batch_size", "precision", "attention", "execution", "checkpoint", "optimizer",
        "zero_grad_policy", "head_dim", "sequence_length", "cache", "model", "vocab_size")  # fmt: skip
"""Columns along which two cases may differ in nothing else."""


# The table `cases`: a row for each case of a record, a speed-up along an axis, and the table as text for people.


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


# Which rows and columns of the table `cases` are shown, in which order, and along which axis they are compared.


FOR_PEOPLE = (
    "size", "context_length", "head_dim", "sequence_length", "collective", "message_bytes", "world", "phase",
    "precision", "attention", "execution", "checkpoint", "outcome", "median_seconds", "tokens_per_second",
    "tflops_per_second", "bus_bytes_per_second", "bound",
)  # fmt: skip
"""The columns that fit a page, where none are asked for; without those that are empty in every row."""

MOST_SHOWN = 10
"""Values that a message lists."""


class ChoiceError(ValueError):
    """A choice that cannot be met; the message is one sentence."""


@dataclass(frozen=True)
class CaseChoice:
    """Empty fields choose everything, in the record's order."""

    columns: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    """Names of columns; `-` before one sorts it from the highest down."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns, each with the values that it may have."""
    against: tuple[str, str] | None = None
    """An axis, and the value that the others are compared with."""

    @property
    def is_made(self) -> bool:
        return self != CaseChoice()

    def shown_columns(self, rows: Sequence[Row], for_people: bool) -> list[str]:
        speedup = [SPEEDUP.name] if self.against else []
        if self.columns:
            return list(self.columns)
        if for_people:
            return [name for name in FOR_PEOPLE if any(row[name] is not None for row in rows)] + speedup
        return [*COLUMNS, *speedup]

    def rows_of(self, records: Sequence[StoredRecord]) -> list[Row]:
        """Raises ChoiceError for a value that no row has."""
        rows = [row for record in records for row in case_rows(record.data, record.name, self.against)]
        if self.against is not None and rows and all(row[SPEEDUP.name] is None for row in rows):
            axis, value = self.against
            raise ChoiceError(f"--against-axis {axis}={value}: no timed case has it; there are {_some(rows, axis)}.")
        left = rows
        for name, values in self.where:
            missing = next((value for value in values if not any(_is(row[name], value) for row in rows)), None)
            if missing is not None and rows:
                raise ChoiceError(f"--where {name}={missing}: no case has it; there are {_some(rows, name)}.")
            left = [row for row in left if any(_is(row[name], value) for value in values)]
        return _in_order(left, self.sort)


def add_choice(parser: ArgumentParser) -> None:
    """The options that choose from the table `cases`."""
    parser.add_argument("--columns", metavar="NAME,...", help="of cases: only these columns, in this order")
    parser.add_argument("--sort", metavar="NAME,...", help="of cases: by these columns; --sort=-NAME is descending")
    parser.add_argument(
        "--where", metavar="NAME=VALUE,...", action="append", default=[], help="of cases: only these; repeatable"
    )
    parser.add_argument("--against-axis", metavar="AXIS=VALUE", help="of cases: a column with the speed-up over VALUE")


def choice_of(arguments: Namespace) -> CaseChoice:
    """Raises ChoiceError naming the option."""
    against = None if arguments.against_axis is None else _axis(arguments.against_axis)
    known = [*COLUMNS, *([SPEEDUP.name] if against else [])]
    columns = tuple(_column("--columns", name, known) for name in _entries("--columns", arguments.columns))
    doubled = next((name for name in columns if columns.count(name) > 1), None)
    if doubled is not None:
        raise ChoiceError(f"--columns names {doubled} twice; name each column once.")
    sort = tuple(_entries("--sort", arguments.sort))
    for name in sort:
        _column("--sort", name.removeprefix("-"), known)
    return CaseChoice(columns, sort, tuple(_condition(text, known) for text in arguments.where), against)


def _entries(option: str, text: str | None) -> list[str]:
    found = [] if text is None else [entry.strip() for entry in text.split(",")]
    if "" in found:
        raise ChoiceError(f"{option} {text!r} has an empty entry; write names with commas in between.")
    return found


def _axis(text: str) -> tuple[str, str]:
    axis, equals, value = text.partition("=")
    if not equals or axis not in AXES:
        raise ChoiceError(f"--against-axis {text!r} is not AXIS=VALUE; the axes are {', '.join(AXES)}.")
    return axis, value


def _condition(text: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    if not equals:
        raise ChoiceError(f"--where {text!r} is not NAME=VALUE; write, for example, --where size=small,medium.")
    return _column("--where", name, known), tuple(value.strip() for value in values.split(","))


def _column(option: str, name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3) or [other for other in known if name and name in other][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/tables.md lists them."
    if name == SPEEDUP.name:
        hint = "it needs --against-axis AXIS=VALUE."
    raise ChoiceError(f"{option} {name!r} is no column of the table of cases; {hint}")


def _is(found: Value, text: str) -> bool:
    """Numbers by value, so that `1e9` finds a billion; an empty text is what is not known."""
    if found is None:
        return text == ""
    if isinstance(found, bool):
        return str(found).casefold() == text.casefold()
    if isinstance(found, str):
        return found == text
    try:
        return float(text) == found
    except ValueError:
        return False


def _some(rows: Sequence[Row], name: str) -> str:
    known = list(dict.fromkeys("unknown ones" if row[name] is None else f"{row[name]!s:.60}" for row in rows))
    rest = f" and {len(known) - MOST_SHOWN} others" if len(known) > MOST_SHOWN else ""
    return ", ".join(known[:MOST_SHOWN]) + rest


def _in_order(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """By the first name, then the next; unknown values come last either way."""
    ordered = list(rows)
    for word in reversed(names):
        name = word.removeprefix("-")
        known = [row for row in ordered if row[name] is not None]
        known.sort(key=lambda row, name=name: row[name], reverse=word.startswith("-"))  # type: ignore[misc]
        ordered = known + [row for row in ordered if row[name] is None]
    return ordered
