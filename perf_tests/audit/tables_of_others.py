"""Published tables as labelled figures. In: a CSV. Out: `Timing`, `Memory` or `Kernel` rows.

Labels and figures are read. Columns that comment on a row (`note`, `status`, `sync`) are ignored.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_tests.audit.figures import Kernel, Memory, Timing, implementation_named, labelled_precision
from perf_tests.limits.datasheets import GIB
from perf_tests.limits.least_work import AttentionWork, ModelConfig, ModelWork, Work
from perf_tests.phases import PHASES, PHASES_OF_OTHERS
from perf_tests.records.words import without_path


@dataclass(frozen=True)
class Row:
    """One line, its values by column; readers raise ValueError with one sentence that names line and column."""

    place: str
    values: dict[str, str]

    @property
    def labels(self) -> tuple[str, str, str]:
        """Of every figure: place, series and GPU."""
        return self.place, self.text("source"), self.text("gpu")

    def text(self, column: str) -> str:
        return self.values.get(column, "").strip()

    def number(self, column: str) -> float | None:
        text = self.text(column)
        if not text or re.fullmatch(r"\d+ ?- ?\d+|up to \d+", text):  # a range is no figure
            return None
        try:
            value = float(text)
        except ValueError:
            raise ValueError(
                f"{self.place}: {column} is {text[:40]!r}, not a number; write the number without a unit."
            ) from None
        if not abs(value) < 1e15:
            raise ValueError(f"{self.place}: {column} is {text[:40]!r}; a figure must be finite and below 1e15.")
        return value

    def count(self, column: str) -> int | None:
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or value < 0:
            raise ValueError(f"{self.place}: {column} is {value:g}; it must be a whole number, 0 or more.")
        return int(value)

    def seconds(self, column: str, per_second: float = 1e3) -> float | None:
        value = self.number(column)
        return None if value is None else value / per_second

    def is_inferred(self, column: str) -> bool:
        return self.text(column).startswith("inferred") or "(inferred" in self.text(column.removesuffix("_basis"))

    def config(self) -> ModelConfig | str:
        """The model's shape, or why there is none."""
        columns = ("d_model", "d_ff", "n_layers", "vocab")
        shape = [self.count(column) for column in columns]
        missing = [column for column, value in zip(columns, shape, strict=True) if value is None]
        if missing:
            return f"no {' and '.join(missing)}"
        d_model, d_ff, layers, vocab = (value or 0 for value in shape)
        try:
            return ModelConfig(d_model, d_ff, layers, self.count("n_heads") or 1, vocab)
        except ValueError as error:
            return str(error).rstrip(".")


def label_of(text: str) -> str:
    """The author's label: `fp32` of `tf32(labelled fp32)`."""
    named = re.search(r"labelled (\w+)", text)
    return named[1] if named else text


_OTHER_NAMES = {
    phase.published_as: phase.name for phase in (*PHASES.values(), *PHASES_OF_OTHERS.values()) if phase.published_as
}


def _model_timing(row: Row) -> Timing:
    config, batch, context, phase = row.config(), row.count("batch"), row.count("context"), row.text("phase")
    work: ModelWork | str = f"no {'context' if batch else 'batch'}"
    if isinstance(config, str):
        work = config
    elif batch and context:
        work = ModelWork(row.text("size"), config, batch, context)
    return _timing(row, work, _OTHER_NAMES.get(phase, phase))


def _attention_timing(row: Row) -> Timing:
    batch, sequence, width = row.count("batch"), row.count("seq_len"), row.count("d_model")
    is_whole = batch and sequence and width
    work = AttentionWork(batch or 0, sequence or 0, width or 0) if is_whole else "no batch, seq_len or d_model"
    phase = re.split(r"[(+]", row.text("phase"))[0]  # without remarks on what else was timed
    known = f"attention_{phase}" if f"attention_{phase}" in PHASES else phase
    return _timing(row, work, known)


def _timing(row: Row, work: Work | str, phase: str) -> Timing:
    """`work`, or why it is not known."""
    precision = label_of(row.text("precision"))
    return Timing(
        *row.labels,
        gpu_is_inferred=row.is_inferred("gpu_basis"),
        work=None if isinstance(work, str) else work,
        without_work=work if isinstance(work, str) else "",
        precision_label=precision or "precision not stated",
        has_fp32_weights=labelled_precision(precision) in ("fp32", "tf32") or "amp" in precision,
        implementation=_implementation(row),
        phase=phase,
        seconds=row.seconds("mean_ms"),
        std_seconds=row.seconds("std_ms"),
        rounds=row.count("n_measured"),
    )


