"""What the course's questions are answered from: records of one machine, exact counters, and published tables."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from model.sizes import SIZES as KNOWN_SIZES
from model.sizes import ModelConfig
from perf_tests.audit.rounds import slow_round
from perf_tests.records import columns as figures
from perf_tests.records.columns import Cell, cells_of, collectives_of, machine_line, machine_name, pairs_along
from perf_tests.records.format import GIB, MIB, finite, significant, with_spread
from perf_tests.records.ledger import LedgerKey, read_ledger
from perf_tests.records.published import published_rows
from perf_tests.records.record import Json, grouped, how_many
from perf_tests.records.store import StoredRecord, each_readable, record_files
from perf_tests.user_code.named import is_installed

ROOT = Path(__file__).parents[2]
LEDGER = "perf_tests/predict/exact_counters"
GIT_IGNORES = re.compile(r"-(CPython|PyPy)-")
"""Folders of records that are not committed."""
SIZES = ("small", "medium", "large", "xl", "2.7B")
E2E, MEMORY = "e2e_timing.csv", "memory.csv"
ATTENTION_BATCH = 8
FP32, BF16 = "fp32", "bf16"
UNITS = {"ms": 1e3, "us": 1e6, "MiB": 1 / MIB, "GiB": 1 / GIB, "TFLOP": 1e-12}
"""How many of each unit a second, a byte or a FLOP is."""
NAME_CHARACTERS = 60
"""Shown of a kernel's name, which may be a page of template arguments."""


@dataclass(frozen=True)
class Figure:
    """A text in a row, which is named by its labels, and a column."""

    row: tuple[str, ...]
    column: str
    text: str
    file: str = ""
    """The file that it comes from; several files with commas between them."""


@dataclass(frozen=True)
class PeakBeside:
    """A published peak, and what is predicted under the conditions of its code, in the source's own unit."""

    source: str
    size: str
    context: int
    precision: str
    mode: str
    published: str
    unit: str
    predicted: float


@dataclass(frozen=True)
class Counted:
    """Figures that take no measurement: steps counted on fake tensors, and exercises computed at once."""

    figures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)
    peaks: Sequence[PeakBeside] = ()


Fits = Callable[[Cell], object]
Labels = Sequence[str]
"""What the labels of a row are, such as `Size`."""


