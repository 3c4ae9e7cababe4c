"""The tables of a write-up from one record: times, precisions, memory, attention, what each extra pass found."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from perf_tests_suite.perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests_suite.perf_tests.records import columns as figures
from perf_tests_suite.perf_tests.records import format as texts
from perf_tests_suite.perf_tests.records.columns import (
    LABELS,
    SHORT_OUTCOMES,
    CaseRow,
    found_in,
    inside,
    lost_lines,
    rows_in,
)
from perf_tests_suite.perf_tests.records.format import (
    BYTES,
    DASH,
    GIB,
    MIB,
    MICROSECONDS,
    MILLIONS,
    SECONDS,
    SHARE,
    Column,
    MeanAndStd,
    Table,
    Unit,
    distinct,
    finite,
    shown,
    significant,
    text_column,
)
from perf_tests_suite.perf_tests.records.record import FEWEST_FOR_PERCENTILES, PERCENTILES, Json, collected


def tables_of(record: Json, name: str) -> list[Table]:
    """Every table that the record has rows for, its conditions below, in the order of a write-up; `name` is its own."""
    cells = figures.cells_of(record)
    built = [build(cells) for build in TIMING_TABLES]
    for extra_pass, builders in PASS_TABLES.items():
        passed = figures.pass_cells(record, extra_pass)
        built += [build(passed) for build in builders]
    facts = (figures.machine_line(record), f"record {name}", figures.commit_of(record), figures.date_of(record))
    source = ", ".join(filter(None, facts))
    return [replace(table, notes=(*table.notes, source)) for table in built if table is not None]


PassColumns = Sequence[Column[Json]]


@dataclass(frozen=True)
class CaseTable:
    """A table of rows that `rows_of` gives for each case, each case's labels first.

    `columns` may follow from the rows, `notes` follow from all cases. A case that a pass lost has its outcome and
    dashes.
    """

    name: str
    title: str
    columns: PassColumns | Callable[[Sequence[Json]], PassColumns]
    rows_of: Callable[[CaseRow], Iterable[Json]]
    notes: Callable[[Sequence[CaseRow]], Iterable[str]]
    is_of_last_phases: bool = False

    def __call__(self, cells: Sequence[CaseRow]) -> Table | None:
        """Lay the rows out; None without any."""
        chosen = figures.last_phases(cells) if self.is_of_last_phases else cells
        rows = [(cell, row) for cell in chosen for row in self.rows_of(cell)]
        if not rows:
            return None
        columns = self.columns([row for _, row in rows]) if callable(self.columns) else self.columns
        laid = []
        for cell, row in rows:
            lost = (SHORT_OUTCOMES[cell.outcome], *[DASH] * (len(columns) - 1)) if cell.outcome else ()
            laid.append((*cell.labels, *(lost or (column.below(row) for column in columns))))
        header, words = [column.title for column in columns], frozenset(one.title for one in columns if one.kind is str)
        notes = tuple(self.notes(cells))
        return Table(self.name, self.title, (*LABELS, *header), len(LABELS), tuple(laid), notes, words)


# Times and peaks of the measured rounds.


GIB_FROM_BYTES = GIB / 8
"""The size from which on a table of peaks is in GiB, else in MiB."""

BASE_PRECISION = "fp32"
SPREAD_NOTE = "mean ± standard deviation of the measured rounds"
RATIO_NOTE = f"{SPREAD_NOTE}; the ratio is of means, its ± from those of both"


@dataclass(frozen=True)
class Label:
    """A column that names rows; one with a single value moves to the title unless `always` shown."""

    name: str
    of: Callable[[CaseRow], str]
    always: bool = False


SIZE = Label("Size", lambda cell: cell.label("size"), always=True)
CONTEXT = Label("Context", lambda cell: cell.label("context_length"), always=True)
IMPLEMENTATION = Label("Implementation", lambda cell: cell.implementation)
PRECISION = Label("Precision", lambda cell: cell.label("precision"))
PHASE = Label("Phase", lambda cell: cell.phase, always=True)
BATCH = Label("Batch", lambda cell: f"batch {cell.label('batch_size')}")
HEAD_DIM = Label("d", lambda cell: cell.label("head_dim"), always=True)
SEQUENCE = Label("Sequence", lambda cell: cell.label("sequence_length"), always=True)

MODEL_LABELS = (SIZE, CONTEXT, IMPLEMENTATION, PRECISION, BATCH)
ATTENTION_LABELS = (HEAD_DIM, SEQUENCE, PRECISION, BATCH)

Entry = tuple[CaseRow, str, str]
"""The cell that names the row, the column, and the text."""


def precision_table(cells: Sequence[CaseRow]) -> Table | None:
    labels = (SIZE, CONTEXT, PHASE, IMPLEMENTATION, BATCH)
    entries: list[Entry] = []
    chosen: list[CaseRow] = []
    models = (cell for cell in cells if not cell.is_attention)
    for base, other in figures.pairs_along(models, "precision", BASE_PRECISION):
        if base not in chosen:
            chosen.append(base)
            entries.append((base, f"{BASE_PRECISION} (ms)", milliseconds(base)))
        chosen.append(other)
        precision = other.label("precision")
        entries.append((base, f"{precision} (ms)", milliseconds(other)))
        entries.append((base, f"{BASE_PRECISION} / {precision}", ratio(base, other)))
    return _table("precision", "Speed-up over fp32", chosen, entries, RATIO_NOTE, labels)


def milliseconds(cell: CaseRow) -> str:
    """Mean and spread in ms, or the outcome of a case without a timing."""
    if not cell.is_timed:
        return SHORT_OUTCOMES[cell.outcome]
    deviation = cell.rounds.deviation
    return texts.with_spread(cell.rounds.mean * 1e3, deviation and deviation * 1e3)


def ratio(over: CaseRow, under: CaseRow) -> str:
    """Mean over mean, in as many digits as both spreads allow; a dash where one of them has no timing."""
    if not (over.is_timed and under.is_timed):
        return DASH
    above, below = over.rounds, under.rounds
    spread = texts.ratio_spread(above.mean / below.mean, above.deviation, above.mean, below.deviation, below.mean)
    return texts.with_spread(above.mean / below.mean, spread) if spread else significant(above.mean / below.mean, 3)


def _column(cell: CaseRow) -> str:
    """The phase; implementations of attention stand side by side, those of a model below each other."""
    return f"{cell.implementation} {cell.phase}" if cell.is_attention else cell.phase


def _timings(cells: Sequence[CaseRow], name: str, title: str, alone: bool) -> Table | None:
    chosen = [cell for cell in cells if cell.is_attention == alone]
    entries = [(cell, f"{_column(cell)} (ms)", milliseconds(cell)) for cell in chosen]
    return _table(name, title, chosen, entries, SPREAD_NOTE)


def _memory(cells: Sequence[CaseRow], name: str, title: str, alone: bool) -> Table | None:
    cells = [cell for cell in cells if cell.is_attention == alone]
    fields = {"peak_allocated_bytes": "", "predicted_peak_bytes": " predicted"}
    amounts = [amount for cell in cells for of in fields if (amount := cell.number(of)) is not None]
    if not amounts:
        return None
    divisor, unit = (GIB, "GiB") if min(amounts) >= GIB_FROM_BYTES else (MIB, "MiB")
    entries: list[Entry] = []
    for cell in cells:
        known = ((name, amount) for of, name in fields.items() if (amount := cell.number(of)) is not None)
        entries += [(cell, f"{_column(cell)}{name} ({unit})", significant(amount / divisor)) for name, amount in known]
        if cell.outcome:
            entries.append((cell, f"{_column(cell)} ({unit})", SHORT_OUTCOMES[cell.outcome]))
    is_measured = any(cell.number("peak_allocated_bytes") is not None for cell in cells)
    how = "in the measured rounds" if is_measured else "predicted (--memory measures it)"
    return _table(name, title, cells, entries, f"peak of allocated bytes {how}, 1 {unit} = {divisor:,} bytes")


def _table(
    name: str, title: str, cells: Sequence[CaseRow], entries: Sequence[Entry], note: str, labels: Sequence[Label] = ()
) -> Table | None:
    """Entries laid out by row and column, named by `labels` or those of the cells' kind; None without any."""
    if not entries:
        return None
    labels = labels or (ATTENTION_LABELS if cells[0].is_attention else MODEL_LABELS)
    values = {label.name: distinct(label.of(cell) for cell in cells) for label in labels}
    named = [label for label in labels if label.always or len(values[label.name]) > 1]
    said = [values[label.name][0] for label in labels if label not in named and values[label.name][0]]
    columns = distinct(column for _, column, _ in sorted(entries, key=lambda entry: entry[0].phase_place))
    laid = collected((tuple(label.of(cell) for label in named), (column, text)) for cell, column, text in entries)
    rows = []
    for key, of_row in laid.items():
        row = collected(of_row)
        # A record may hold a case twice; show both figures.
        rows.append((*key, *(" / ".join(row.get(column, [DASH])) for column in columns)))
    header = (*(label.name for label in named), *columns)
    notes = (note, *filter(None, [figures.rounds_line(list(cells))]), *lost_lines(cells))
    return Table(name, f"{title}{': ' if said else ''}{', '.join(said)}", header, len(named), tuple(rows), notes)