def _implementation(row: Row) -> str:
    """By the suite's own axes where the table has them; others say only whether they compiled."""
    attention, execution, checkpoint = (row.text(name) for name in ("attention", "execution", "checkpoint"))
    if attention:
        return implementation_named(attention, execution or "eager", checkpoint or "none")
    return "eager" if row.text("compiled").casefold() in ("no", "false", "0") else "compiled"


_UNIT_BYTES = {"B": (1, 1), "MB": (1e6, 2**20), "MB(1e6)": (1e6, 1e6), "MiB": (2**20, 2**20), "GB": (1e9, GIB)}
_UNIT_BYTES |= {"GiB": (GIB, GIB), "GiB(written GB)": (GIB, GIB)}


def _memory(row: Row) -> Memory:
    unit = row.text("unit")
    value = row.number("value")
    if value is not None and unit not in _UNIT_BYTES:
        raise ValueError(f"{row.place}: unit is {unit!r}; known: {', '.join(_UNIT_BYTES)}.")
    least, most = _UNIT_BYTES.get(unit, (math.nan, math.nan))
    return Memory(
        *row.labels,
        kind="attention" if row.text("object") == "attention" else "model",
        size=row.text("size"),
        width=row.count("d_model"),
        layers=row.count("n_layers"),
        batch_size=row.count("batch"),
        length=row.count("context"),
        precision_label=label_of(row.text("precision")),
        is_compiled=row.text("compiled") == "yes",
        mode=row.text("mode"),
        value_bytes=None if value is None else value * least,
        most_bytes=None if value is None else value * most,
    )


def _kernel(row: Row) -> Kernel:
    return Kernel(
        *row.labels,
        size=row.text("size"),
        context_length=row.count("context"),
        scope=row.text("scope"),
        name=row.text("kernel"),
        calls=row.count("calls"),
        total_seconds=row.seconds("total_ms"),
        average_seconds=row.seconds("avg_us", 1e6),
        percent=row.number("pct_of_gpu_time"),
    )


@dataclass(frozen=True)
class Kind:
    """One layout of table: the columns that it needs, the one that only it has, and the reader of a line."""

    columns: str
    signature: str
    read: Callable[[Row], Timing | Memory | Kernel]


KINDS = {
    "model timing": Kind(
        "gpu d_model d_ff n_layers vocab batch context precision compiled phase mean_ms", "d_ff", _model_timing
    ),
    "attention timing": Kind(
        "gpu batch d_model seq_len precision compiled phase mean_ms", "seq_len", _attention_timing
    ),
    "memory": Kind("gpu object d_model batch context precision compiled mode value unit", "mode", _memory),
    "kernels": Kind("gpu scope kernel calls total_ms avg_us pct_of_gpu_time", "kernel", _kernel),
}
UNJUDGED = ("warmup", "std_us")
"""Columns of numbers that no rule reads; a damaged one is refused all the same."""


def read_table(path: Path) -> tuple[str, list[Timing | Memory | Kernel]]:
    """A key of `KINDS` and the CSV's figures, all of its type. Raises ValueError with one sentence for other files."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            kind = _kind_of(path, header)
            figures = [KINDS[kind].read(row) for row in _rows(lines, header)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV: {without_path(error)}.") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    if not figures:
        raise ValueError(f"{path} has a header but no rows.")
    return kind, figures


def _rows(lines: Any, header: list[str]) -> Iterator[Row]:
    for values in lines:
        if values and len(values) != len(header):
            raise ValueError(f"line {lines.line_num} has {len(values)} values, the header has {len(header)} columns.")
        if values:
            row = Row(f"line {lines.line_num}", dict(zip(header, values, strict=True)))
            for column in UNJUDGED:
                row.number(column)
            yield row


def _kind_of(path: Path, header: list[str]) -> str:
    if not any(header):
        raise ValueError(f"{path} is empty.")
    by_columns = max(KINDS, key=lambda name: len({*KINDS[name].columns.split()} & {*header}))
    kind = next((name for name in reversed(KINDS) if KINDS[name].signature in header), by_columns)
    if len(header) == 1 and ";" in header[0]:
        raise ValueError(f"{path} separates its columns by semicolons; write commas.")
    missing = [column for column in KINDS[kind].columns.split() if column not in header]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}, read as a table of {kind}.")
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise ValueError(f"{path} has the columns {', '.join(twice)} twice.")
    return kind