@dataclass(frozen=True)
class Sources:
    """The files below `root`; `left_out` has a sentence for each file that is not a record."""

    root: Path
    counted: Counted = field(default_factory=Counted)
    left_out: list[str] = field(default_factory=list)
    takes_ignored: bool = False
    """Whether folders that git ignores are read too, into which a run saves its record."""
    passed_over: list[str] = field(default_factory=list)
    """A sentence for each folder with sound records that answer nothing; complete once `records` are read."""

    @cached_property
    def records(self) -> list[StoredRecord]:
        """Records of the machine that has the newest one, newest first; one folder may hold those of several."""
        paths = record_files((Path() if is_installed(self.root) else self.root) / ".benchmarks")
        ignored = [path for path in paths if not self.takes_ignored and GIT_IGNORES.search(path.parent.name)]
        found = list(each_readable((path for path in paths if path not in ignored), self.left_out))
        found.sort(key=lambda record: (str(record.data.get("datetime")), record.name), reverse=True)
        places = [(record.path.parent, machine_name(record.data)) for record in found]
        for why, folders in {
            "git ignores them; -o FILE takes them": [path.parent for path in ignored],
            "of another folder or machine than the newest record": [place[0] for place in places if place != places[0]],
        }.items():
            for folder, count in Counter(folders).items():
                self.passed_over.append(f"{how_many(count, 'record')} in .benchmarks/{folder.name}: {why}.")
        return [record for record, place in zip(found, places, strict=True) if place == places[0]]

    @property
    def machines(self) -> list[str]:
        """Lines that name each record and its machine."""
        return [f"{_file(record)}: {machine_line(record.data)}" for record in self.records]

    def timed(self, fits: Fits = bool) -> list[Cell]:
        """Return the newest timing of each case and collective, or why it has none."""
        return self._newest(lambda data: [*cells_of(data), *collectives_of(data)], fits)

    def passed(self, name: str, fits: Fits = bool, or_lost: bool = False) -> list[Cell]:
        """Return the newest result of that pass for each case, or the outcome that it has instead."""
        found = self._newest(lambda data: figures.pass_cells(data, name), fits)
        return [cell for cell in found if or_lost or not cell.outcome]

    def _newest(self, read: Callable[[Json], Iterable[Cell]], fits: Fits) -> list[Cell]:
        """Find each case once: its test, and its identity without nulls, which an older record lacks.

        A newer record goes before an older one, and any result before an outcome without one.
        """
        newest: dict[str, Cell] = {}
        for record in self.records:
            for cell in filter(fits, read(record.data)):
                known = {name: value for name, value in cell.identity.items() if value is not None}
                key = f"{cell.id} {known}"
                if key not in newest or (newest[key].outcome and not cell.outcome):
                    newest[key] = replace(cell, file=_file(record))
        return list(newest.values())

    def pairs(self, axis: str, base: str, other: str, fits: Fits = bool) -> list[tuple[Cell, Cell]]:
        """Pair timed cases that differ along one axis alone, each pair from one record, the newest that has it.

        Never from two: two launches of the same code differ by more than their rounds.
        """
        found: dict[str, tuple[Cell, Cell]] = {}
        for record in self.records:
            cells = [replace(cell, file=_file(record)) for cell in cells_of(record.data) if cell.is_timed]
            for pair in pairs_along(filter(fits, cells), axis, base, other):
                found.setdefault(pair[0].id, pair)
        return list(found.values())

    @cached_property
    def ledger_name(self) -> str:
        """Path of the ledger of the newest torch version, below `root`."""
        names = [path.name for path in (self.root / LEDGER).glob("torch-*.csv")]
        return f"{LEDGER}/{sorted(names, key=lambda name: [int(one) for one in re.findall(r'[0-9]+', name)])[-1]}"

    @cached_property
    def _ledger(self) -> dict[LedgerKey, dict[str, int | None]]:
        return read_ledger(self.root / self.ledger_name)

    def counter(self, phase: str, case_id: str, name: str) -> int:
        """Read one counter of the ledger. Raises KeyError for a case that it lacks."""
        value = self._ledger[phase, case_id][name]
        if value is None:
            raise KeyError(f"{self.ledger_name} has no {name} of {phase} {case_id}")
        return value

    def published(self, name: str) -> list[dict[str, str]]:
        """Return the rows of `published/NAME`."""
        return _rows(name, self.root / "published")

    @property
    def shapes(self) -> dict[str, ModelConfig]:
        """Return the course's sizes of the 2025 edition, smallest first."""
        return {size: KNOWN_SIZES[size] for size in SIZES}


_rows = cache(published_rows)


def _file(record: StoredRecord) -> str:
    return f".benchmarks/{record.path.parent.name}/{record.path.name}"


def kernel_name(row: Mapping[str, object]) -> str:
    return str(row.get("kernel") or row.get("name"))[:NAME_CHARACTERS]


def percent(value: object, places: int = 1) -> str:
    """Format a share as a percentage; nothing for what is no number."""
    known = finite(value)
    return "" if known is None else f"{known:.{places}%}"


def in_unit(value: object, column: str = "", digits: int = 4, unit: str = "") -> str:
    """Format a value in `unit`, or in the one that ends its header in parentheses; nothing for what is no number."""
    known, named = finite(value), re.search(r"\((\w+)\)$", column)
    unit = unit or (named[1] if named else "")
    return "" if known is None else significant(known * UNITS.get(unit, 1.0), digits)


# Figures of the five write-ups and of others, as their sources print them.

NOT_STATED = "not stated"
NAMES = {"charliesabino/cs336-assignment2": "write-up 004"}
"""A write-up that one table lists by its repository."""
MIXED = ("bf16_amp", "fp16_amp", "fp16_amp?")
"""What published tables call mixed precision."""
COLUMNS = {
    "Size": "size", "Context": "context", "Phase": "phase", "Pass": "scope", "Precision": "precision",
    "Width": "d_model", "Length": "seq_len",
}  # fmt: skip
"""The column of a published table that has each label."""
OUR_WORDS = {"fwd_bwd": "forward_backward", "full pass": "full_step"}
"""What published tables call phases."""
Where = Mapping[str, str | Sequence[str]]
"""The value of a column or text, or one of several."""