timing_table = partial(_timings, name="timing", title="Time by size and context", alone=False)
attention_table = partial(_timings, name="attention", title="Attention alone", alone=True)
memory_table = partial(_memory, name="memory", title="Peak memory by size and context", alone=False)
attention_memory_table = partial(_memory, name="attention_memory", title="Peak memory of attention alone", alone=True)
percentile_table = CaseTable(
    "percentiles", "Percentiles of the time of a round",
    [found_in(f"p{percent}", f"{percent}", unit=SECONDS) for percent in PERCENTILES],
    lambda cell: filter(None, [{f"{percent}": seconds for percent, seconds in cell.rounds.percentiles.items()}]),
    lambda cells: (f"of cases with at least {FEWEST_FOR_PERCENTILES} measured rounds",
                   figures.rounds_line([cell for cell in cells if cell.rounds.percentiles])),
)  # fmt: skip
TIMING_TABLES = (timing_table, percentile_table, precision_table, memory_table, attention_table, attention_memory_table)


# Where memory goes, as tables: peaks beside predictions, their parts, what is saved, the largest blocks.


MEMORY_NOTE = "each case in its own process, apart from the timings; 1 MiB = 1,048,576 bytes"
LARGEST = 5
"""Blocks of each case in a table."""


def _measured_over_predicted(row: Json) -> float | None:
    asked = "peak_allocated_bytes" if row.get("peak_requested_bytes") is None else "peak_requested_bytes"
    measured, predicted = (finite(row.get(name)) for name in (asked, "predicted_peak_bytes"))
    return measured / predicted if measured and predicted else None


