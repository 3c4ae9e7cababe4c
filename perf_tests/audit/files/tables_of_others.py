"""Published tables as labelled figures. In: a CSV. Out: `Timing`, `Memory` or `Kernel` rows, one at a time.

Labels and figures are read. Columns that comment on a row (`note`, `status`, `sync`) are ignored.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perf_tests.audit.figures import (
    NO_PRECISION,
    TILED,
    Kernel,
    Memory,
    Timing,
    attention_of,
    covers_the_square,
    implementation_named,
    is_another_model,
)
from perf_tests.audit.figures import labelled_precision as precision_named
from perf_tests.audit.files.csv_rows import Row, header_and_lines, open_table
from perf_tests.audit.files.headers import ATTENTION_TIMING, KERNELS, MEMORY, MODEL_TIMING, Names, layout_of
from perf_tests.audit.files.phase_words import PhaseColumns, phase_of, phase_of_attention, phases_in
from perf_tests.audit.files.units import UnreadableError
from perf_tests.audit.finding import NotJudged
from perf_tests.limits.least_work import AttentionWork, ModelConfig, ModelWork, Work
from perf_tests.phases import PHASES

Figure = Timing | Memory | Kernel

_YES, _NO = ("yes", "true", "1", "y", "compiled", "torch.compile"), ("no", "false", "0", "n", "eager", "none", "")
_NO_CHECKPOINT = ("", "-", "0", "no", "none", "off", "false")
_NO_WINDOW = ("", "-", "0", "-1", "no", "none", "None", "False", "false", "full")


@lru_cache(maxsize=4096)
def label_of(text: str) -> str:
    """The author's label: `fp32` of `tf32(labelled fp32)`."""
    named = re.search(r"labelled (\w+)", text)
    return named[1] if named else text


_OF_A_MODEL = ("size", "d_model", "d_ff", "n_layers", "n_heads", "vocab", "batch", "context")
_OF_ATTENTION = ("batch", "seq_len", "d_model", "heads")
_MOST_WORKS = 65536


def _work(row: Row, columns: tuple[str, ...], read: Callable[[Row], Work | str]) -> Work | str:
    """Equal cells give one object."""
    key, works = tuple([row.text(column) for column in columns]), row.layout.works
    if key not in works:
        if len(works) >= _MOST_WORKS:
            works.clear()
        works[key] = read(row)
    found: Work | str = works[key]
    return found


def _model_work(row: Row) -> ModelWork | str:
    """The work, or why it is not known. Limits are lower ones: a vocabulary that is not stated counts as one token."""
    columns = ("d_model", "d_ff", "n_layers")
    shape = [row.count(column) for column in columns]
    batch, context = row.count("batch"), row.count("context")
    heads, vocab = row.count("n_heads"), row.count("vocab")
    missing = [column for column, value in zip(columns, shape, strict=True) if value is None]
    if missing:
        return f"no {' and '.join(missing)}"
    d_model, d_ff, layers = (value or 0 for value in shape)
    try:
        config = ModelConfig(d_model, d_ff, layers, heads or 1, 1 if vocab is None else vocab)
    except ValueError as error:
        return str(error).rstrip(".")
    if not (batch and context):
        return f"no {'context' if batch else 'batch'}"
    if is_another_model(row.text("size")):
        return f"{row.text('size')!r} is another architecture than the suite's"
    return ModelWork(row.text("size"), config, batch, context)