class Printed(dict[str, str]):
    """A row of a published table; besides its columns it has the texts of `PRINTED`, which are made of them."""

    def __missing__(self, name: str) -> str:
        return PRINTED[name](self)


def printed(sources: Sources, file: str, whose: str = "write-ups", where: Where | None = None) -> list[Printed]:
    """Return rows that fit of a table: those of the five write-ups, of `anyone`, or of one source."""
    return [
        row
        for row in map(Printed, sources.published(file))
        if whose in ("anyone", row["source_name"]) or (whose == "write-ups" and is_write_up(row))
        if all(row[one] == fit if isinstance(fit, str) else row[one] in fit for one, fit in (where or {}).items())
    ]


def is_write_up(row: Printed) -> bool:
    return row["source_name"].startswith("write-up ")


def write_ups(sources: Sources) -> list[tuple[str, str, str]]:
    """Return name, repository and GPUs of each of the five, as their tables name them."""
    repositories: dict[str, str] = {name: repository for repository, name in NAMES.items()}
    cards: dict[str, list[str]] = {}
    for row in printed(sources, E2E):
        name = row["source_name"]
        if inside := re.search(r"\(([\w.-]+/[\w.-]+)", row["source"]):
            repositories.setdefault(name, inside[1])
        known = cards.setdefault(name, [])
        card = row["gpu"].partition(" (")[0] + ("" if row["gpu_basis"].startswith("stated") else ", inferred")
        known += [card] if card not in known else []
    return [(name, repositories.get(name, NOT_STATED), ", ".join(cards[name])) for name in sorted(cards)]


def table(
    sources: Sources, labels: Labels, file: str, columns: Mapping[str, str], rows: Labels = (),
    whose: str = "write-ups", where: Where | None = None, each: Sequence[str] = (),
) -> list[Figure]:  # fmt: skip
    """Lay out columns of each row that fits; with `each`, only columns that have a figure in each of those rows.

    `rows` replaces what the labels are: columns, words, or texts in braces.
    """
    found = [
        Figure(_place(row, rows or labels), header.format_map(row), row[name], f"published/{file}")
        for row in printed(sources, file, whose, where)
        for header, name in columns.items()
    ]
    full = [{figure.column for figure in found if figure.row == (row,) and figure.text} for row in each]
    return [figure for figure in found if all(figure.column in columns for columns in full)]


def _place(row: Printed, labels: Labels) -> tuple[str, ...]:
    """Return the row's labels in our words. What is no column stands for itself, with texts of the row for braces."""
    texts = []
    for label in labels:
        name = COLUMNS.get(label, label)
        value = row.get(name, name.format_map(row))
        texts.append(OUR_WORDS.get(value, value).removesuffix("_amp") or NOT_STATED)
    return tuple(texts)


def ratios(
    sources: Sources, labels: Labels, file: str, along: str, base: str, other: str, column: str,
    whose: str = "write-ups", where: Where | None = None,
) -> list[Figure]:  # fmt: skip
    """Divide times at `base` by those at `other`, of rows of one source that differ along that column alone."""
    rows = printed(sources, file, whose, {**(where or {}), along: (base, other)})
    same = [name for name in rows[0] if name not in (along, "mean_ms", "std_ms", "precision_that_ran")] if rows else []
    groups: dict[tuple[str, ...], dict[str, Printed]] = {}
    for row in rows:
        if _ms(row) > 0:
            groups.setdefault(tuple(row[name] for name in same), {}).setdefault(row[along], row)
    both = ((of[base], of[other]) for of in groups.values() if {base, other} <= of.keys())
    return [
        Figure(_place(one, labels), column.format_map(one), significant(_ms(one) / _ms(two), 3), f"published/{file}")
        for one, two in both
    ]


def mixed_ratios(
    sources: Sources, labels: Labels, phase: str, said: str = "", with_times: bool = False
) -> Iterator[Figure]:
    """Divide fp32 by mixed precision of one source and card, after the times that a ratio is made of if asked."""
    where: Where = {"warm_eager": "yes", "phase": phase}
    for mixed in MIXED:
        header = f"{{whose}}, fp32 / {mixed.removesuffix('?').removesuffix('_amp')}{said}"
        found = ratios(sources, labels, E2E, "precision", FP32, mixed, header, where=where)
        places, columns = {figure.row for figure in found}, {figure.column for figure in found}
        for row in printed(sources, E2E, where={**where, "precision": (FP32, mixed)}) if with_times else ():
            if _place(row, labels) in places and header.format_map(row) in columns:
                column = f"{row['whose']}, {row['precision']}{said} (ms)"
                yield Figure(_place(row, labels), column, row["time"], f"published/{E2E}")
        yield from found