PEAK: PassColumns = (
    found_in("peak", "peak_allocated_bytes"),
    found_in("predicted", "predicted_peak_bytes"),
    Column("measured / predicted", float, "", _measured_over_predicted, own_unit=Unit("{:.5f}".format)),
    found_in("reserved", "peak_reserved_bytes"),
)
SAVED: PassColumns = (
    text_column("Part", lambda row: row["part"]),
    Column("places", int, "", lambda row: len(row["amounts"])),
    Column("one_bytes", float, "", lambda row: sum(row["amounts"]) / len(row["amounts"]), heading="of one"),
    Column("together_bytes", float, "", lambda row: sum(row["amounts"]), heading="together"),
    Column("share", float, "", lambda row: sum(row["amounts"]) / row["whole"], heading="of all saved"),
)
BLOCK: PassColumns = (
    text_column("Line", lambda row: row.get("line")),
    text_column("Category", lambda row: row.get("category")),
    found_in("block", "bytes"),
)


def with_marks(values: Json) -> Json:
    """What a pass found, with the bytes that were held at each of its marks under the mark's name."""
    return values | {str(mark.get("name")): mark.get("allocated_bytes") for mark in rows_in(values, "marks")}


def _bytes_by_name(names: Iterable[str]) -> PassColumns:
    return [found_in(name, name, unit=BYTES) for name in distinct(names)]


def _live_at_peaks(cell: CaseRow) -> list[Json]:
    """What was measured, and what the counters predict, as far as there is any, by category."""
    kinds = {"measured": "peak_by_category_bytes", "predicted": "predicted_by_category_bytes"}
    return [{**held, "kind": kind} for kind, field in kinds.items() if (held := cell.inside(field))]


