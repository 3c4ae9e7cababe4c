"""Published tables as labelled figures. In: a CSV. Out: `Timing`, `Memory` or `Kernel` rows, one at a time.

Labels and figures are read. Columns that comment on a row (`note`, `status`, `sync`) are ignored.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perf_tests.audit.figures import NO_PRECISION, TILED, Kernel, Memory, Timing, attention_of, implementation_named
from perf_tests.audit.figures import labelled_precision as precision_named
from perf_tests.audit.files.csv_rows import Row, header_and_lines, open_table
from perf_tests.audit.files.headers import ATTENTION_TIMING, KERNELS, MEMORY, MODEL_TIMING, Names, layout_of
from perf_tests.audit.files.units import UnreadableError
from perf_tests.audit.finding import NotJudged
from perf_tests.limits.least_work import AttentionWork, ModelConfig, ModelWork, Work
from perf_tests.phases import PHASES, PHASES_OF_OTHERS

Figure = Timing | Memory | Kernel

_PHASES = {
    phase.published_as: phase.name for phase in (*PHASES.values(), *PHASES_OF_OTHERS.values()) if phase.published_as
} | {
    **dict.fromkeys(("fwd", "forward_pass", "forward_only"), "forward"),
    **dict.fromkeys(("bwd", "backward_pass", "backward_only"), "backward"),
    **dict.fromkeys(("fwd+bwd", "forward+backward", "forward_and_backward", "end_to_end", "e2e"), "forward_backward"),
    **dict.fromkeys(("step", "train_step", "training_step", "full", "fwd+bwd+opt"), "full_step"),
    **dict.fromkeys(("opt", "optimizer_step", "update"), "optimizer"),
    **dict.fromkeys(("forward_no_grad", "inference_forward"), "inference"),
}
_YES, _NO = ("yes", "true", "1", "y", "compiled", "torch.compile"), ("no", "false", "0", "n", "eager", "none", "")


@lru_cache(maxsize=4096)
def label_of(text: str) -> str:
    """The author's label: `fp32` of `tf32(labelled fp32)`."""
    named = re.search(r"labelled (\w+)", text)
    return named[1] if named else text


@lru_cache(maxsize=4096)
def _phase(text: str) -> str:
    word = re.sub(r"\s*\+\s*", "+", text.casefold()).replace(" ", "_").replace("-", "_")
    return _PHASES.get(word, text)


@lru_cache(maxsize=4096)
def _phase_of_attention(text: str) -> str:
    if (word := f"attention_{_phase(text)}") in (*PHASES, *PHASES_OF_OTHERS):
        return word
    word = f"attention_{_phase(re.split('[(+]', text)[0])}"  # without remarks on what else was timed
    return word if word in PHASES else text


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
    return ModelWork(row.text("size"), config, batch, context)


def _attention_work(row: Row) -> AttentionWork | str:
    batch, length, width = row.count("batch"), row.count("seq_len"), row.count("d_model")
    heads = row.count("heads") or 1
    if not (batch and length and width):
        return "no batch, length or width"
    is_of_all_heads = row.name("d_model").casefold() in ("d_model", "embed_dim", "width")
    return AttentionWork(batch * heads, length, max(1, width // heads) if is_of_all_heads else width)


def _model_timing(row: Row) -> Timing:
    return _timing(row, _work(row, _OF_A_MODEL, _model_work), _phase(row.text("phase")))


def _attention_timing(row: Row) -> Timing:
    return _timing(row, _work(row, _OF_ATTENTION, _attention_work), _phase_of_attention(row.text("phase")))


def _timing(row: Row, work: Work | str, phase: str) -> Timing:
    """`work`, or why it is not known."""
    precision = label_of(row.text("precision"))
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
        implementation=_implementation(row),
        phase=phase,
        seconds=mean[0] if mean else None,
        std_seconds=std[0] if std else (mean[1] if mean else None),
        rounds=row.count("n_measured"),
        warmup_rounds=warmup,
        is_causal=row.text("causal").casefold() not in ("no", "false", "0"),
    )


def _is_inferred(row: Row) -> bool:
    return row.text("gpu_basis").startswith("inferred") or "(inferred" in row.text("gpu")


def _implementation(row: Row) -> str:
    labels = (row.text("attention"), row.text("execution"), row.text("checkpoint"), row.text("compiled"))
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
    return implementation_named(attention or "naive", execution, checkpoint or "none")


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
        mode=row.text("mode"),
        value_bytes=value[0] if value else None,
        most_bytes=value[1] if value else None,
    )


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
    "memory": Kind(MEMORY, "value", "mode value", _memory),
    "attention timing": Kind(ATTENTION_TIMING, "mean", "seq_len d_model phase mean", _attention_timing),
}
"""The first that has all it needs reads a table."""


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
        kind = _kind_of(path, header)
        layout = layout_of(header, KINDS[kind].names)

        def figures() -> Iterator[Figure | NotJudged]:
            for place, values in lines:
                try:
                    if isinstance(values, UnreadableError):
                        raise values
                    yield KINDS[kind].read(Row(place, values, layout, separator != ","))
                except UnreadableError as error:
                    yield NotJudged(place, error.reason, error.detail)

        yield Table(kind, figures())


def read_table(path: Path) -> tuple[str, list[Figure | NotJudged]]:
    """The same as a whole."""
    with open_figures(path) as table:
        return table.kind, list(table.figures)


def _kind_of(path: Path, header: list[str]) -> str:
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise ValueError(f"{path} has the columns {', '.join(twice)} twice.")
    missing = {}
    for name, kind in KINDS.items():
        places = layout_of(header, kind.names).places
        missing[name] = [column for column in kind.needed.split() if column not in places]
        if not missing[name]:
            return name
    nearest = min(missing, key=lambda name: len(missing[name]) / len(KINDS[name].needed.split()))
    measured = [name for name, columns in missing.items() if KINDS[name].measured not in columns]
    named = [f"{', '.join(map(_in_words, missing[name]))}, read as a table of {name}" for name in measured or [nearest]]
    raise ValueError(f"{path} lacks the columns {'; or '.join(named)}.")


def _in_words(column: str) -> str:
    return {"mean": "mean_ms or another time", "value": "peak_mib or another amount"}.get(column, column)