def published_rates(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Return TFLOP/s of forward passes whose size, and so whose FLOPs, are known."""
    where = {"warm_eager": "yes", "phase": "forward", "precision": "fp32", "sync": "yes", "size": tuple(sources.shapes)}
    for row in printed(sources, E2E, where=where):
        if row["context"] and row["mean_ms"]:
            flops = sources.counter("forward", f"{row['size']}-ctx{row['context']}-fp32-naive", "model_flops")
            column, files = f"{row['whose']} (TFLOP/s)", f"published/{E2E}, {sources.ledger_name}"
            yield Figure(_place(row, labels), column, significant(flops / _ms(row) / 1e9, 3), files)


def profiled_and_timed(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Return times under a profiler, which have one round, and those of the same model without."""
    rows = printed(sources, E2E, where={"warm_eager": "yes", "phase": "forward", "precision": "fp32"})
    model = itemgetter("source", "gpu", "size")
    profiled = {model(row) for row in rows if row["n_measured"] == "1"}
    for row in rows:
        if model(row) in profiled:
            column = f"{row['whose']}, {'profiled' if row['n_measured'] == '1' else 'timed'} (ms)"
            yield Figure(_place(row, labels), column, row["time"], f"published/{E2E}")


def exponents(points: Iterable[tuple[str, int, int, float, str]]) -> Iterator[Figure]:
    """Return log(time ratio) / log(length ratio) of neighbours among (column, width, length, time, file)."""
    for (column, width), of in groupby(sorted(points), key=lambda point: point[:2]):
        for (_, _, short, before, _), (_, _, long, after, file) in pairwise(of):
            if long > short:
                power = math.log(after / before) / math.log(long / short)
                yield Figure((str(width), f"{short} to {long}"), column, f"{power:.2f}", file)


def published_exponents(sources: Sources, _: Labels, **where: Any) -> Iterator[Figure]:
    """Return the power of the length with which published times of attention grow."""
    file = "attention_timing.csv"
    return exponents(
        (
            f"{row['whose']}, {row['phase'].partition('(')[0]}", int(row["d_model"]), int(row["seq_len"]), _ms(row),
            f"published/{file}",
        )
        for row in printed(sources, file, where=where)
        if _ms(row) > 0
    )  # fmt: skip


def _ms(row: Printed) -> float:
    return float(row["mean_ms"] or 0)


def median_ratios(sources: Sources, labels: Labels, **options: Any) -> Iterator[Figure]:
    """Return the median over every source that has both, and how many those are."""
    for row, of in grouped(ratios(sources, labels, column="", **options), attrgetter("row")).items():
        middle = median(float(figure.text) for figure in of)
        yield Figure(row, "published: median", significant(middle, 3), of[0].file)
        yield Figure(row, "published: sources", str(len(of)), of[0].file)


def _source_name(row: Printed) -> str:
    """`write-up 001`; another source by its repository."""
    found = re.match(r"write-up \d+", row["source"])
    repository = row["source"].partition(":")[0].partition(" (")[0]
    return found[0] if found else NAMES.get(repository, repository)


def _source_and_card(row: Printed) -> str:
    """`write-up 001, T4-16GB`, as far as the card is known."""
    card = row.get("gpu", "").partition(" (")[0]
    is_known = card and "unknown" not in card and NOT_STATED not in card
    return f"{row['source_name']}, {card}" if is_known else row["source_name"]


def _time(row: Printed) -> str:
    """The mean as printed, rounded to its spread where there is one; else the status."""
    if row["mean_ms"] and row["std_ms"]:
        return with_spread(_ms(row), float(row["std_ms"]))
    return row["mean_ms"] or row["status"]


def _slow_over_usual(row: Printed) -> str:
    pair = slow_round(_ms(row), float(row["std_ms"]), int(row["n_measured"]))
    return significant(pair[1] / pair[0], 3) if pair else ""


def _softmax_ratio(row: Printed) -> str:
    products = float(row["qk_time"] or 0) + float(row["av_time"] or 0)
    return row["ratio_softmax_to_matmul"] or significant(float(row["softmax_time"]) / products, 3)


def _kernel_kind(row: Printed) -> str:
    if row["kernel"].startswith(("ALL", "gap", "CUDA")):
        return "summary"
    return "product" if "gemm" in kernel_name(row) else "other"


PRINTED: dict[str, Callable[[Printed], str]] = {
    "source_name": _source_name,
    "whose": _source_and_card,
    # Times
    "time": _time,
    # Whether it ran eagerly after a warm-up; those without one are another question's.
    "warm_eager": lambda row: "yes" if row["compiled"] == "no" and row["warmup"] not in ("0", "1") else "no",
    "warm": lambda row: "no" if row["warmup"] in ("0", "1") else "yes",
    "layer_milliseconds": lambda row: (
        significant(_ms(row) / int(row["n_layers"]), 3) if row["mean_ms"] and row["n_layers"] else ""
    ),
    "scatter": lambda row: percent(float(row["std_ms"]) / _ms(row)) if row["std_ms"] else "",
    "slow_over_usual": _slow_over_usual,
    # Attention alone: a batch that is not ours, and what else was timed, `lm_head only + optimizer`
    "other_batch": lambda row: f", batch {row['batch']}" * (row["batch"] != str(ATTENTION_BATCH)),
    "beside": lambda row: (
        f", {said}" if (said := row["phase"].partition("(")[2].replace(")+", " + ").rstrip(")").lstrip("+")) else ""
    ),
    "other_batch_or_beside": lambda row: row["other_batch"] or row["beside"],
    # Kernels
    "kernel_name": kernel_name,
    "kernel_kind": _kernel_kind,
    "share": lambda row: row["pct_of_gpu_time"] and f"{row['pct_of_gpu_time']}%",
    "size_and_context": lambda row: f"{row['size'] or NOT_STATED} {row['context']}".strip(),
    "attention_part": lambda row: row["kernel"].partition(", ")[0],
    "attention_clock": lambda row: row["kernel"].rpartition(", ")[2],
    "scope_pass": lambda row: row["scope"].partition(" ")[0],
    "scope_said": lambda row: f", {said}" if (said := row["scope"].partition(" (")[2].rstrip(")")) else "",
    "products_share": lambda row: f"{row['gemm_pct']}%",
    "softmax_ratio": _softmax_ratio,
    # The first part of a note, without quotations
    "basis_said": lambda row: (
        f", {said}" if (said := row["note"].partition(";")[0]) and not said.startswith("'") else ""
    ),
    # Memory
    "bare_unit": lambda row: row["unit"].partition("(")[0],
    "bare_mode": lambda row: row["mode"].partition("(")[0],
    "counted_by": lambda row: row["mode"].partition("(")[2].replace(")", ""),
    # `10 MB` of `bucketed 10MB`
    "impl_bucket": lambda row: row["impl"].removeprefix("bucketed ").replace("MB", " MB"),
    "execution": lambda row: "compiled" if row["compiled"] == "yes" else "eager",
}
"""Texts of a row beside its columns, under the names that questions use."""


def _same_kernel(here: Sequence[Figure], _: Sequence[Figure]) -> str:
    names = {figure.text for figure in here}
    return "" if len(here) < 2 else "Here it is the same." if len(names) == 1 else "Here they differ."


def _gain_rises(_: Sequence[Figure], published: Sequence[Figure]) -> str:
    """Count columns with more than one size at a context in which the largest gains most."""
    columns = grouped(published, lambda figure: (figure.column, figure.row[1])).values()
    series = [[float(figure.text) for figure in of] for of in columns if len(of) > 1]
    rising = sum(values[-1] == max(values) for values in series)
    said = f"The largest size gains most in {rising} of the {len(series)} published series at one context."
    return said if series else ""


SENTENCES = {"same_kernel": _same_kernel, "gain_rises": _gain_rises}
THEIRS: dict[str, Callable[..., Iterable[Figure]]] = {
    reader.__name__: reader
    for reader in (ratios, mixed_ratios, published_rates, profiled_and_timed, published_exponents, median_ratios)
}
"""What `from` names besides the readers of ours."""