def _saved(cell: CaseRow) -> list[Json]:
    """What the forward pass saves for the backward pass, by part of the model; blocks of one kind together."""
    known = ((str(row.get("part")), finite(row.get("saved_bytes"))) for row in cell.rows("saved_bytes_by_part"))
    found = collected((part, amount) for part, amount in known if amount is not None)
    whole = sum(map(sum, found.values())) or 1.0
    most_first = sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
    return [{"part": part, "amounts": amounts, "whole": whole} for part, amounts in most_first]


def _memory_notes(cells: Sequence[CaseRow]) -> list[str]:
    """The note of the pass, each reason for a missing prediction once, and the reasons for missing peaks."""
    said = [cell.info.get("prediction_reason") for cell in cells]
    reasons = distinct(f"no prediction: {reason}" for reason in said if isinstance(reason, str))
    return [MEMORY_NOTE, *reasons, *lost_lines(cells)]


MEMORY_TABLES = (
    CaseTable("memory_pass", "Peak of allocated memory beside the predicted one",
              lambda rows: [*PEAK, *_bytes_by_name(
                  str(mark.get("name")) for row in rows for mark in rows_in(row, "marks"))],
              lambda cell: [with_marks(cell.info)], _memory_notes),
    CaseTable("memory_parts", "Peak memory by part of a round",
              [text_column("Part", lambda row: str(row.get("phase"))), *PEAK],
              lambda cell: cell.rows("parts"), _memory_notes),
    CaseTable("memory_categories", "What is held at the peak",
              lambda rows: [text_column("Peak", lambda row: row["kind"]),
                            *_bytes_by_name(name for row in rows for name in row if name != "kind")],
              _live_at_peaks, _memory_notes),
    CaseTable("saved", "Saved for the backward pass by part", SAVED, _saved, _memory_notes, is_of_last_phases=True),
    CaseTable("largest_blocks", "Largest blocks of memory", BLOCK,
              lambda cell: islice(cell.rows("largest_allocations"), LARGEST), _memory_notes, is_of_last_phases=True),
)  # fmt: skip


# What warm-up rounds do, as tables: times after so many of them, and what the first round is spent on.


WARMUP_NOTE = (
    "mean ± standard deviation; each number of warm-up rounds in its own process; first round and steady from: "
    "of the process without a warm-up, whose rounds agree from there on"
)
FIRST_ROUND_NOTE = "one profiled process: extra time of its first round over a steady one, by part"


def _warmup_columns(rows: Sequence[Json]) -> PassColumns:
    def after(name: str) -> Column[Json]:
        def mean(row: Json) -> MeanAndStd:
            series = row["by_name"].get(name, {})
            return MeanAndStd(series.get("mean_seconds"), series.get("std_seconds"))

        return Column(f"after_{name}_seconds", MeanAndStd, "", mean, heading=f"after {name}")

    outliers = text_column("outliers", _outliers)
    return [
        *map(after, distinct(chain(*(row["by_name"] for row in rows)))),
        Column("first_round_seconds", float, "", _first_round, heading="first round"),
        found_in("steady from", "by_name", "0", "steady_from_round"),
        found_in("recommended", "recommended_warmup_rounds"),
        *([outliers] if any(map(outliers.has_value, rows)) else []),
    ]


def _first_round(row: Json) -> float | None:
    return next(iter(figures.seconds_of(row["by_name"].get("0", {}), "seconds")), None)


def _outliers(row: Json) -> str:
    """The places of the outliers among the measured rounds, by the warm-up before them."""
    found = ((name, series.get("outliers")) for name, series in row["by_name"].items())
    known = ((name, of) for name, of in found if of and isinstance(of, list))
    return "; ".join(f"after {name}: round {', '.join(map(str, of))}" for name, of in known)


def _warmup_notes(cells: Sequence[CaseRow]) -> list[str]:
    """What the columns say, the warm-up that covers every case, and advice on each whose own is too short."""
    needed = ((finite(cell.info.get("recommended_warmup_rounds")), cell) for cell in cells)
    found = [(rounds, cell) for rounds, cell in needed if rounds is not None]
    covering = [f"{for_this_machine([(rounds, cell.name) for rounds, cell in found])}{_judged(found)}"] if found else []
    said = [(cell, str(cell.info.get("recommendation") or "")) for _, cell in found]
    short = [cell for cell, advice in said if advice and (cell.flags or " After " in advice)]
    advice = (f"{cell.name}: {cell.info['recommendation']}" for cell in short)
    return [WARMUP_NOTE, *covering, *advice, *lost_lines(cells)]