def _attention_work(row: Row) -> AttentionWork | str:
    batch, length, width = row.count("batch"), row.count("seq_len"), row.count("d_model")
    heads = row.count("heads") or 1
    if not (batch and length and width):
        return "no batch, length or width"
    is_of_all_heads = row.name("d_model").casefold() in ("d_model", "embed_dim", "width")
    return AttentionWork(batch * heads, length, max(1, width // heads) if is_of_all_heads else width)


def _model_timing(row: Row) -> Timing:
    return _timing(row, _work(row, _OF_A_MODEL, _model_work), phase_of(row.text("phase")))


def _attention_timing(row: Row) -> Timing:
    return _timing(row, _work(row, _OF_ATTENTION, _attention_work), phase_of_attention(row.text("phase")))


def _timing(row: Row, work: Work | str, phase: str) -> Timing:
    """`work`, or why it is not known."""
    precision, implementation = _precision(row.text("precision"), row.text("tf32")), _implementation(row)
    if not covers_the_square(row.text("attention")) or row.text("window") not in _NO_WINDOW:
        work = "its attention leaves out a part of the square"
    mean = row.seconds("mean")
    try:
        std = row.seconds("std")
        warmup = row.count("warmup")
    except UnreadableError:  # which judge nothing alone
        std = warmup = None
    return Timing(
        *row.labels,
        gpu_is_inferred=_is_inferred(row),
        work=None if isinstance(work, str) else work,
        without_work=work if isinstance(work, str) else "",
        precision_label=precision or NO_PRECISION,
        has_fp32_weights=precision_named(precision) in ("fp32", "tf32") or "amp" in precision,
        implementation=implementation,
        phase=phase,
        seconds=mean[0] if mean else None,
        std_seconds=std[0] if std else (mean[1] if mean else None),
        rounds=row.count("n_measured"),
        warmup_rounds=warmup,
        is_causal=row.text("causal").casefold() not in ("no", "false", "0"),
        rounding_seconds=mean[2] if mean else 0.0,
        optimizer=row.text("optimizer").casefold(),
    )


@lru_cache(maxsize=4096)
def _precision(text: str, tf32: str) -> str:
    """The author's label, with TF32 where a column of its own allows it."""
    precision = label_of(text)
    is_allowed = tf32.casefold() in (*_YES, "on", "enabled", "high", "medium")
    return f"{precision} (tf32)" if is_allowed and precision_named(precision) == "fp32" else precision


def _is_inferred(row: Row) -> bool:
    return row.text("gpu_basis").startswith("inferred") or "(inferred" in row.text("gpu")


def _implementation(row: Row) -> str:
    labels = (row.text("attention"), row.text("execution"), _checkpoint(row), row.text("compiled"))
    return _implementation_named(*labels, row.has("compiled") or row.has("execution"))


@lru_cache(maxsize=4096)
def _implementation_named(attention: str, execution: str, checkpoint: str, compiled: str, is_said: bool) -> str:
    """By the suite's own axes where the table has them; others say whether they compiled, or name their kernel."""
    if not execution:
        word = compiled.casefold().partition("(")[0].strip()
        execution = "eager" if word in _NO else "compiled" if word in _YES else compiled
        execution = execution if is_said or attention else "not stated"
    if attention and attention_of(attention) == "unfused":
        attention = "naive"
    return implementation_named(attention or "naive", execution, checkpoint)


def _checkpoint(row: Row) -> str:
    word = row.text("checkpoint").casefold()
    return "none" if word in _NO_CHECKPOINT else word


def _memory(row: Row) -> Memory:
    value = row.bytes("value")
    implementation = _implementation(row)
    return Memory(
        *row.labels,
        kind="attention" if row.text("object") == "attention" else "model",
        size=row.text("size"),
        width=row.count("d_model"),
        layers=row.count("n_layers"),
        batch_size=row.count("batch"),
        length=row.count("context"),
        precision_label=label_of(row.text("precision")),
        is_compiled=implementation == "compiled" or attention_of(implementation) == TILED,
        mode=_mode(row),
        value_bytes=value[0] if value else None,
        most_bytes=value[1] if value else None,
        d_ff=row.count("d_ff"),
        rounding_bytes=value[2] if value else 0.0,
        checkpoint=_checkpoint(row),
        optimizer=row.text("optimizer").casefold(),
    )


def _mode(row: Row) -> str:
    """`forward_peak`, also where the cell has the phase and the heading the peak."""
    mode, phase = row.text("mode"), phase_of(row.text("mode"))
    return f"{phase}_peak" if phase in PHASES and re.search("peak|max", row.name("value").casefold()) else mode


def _kernel(row: Row) -> Kernel:
    total, average = row.seconds("total"), row.seconds("average")
    return Kernel(
        *row.labels,
        size=row.text("size"),
        context_length=row.count("context"),
        scope=row.text("scope"),
        name=row.text("kernel"),
        calls=row.count("calls"),
        total_seconds=total[0] if total else None,
        average_seconds=average[0] if average else None,
        percent=row.number("pct"),
        batch_size=row.count("batch"),
    )


@dataclass(frozen=True)
class Kind:
    """One layout of table: its names of columns, those that it cannot do without, and the reader of a line."""

    names: Names
    measured: str
    """Of the needed ones, the column of its figures."""
    needed: str
    read: Callable[[Row], Figure]


KINDS = {
    "kernels": Kind(KERNELS, "calls", "kernel calls", _kernel),
    "model timing": Kind(MODEL_TIMING, "mean", "d_model d_ff n_layers phase mean", _model_timing),
    "attention timing": Kind(ATTENTION_TIMING, "mean", "seq_len d_model phase mean", _attention_timing),
    "memory": Kind(MEMORY, "value", "mode value", _memory),
}
"""The first that has all it needs reads a table; one of times and amounts is a table of times."""


@dataclass(frozen=True)
class Table:
    """`kind` is a key of `KINDS`; the figures are read as they are taken, unreadable lines among them."""

    kind: str
    figures: Iterator[Figure | NotJudged]


@contextmanager
def open_figures(path: Path) -> Iterator[Table]:
    """Raises ValueError with one sentence for a file that is no such table."""
    with open_table(path) as file:
        header, separator, lines = header_and_lines(path, file)
        kind, phases = _kind_of(path, header)
        columns = [(f" {one.heading}", [one.phase], layout_of(one.header, KINDS[kind].names)) for one in phases]
        columns = columns or [("", [], layout_of(header, KINDS[kind].names))]

        def figures() -> Iterator[Figure | NotJudged]:
            for place, values in lines:
                for heading, phase, layout in columns:
                    try:
                        if isinstance(values, UnreadableError):
                            raise values
                        yield KINDS[kind].read(Row(f"{place}{heading}", [*values, *phase], layout, separator))
                    except UnreadableError as error:
                        yield NotJudged(f"{place}{heading}", error.reason, error.detail)

        yield Table(kind, figures())


def read_table(path: Path) -> tuple[str, list[Figure | NotJudged]]:
    """The same as a whole."""
    with open_figures(path) as table:
        return table.kind, list(table.figures)


def _kind_of(path: Path, header: list[str]) -> tuple[str, list[PhaseColumns]]:
    """And the phases that have columns of their own, where none says the phase of a line."""
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise ValueError(f"{path} has the columns {', '.join(twice)} twice.")
    missing = _missing_columns(header)
    if found := next((name for name, columns in missing.items() if not columns), None):
        return found, []
    if phases := phases_in(header):
        of_phase = _missing_columns(phases[0].header)
        if found := next((name for name, columns in of_phase.items() if not columns), None):
            return found, phases
    nearest = min(missing, key=lambda name: len(missing[name]) / len(KINDS[name].needed.split()))
    measured = [name for name, columns in missing.items() if KINDS[name].measured not in columns]
    named = [f"{', '.join(map(_in_words, missing[name]))}, read as a table of {name}" for name in measured or [nearest]]
    raise ValueError(f"{path} lacks the columns {'; or '.join(named)}.")


def _missing_columns(header: list[str]) -> dict[str, list[str]]:
    """By kind of table, what its header lacks."""
    places = {name: layout_of(header, kind.names).places for name, kind in KINDS.items()}
    return {
        name: [column for column in kind.needed.split() if column not in places[name]] for name, kind in KINDS.items()
    }


def _in_words(column: str) -> str:
    return {"mean": "mean_ms or another time", "value": "peak_mib or another amount"}.get(column, column)