def _judged(found: Sequence[tuple[float, CaseRow]]) -> str:
    """Whether the warm-up that was configured is enough for all of them; empty where it is not known."""
    configured = max((cell.number("configured_warmup_rounds") or 0.0 for _, cell in found), default=0.0)
    if not configured:
        return ""
    is_enough = max(rounds for rounds, _ in found) <= configured
    return f"; {configured:.0f} {'covers every case of this study' if is_enough else 'is too few'}"


def series_name(series: Json) -> str:
    """The number of warm-up rounds, and whether they left out the timed phase."""
    name = shown(finite(series.get("warmup_rounds")), ".0f")
    return f"{name} without the timed phase" if series.get("leaves_out_timed_phase") is True else name


def for_this_machine(needed: Sequence[tuple[float, str]]) -> str:
    """The number of warm-up rounds that covers every case of a study, from what each of them needs."""
    most, name = max(needed, key=lambda pair: pair[0])
    return f"for this machine: --warmup-rounds {most:.0f}, which {name} needs"


def part_name(field: str) -> str:
    """`module loading` of `module_loading_seconds`."""
    return field.removesuffix("_seconds").replace("_", " ")


def first_round_parts(cell: CaseRow) -> dict[str, float]:
    """Seconds by name, from the process without a warm-up or the first that has them."""
    said = sorted(cell.rows("series"), key=lambda row: finite(row.get("warmup_rounds")) or 0.0)
    parts = next((found for row in said if (found := inside(row, "first_round_parts"))), {})
    return {name: value for name, seconds in parts.items() if (value := finite(seconds)) is not None}


WARMUP_TABLES = (
    CaseTable("warmup", "Time after warm-up rounds", _warmup_columns,
              lambda cell: [{**cell.info, "by_name": of}] if
              (of := {series_name(row): row for row in cell.rows("series")}) or cell.outcome else [], _warmup_notes),
    CaseTable("first_rounds", "What the first round of a process is spent on",
              lambda rows: [found_in(part_name(name), name, unit=SECONDS) for name in distinct(chain(*rows))],
              lambda cell: [parts] if (parts := first_round_parts(cell)) else [], lambda _: [FIRST_ROUND_NOTE]),
)  # fmt: skip


# Where the device time of a traced case goes, as tables: its kernels, launches and shares, one attention layer.


TOP_KERNELS = 10
NAME_CHARACTERS = 100
"""Characters shown of a kernel's name; names of C++ templates have thousands."""
TRACED_NOTE = "traced under a profiler after the timings: use the shares; times include the profiler's overhead"
WAYS = ("forward", "backward")


KERNEL: PassColumns = (
    text_column("Kernel", lambda row: str(row.get("name"))[:NAME_CHARACTERS]),
    found_in("calls", "calls"),
    found_in("total", "total_seconds"),
    Column("mean_seconds", MeanAndStd, "", lambda row: MeanAndStd(row.get("mean_seconds"), row.get("stddev_seconds")),
           heading="mean", own_unit=MICROSECONDS),
    found_in("of kernel time", "share"),
)  # fmt: skip
SHARES: PassColumns = (
    found_in("launches", "launches"),
    found_in("products", "matrix_products", "count"),
    found_in("round, not traced", "plain_wall_seconds"),
    found_in("kernels", "kernel_seconds"),
    found_in("device busy", "busy_share"),
    found_in("products of kernel time", "matrix_products", "share_of_kernel_time", unit=SHARE),
    *(found_in(f"softmax / products, {way}", "attention", way, "softmax_over_products_time", unit=Unit(significant))
      for way in WAYS),
)  # fmt: skip
PART_OF_ATTENTION: PassColumns = (
    text_column("Part", lambda row: str(row.get("part"))),
    found_in("launches", "launches"),
    found_in("device", "device_seconds", unit=MICROSECONDS),
    found_in("host", "host_seconds", unit=MICROSECONDS),
    found_in("MFLOP", "flops", unit=MILLIONS),
    found_in("MB", "bytes", unit=MILLIONS),
    text_column("bound by", lambda row: row.get("bound")),
)

share_table = CaseTable(
    "kernel_shares", "Launches and matrix-product share", SHARES,
    lambda cell: [cell.info], lambda cells: (TRACED_NOTE, *lost_lines(cells)),
)  # fmt: skip
kernel_table = CaseTable(
    "kernels", f"Kernels that take most, up to {TOP_KERNELS} of a case", KERNEL,
    lambda cell: islice(cell.rows("kernels"), TOP_KERNELS), lambda _: [TRACED_NOTE],
)  # fmt: skip
attention_part_table = CaseTable(
    "attention_parts", "One attention layer by part",
    [text_column("Direction", lambda row: row["way"]), *PART_OF_ATTENTION],
    lambda cell: ({"way": way, **part} for way in WAYS for part in cell.rows("attention", way, "parts")),
    lambda _: [TRACED_NOTE],
)  # fmt: skip
KERNEL_TABLES = (share_table, kernel_table, attention_part_table)


PASS_TABLES = {"kernels": KERNEL_TABLES, "memory": MEMORY_TABLES, "warmup": WARMUP_TABLES}
"""The tables of each extra pass: `tables` and the page have all of them, a screen those that it names."""


# How the memory of attention alone grows: bytes = (k L^2 + c L d) x batch x 4, by implementation.
#
# L is the sequence length, d the head width. k counts T x T matrices in float32 and is a whole number; c counts
# tensors
# of an input's shape. The remainder is neither: for example the causal mask, one byte for each pair of positions.


MOST_SQUARES = 32

FitCell = tuple[float, float, float]
"""L^2, L d and the float32 numbers for each of the batch, as shares of these numbers, so that no long cell decides."""


@dataclass(frozen=True)
class Fit:
    """The growth of one quantity of one implementation in one precision, over `cells` cells."""

    quantity: str
    implementation: str
    precision: str
    squares: int
    """k, whole."""
    tensors: float
    """c, at the k above."""
    worst_remainder: float
    """The largest difference between a cell and the fit, as a share of the cell."""
    cells: int


def attention_fits(cells: Sequence[CaseRow]) -> list[Fit]:
    """The fits of every implementation that has cells of two lengths; with fewer, any k would do."""
    alone = (cell for cell in cells if cell.is_attention and not cell.outcome)
    found = []
    for (attention, precision), of in collected(
        ((cell.label("attention"), cell.label("precision")), cell) for cell in alone
    ).items():
        forward, backward = ([cell for cell in of if cell.phase == way] for way in WAYS)
        for quantity, chosen, amount in (
            ("saved", forward or backward, _saved_bytes),
            ("forward peak", forward, lambda cell: cell.number("peak_allocated_bytes")),
            ("before backward", backward or forward, lambda cell: cell.number("memory_before_backward_bytes")),
            ("backward peak", backward, lambda cell: cell.number("peak_allocated_bytes")),
        ):
            known = [fit_cell for cell in chosen if (fit_cell := _fit_cell(cell, amount(cell))) is not None]
            if len({cell.number("sequence_length") for cell in chosen}) >= 2 and len(known) == len(chosen):
                found.append(Fit(quantity, attention, precision, *_least_squares(known), len(known)))
    return found


def _saved_bytes(cell: CaseRow) -> float | None:
    amounts = [finite(row.get("saved_bytes")) for row in cell.rows("saved_bytes_by_part")]
    return sum(filter(None, amounts)) if amounts and None not in amounts else None


def _fit_cell(cell: CaseRow, count: float | None) -> FitCell | None:
    """The cell of a fit; None where something of it is not known."""
    length, width, batch = (cell.number(name) for name in ("sequence_length", "head_dim", "batch_size"))
    if count is None or not length or not width or not batch:
        return None
    numbers = count / (batch * FLOAT32_BYTES)
    whole = max(numbers, 1.0)
    return length**2 / whole, length * width / whole, numbers / whole


def _least_squares(cells: Sequence[FitCell]) -> tuple[int, float, float]:
    """k, c and the worst remainder: of all k whose c of least squares is not negative, the one that leaves least."""
    fits = []
    for k in range(MOST_SQUARES + 1):
        c = sum(tensor * (whole - k * square) for square, tensor, whole in cells) / sum(of**2 for _, of, _ in cells)
        if c >= 0:
            fits.append((max(abs(k * square + c * tensor - whole) for square, tensor, whole in cells), k, c))
    remainder, k, c = min(fits, key=lambda fit: fit[0])
    return k, c, remainder
