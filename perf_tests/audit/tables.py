"""Published tables as labelled figures. In: a CSV. Out: `Timing`, `Memory` or `Kernel` rows, one at a time.

Labels and figures are read. Columns that comment on a row (`note`, `status`, `sync`) are ignored."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from sys import intern
from typing import Any, TextIO, TypeVar

from perf_tests.audit import consistency
from perf_tests.audit.consistency import Neighbours
from perf_tests.audit.figures import (
    ACCUSING,
    IMPOSSIBLE,
    INCONSISTENT,
    NO_PRECISION,
    NOTICE,
    OF_ADAMW,
    SUSPICIOUS,
    TILED,
    VERDICTS,
    Finding,
    Kernel,
    LabelledFigure,
    Memory,
    NotJudged,
    Timing,
    attention_of,
    covers_the_square,
    found,
    implementation_named,
    is_another_model,
    labelled_precision,
    read_benchmarks,
)
from perf_tests.audit.figures import labelled_precision as precision_named
from perf_tests.audit.physics import gpu_of, memory_beyond_card, one_outlier, rule_out
from perf_tests.hardware.datasheets import GIB, Gpu, pieces_named
from perf_tests.hardware.limits import FLOAT32_BYTES, SIZES, AttentionWork, ModelConfig, ModelWork, Work, saved_bytes
from perf_tests.phases import PHASES, PHASES_OF_OTHERS
from perf_tests.records.record import SUFFIXES, grouped, how_many, unpacked, without_path

# Figures with their units as tables write them: `35 ms`, `1,234`, `34.2 ± 3`, `MiB (written MB)`.


SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"), 1e-9),
}
"""By the word of the unit, with u for the Greek letter."""

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FIGURE = re.compile(
    r"([-+]?[\d.,]*\d[\d.,]*(?:e[-+]?\d+)?)\s*(?:(?:±|\+/?-)\s*([\d.,]*\d(?:e-?\d+)?))?\s*([a-z%]*)", re.I
)
_SIGNED = re.compile(r"[-+\d.,]*")
_DIGITS = re.compile(r"\d*")
_EITHER_COMMA = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
"""Decimals or thousands: tabs between columns do not tell which, as commas (a decimal point) and semicolons do."""
_RANGE = re.compile(r"\d+ ?- ?\d+|up to \d+")


class UnreadableError(ValueError):
    """A cell that is no figure. `reason` is the same for all such cells of a column; `detail` is this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@lru_cache(maxsize=4096)
def seconds_in(word: str) -> float | None:
    """Seconds of one unit; None for another word."""
    return SECONDS.get(word.strip().casefold().replace("µ", "u").replace("μ", "u"))


@lru_cache(maxsize=4096)
def bytes_in(unit: str) -> tuple[float, float] | None:
    """The fewest and most bytes of one unit; None for another word.

    MB and GB are powers of 1000 or of 1024; a remark in parentheses, `(1e6)` or `(written MB)`, tells which.
    """
    name, _, remark = unit.casefold().replace(" ", "").partition("(")
    if name in ("byte", "bytes"):
        return 1.0, 1.0
    match = re.fullmatch(r"([kmgt]?)(i?)b", name)
    if match is None:
        return None
    power = _POWERS[match[1]]
    least, most = 1000.0**power, 1024.0**power
    if match[2]:
        return most, most
    return (least, least) if re.match(r"1e\d|10\^|decimal", remark) else (least, most)


def number_in(text: str, column: str, separator: str = ",") -> tuple[float, float | None, str] | None:
    """The figure, its deviation after a plus-minus sign, and its unit; None for no figure and for a range.

    `separator` is the sign between columns, which tells what a comma stands for.
    """
    if (
        not text
        or text.casefold() in ("-", "\N{EM DASH}", "\N{EN DASH}", "n/a", "na", "none", "null", "oom")
        or _RANGE.fullmatch(text)
    ):
        return None
    match = _FIGURE.fullmatch(text)
    if match is None:
        raise UnreadableError(f"{column} is not a number", repr(text[:40]))
    deviation = _plain(match[2], separator) if match[2] else None
    return _plain(match[1], separator), deviation, match[3]


def half_digit(text: str, separator: str = ",") -> float:
    """By how much a figure may have been rounded: half of its last digit; 0 in a notation with an exponent."""
    if "e" in text or "E" in text:
        return 0.0
    is_comma = separator != "," and _ends_in_comma(_SIGNED.match(text)[0])  # type: ignore[index]  # it matches any text
    _, _, decimals = text.partition("," if is_comma else ".")
    return float(0.5 * 10.0 ** -len(_DIGITS.match(decimals)[0]))  # type: ignore[index]  # it matches any text


def _plain(digits: str, separator: str) -> float:
    if separator == "\t" and _EITHER_COMMA.fullmatch(digits):
        raise UnreadableError("a comma before three digits may begin decimals or separate thousands", repr(digits))
    if separator != "," and _ends_in_comma(digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", digits):
        digits = digits.replace(",", "")
    try:
        return float(digits)
    except ValueError:
        raise UnreadableError("a figure is not a number", repr(digits[:40])) from None


def _ends_in_comma(digits: str) -> bool:
    """Whether the last sign is the one comma; of two signs the last one begins the decimals."""
    return digits.count(",") == 1 and digits.rfind(",") > digits.rfind(".")


# The columns of published tables under the names and units in use. In: a header. Out: where each column stands.


_SHARED = {
    "source": "source repository repo file url origin",
    "gpu": "gpu gpu_name gpu_type device_name device card hardware accelerator",
    "gpu_basis": "gpu_basis device_basis",
    "batch": "batch batch_size bs batchsize local_batch_size b",
    "precision": "precision dtype data_type amp",
    "compiled": "compiled compile torch_compile is_compiled jit",
    "attention": "attention impl implementation attention_impl attn attn_impl variant backend method kernel_type",
    "execution": "execution",
    "checkpoint": "checkpoint",
    "optimizer": "optimizer optim optimiser",
    "n_measured": "n_measured n rounds n_rounds iters iterations n_iters num_iters steps n_steps repeats",
    "warmup": "warmup n_warmup warmup_rounds warmup_steps warmup_iters num_warmup warm_up",
    "unit": "unit units",
    "cards": "n_gpus num_gpus gpu_count ngpus gpus world_size world n_devices num_devices",
    "tf32": "tf32 allow_tf32 use_tf32 tf32_enabled matmul_precision float32_matmul_precision",
    "window": "window window_size sliding_window attention_window sparsity",
}
_MODEL_WORDS = {
    "size": "size model_size model model_name size_name",
    "d_ff": "d_ff d_ffn ffn_dim ffn d_hidden intermediate_size hidden_dim_ff",
    "n_layers": "n_layers num_layers layers n_layer depth num_hidden_layers",
    "n_heads": "n_heads num_heads heads n_head num_attention_heads",
    "vocab": "vocab vocab_size",
    "d_model": "d_model dmodel width hidden_size n_embd embed_dim",
    "context": "context context_length ctx ctx_len n_ctx seq_len seqlen sequence_length seq_length seq",
}
_PHASE = {"phase": "phase pass direction stage mode step_type what"}

_TIME = (
    "mean mean_time time avg average avg_time average_time latency duration elapsed runtime median median_time "
    "p50 min min_time best"
)
_DEVIATION = "std stddev std_dev stdev sd std_time deviation"
_AMOUNT = "value peak memory mem peak_memory peak_mem max_memory allocated peak_allocated amount"


@dataclass(frozen=True)
class Names:
    """What the columns of one layout of table are called, the best name first."""

    texts: Mapping[str, str]
    times: Mapping[str, str] = field(default_factory=dict)
    amounts: Mapping[str, str] = field(default_factory=dict)


MODEL_TIMING = Names({**_SHARED, **_MODEL_WORDS, **_PHASE}, {"mean": _TIME, "std": _DEVIATION})
ATTENTION_TIMING = Names(
    {
        **_SHARED,
        **_PHASE,
        "n_measured": _SHARED["n_measured"].replace(" n ", " "),  # the length of many a table of attention
        "seq_len": "seq_len seqlen sequence_length seq_length seq length context context_length ctx n_ctx l t n",
        "d_model": "d_model d head_dim d_head dim width embed_dim dmodel head_size headdim",
        "heads": "heads n_heads num_heads nheads h",
        "causal": "causal_mask causal is_causal",
    },
    {"mean": _TIME, "std": _DEVIATION},
)
MEMORY = Names(
    {
        **_SHARED,
        **_MODEL_WORDS,
        "object": "object",
        "mode": "mode phase what quantity",
        "context": f"{_MODEL_WORDS['context']} length",
    },
    amounts={"value": _AMOUNT},
)
KERNELS = Names(
    {
        **{name: _SHARED[name] for name in ("source", "gpu", "batch", "unit")},
        "size": _MODEL_WORDS["size"],
        "context": _MODEL_WORDS["context"],
        "scope": "scope phase pass range",
        "kernel": "kernel kernel_name name",
        "calls": "calls instances count invocations launches",
        "pct": "pct_of_gpu_time time_pct pct percent share_pct percentage share",
    },
    {"total": "total total_time time cuda_total", "average": "avg average mean avg_time", "std": _DEVIATION},
)


@dataclass(frozen=True)
class Layout:
    """Where a table has its columns."""

    header: Sequence[str]
    places: Mapping[str, int]
    seconds: Mapping[str, float]
    """Of one unit, for columns of times whose header names it."""
    bytes: Mapping[str, tuple[float, float]]
    """The same for amounts: fewest and most."""
    works: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """What the reader made of the cells that say which work was timed."""


def layout_of(header: Sequence[str], names: Names) -> Layout:
    normal = [normal_name(name) for name in header]
    places: dict[str, int] = {}
    seconds: dict[str, float] = {}
    sizes: dict[str, tuple[float, float]] = {}
    for column, words in names.texts.items():
        place = next((normal.index(word) for word in words.split() if word in normal), None)
        if place is not None:
            places[column] = place
    taken = set(places.values())
    for column, words in names.times.items():
        found = _measured(normal, words.split(), is_alone=column == "mean", taken=taken, is_unit=seconds_in)
        if found is not None:
            places[column], unit = found
            per_unit = seconds_in(unit)
            seconds |= {column: per_unit} if per_unit else {}
            taken.add(places[column])
    for column, words in names.amounts.items():
        found = _measured(normal, words.split(), is_alone=True, taken=taken, is_unit=bytes_in)
        if found is not None:
            places[column], unit = found
            per_byte = bytes_in(unit)
            sizes |= {column: per_byte} if per_byte else {}
    return Layout(header, places, seconds, sizes)


def is_time(name: str) -> bool:
    """Of a header's name in `normal_name`'s form."""
    return _measured([name], _TIME.split(), is_alone=True, taken=set(), is_unit=seconds_in) is not None


def is_deviation(name: str) -> bool:
    return _measured([name], _DEVIATION.split(), is_alone=False, taken=set(), is_unit=seconds_in) is not None


def normal_name(name: str) -> str:
    """`Time (%)` as `time_pct`, `Mean [µs]` as `mean_us`; a unit of bytes keeps its remark, `MiB (written MB)`."""
    if bytes_in(name) is not None:
        return name.casefold().strip()
    plain = name.casefold().replace("µ", "u").replace("μ", "u").replace("%", " pct ")
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _measured(
    normal: Sequence[str], stems: Sequence[str], is_alone: bool, taken: set[int], is_unit: object
) -> tuple[int, str] | None:
    """Place and unit of the first column called by a stem, with or without a unit, or by a unit alone."""
    assert callable(is_unit)
    for stem in stems:
        for place, name in enumerate(normal):
            rest = name.removeprefix(stem).removeprefix("_") if name.startswith(stem) else None
            if place not in taken and rest is not None and (name == stem or (name != stem + rest and is_unit(rest))):
                return place, rest
    alone = [place for place, name in enumerate(normal) if place not in taken and is_unit(name)]
    return (alone[0], normal[alone[0]]) if is_alone and alone else None


# The rows of a CSV as it comes: any of three separators, UTF-8 or UTF-16, damaged lines among good ones.


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
TOO_LARGE = 1e15
MOST_UNPACKED_BYTES = 200_000_000

Line = tuple[str, list[str] | UnreadableError]
"""`line 7`, and its values or why it has none."""


@contextmanager
def open_table(path: Path) -> Iterator[TextIO]:
    """As text, whatever its byte order mark says. Raises ValueError with one sentence."""
    if path.is_char_device():
        raise ValueError(f"{path} is a device, which may never end; write the table into a file first.")
    try:
        with _opened(path) as file:
            mark = file.peek(2)[:2]
            encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            yield io.TextIOWrapper(file, newline="", encoding=encoding, errors="replace")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{path} cannot be read as a CSV: {without_path(error)}.") from error


def _opened(path: Path) -> io.BufferedReader:
    """Line by line from the disk, but a packed table unpacked as a whole."""
    if path.suffix in SUFFIXES:
        return io.BufferedReader(io.BytesIO(unpacked(path, MOST_UNPACKED_BYTES)))
    return open(path, "rb")


def header_and_lines(path: Path, file: TextIO) -> tuple[list[str], str, Iterator[Line]]:
    """The header, the separator and the lines below it. Raises ValueError for a file without a header."""
    first, above = file.readline(), 1
    while first and not first.strip():
        first, above = file.readline(), above + 1
    if not first:
        raise ValueError(f"{path} is empty.")
    if "\0" in first or "\ufffd" in first:
        raise ValueError(f"{path} cannot be read as a CSV: its first line is not text.")
    separator = max(SEPARATORS, key=first.count)
    try:
        header = [name.strip() for name in next(csv.reader([first], delimiter=separator, strict=True))]
    except (csv.Error, StopIteration) as error:
        raise ValueError(f"{path} cannot be read as a CSV: {error}.") from error
    if not any(header):
        raise ValueError(f"{path} is empty.")
    if len(header) == 1:
        raise ValueError(
            f"{path} cannot be read as a CSV: its first line has one column, {header[0][:40]!r}; separate columns by "
            "commas, semicolons or tabs."
        )
    return header, separator, _lines(csv.reader(file, delimiter=separator, strict=True), len(header), above)


def _lines(lines: Any, columns: int, above: int) -> Iterator[Line]:
    while True:
        try:
            values = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {above + lines.line_num}", UnreadableError("the line is no CSV", str(error))
            continue
        place = f"line {above + lines.line_num}"
        if len(values) == columns:
            yield place, values
        elif values:
            yield place, _another_number(values, columns)


def _another_number(values: list[str], columns: int) -> UnreadableError:
    other = next((words for sign, words in SEPARATORS.items() if values[0].count(sign) == columns - 1), "")
    if other and len(values) == 1:
        return UnreadableError(f"the line is separated by {other} and the header is not", repr(values[0][:40]))
    detail = f"{len(values)} values under {columns} columns"
    return UnreadableError("the line has another number of values than the header", detail)


class Row:
    """One line by column; what is no figure raises UnreadableError."""

    __slots__ = ("layout", "place", "separator", "values")

    def __init__(self, place: str, values: list[str], layout: Layout, separator: str) -> None:
        self.place = place
        self.values = [*map(str.strip, values), ""]  # the last one stands for absent columns
        self.layout = layout
        self.separator = separator

    @property
    def labels(self) -> tuple[str, str, str]:
        """Of every figure: place, series and GPU, each text kept once."""
        cards, gpu = self.text("cards"), self.text("gpu")
        if gpu and cards.isdecimal() and int(cards) > 1:
            gpu = f"{cards} x {gpu}"
        return self.place, intern(self.text("source")), intern(gpu)

    def has(self, column: str) -> bool:
        return column in self.layout.places

    def text(self, column: str) -> str:
        return self.values[self.layout.places.get(column, -1)]

    def name(self, column: str) -> str:
        """As the header writes it."""
        return self.layout.header[self.layout.places[column]]

    def number(self, column: str) -> float | None:
        found = self._figure(column)
        return found[0] if found else None

    def _figure(self, column: str) -> tuple[float, float | None, str] | None:
        text = self.text(column)
        if not text:
            return None
        try:
            found: tuple[float, float | None, str] | None = (float(text), None, "")
        except ValueError:
            found = number_in(text, self.name(column), self.separator)
        if found and not abs(found[0]) < TOO_LARGE:
            raise UnreadableError(f"{self.name(column)} is not finite and below {TOO_LARGE:g}", repr(text[:40]))
        return found

    def count(self, column: str) -> int | None:
        text = self.text(column)
        if text.isdecimal() and text.isascii() and len(text) < 15:
            return int(text)
        return self._count(column) if text else None

    def _count(self, column: str) -> int | None:
        found = self._figure(column)
        if found is None:
            return None
        value, _, unit = found
        if unit in ("k", "K"):  # 4k tokens are 4096, 10k words are 10 000
            value *= 1024 if value > 0 and math.log2(value).is_integer() else 1000
        if value != int(value) or value < 0:
            raise UnreadableError(f"{self.name(column)} is not a whole number of 0 or more", f"{value:g}")
        return int(value)

    def seconds(self, column: str) -> tuple[float, float | None, float] | None:
        """Seconds, their deviation where the cell has one, and half of their last digit."""
        found = self._figure(column)
        if found is None:
            return None
        value, deviation, unit = found
        per_unit = seconds_in(unit) if unit else self.layout.seconds.get(column) or seconds_in(self.text("unit"))
        if per_unit is None:
            known = unit or self.text("unit")
            raise UnreadableError(f"{self.name(column)} has no known unit of time", repr(known) if known else "none")
        rounding = half_digit(self.text(column), self.separator)
        return value * per_unit, None if deviation is None else deviation * per_unit, rounding * per_unit

    def bytes(self, column: str) -> tuple[float, float, float] | None:
        """Fewest and most, where the unit leaves it open, and half of their last digit."""
        found = self._figure(column)
        if found is None:
            return None
        unit = found[2] or self.text("unit")
        per_unit = bytes_in(unit) if unit else self.layout.bytes.get(column)
        if per_unit is None:
            raise UnreadableError("its unit of memory is unknown", repr(unit) if unit else "none")
        half = half_digit(self.text(column), self.separator)
        return found[0] * per_unit[0], found[0] * per_unit[1], half * per_unit[1]


# Phases by the words in use for them, in a column of their own or in the headings of their times.


WORDS = {
    phase.published_as: phase.name for phase in (*PHASES.values(), *PHASES_OF_OTHERS.values()) if phase.published_as
} | {
    **dict.fromkeys(("fwd", "forward_pass", "forward_only"), "forward"),
    **dict.fromkeys(("bwd", "backward_pass", "backward_only"), "backward"),
    **dict.fromkeys(("fwd+bwd", "forward+backward", "forward_and_backward", "end_to_end", "e2e"), "forward_backward"),
    **dict.fromkeys(("step", "train_step", "training_step", "full", "fwd+bwd+opt"), "full_step"),
    **dict.fromkeys(("opt", "optimizer_step", "update"), "optimizer"),
    **dict.fromkeys(("forward_no_grad", "inference_forward"), "inference"),
}


@lru_cache(maxsize=4096)
def phase_of(text: str) -> str:
    word = re.sub(r"\s*\+\s*", "+", text.casefold()).replace(" ", "_").replace("-", "_")
    return WORDS.get(word, word if word in PHASES or word in PHASES_OF_OTHERS else text)


@lru_cache(maxsize=4096)
def phase_of_attention(text: str) -> str:
    if (word := f"attention_{phase_of(text)}") in (*PHASES, *PHASES_OF_OTHERS):
        return word
    word = f"attention_{phase_of(re.split('[(+]', text)[0])}"  # without remarks on what else was timed
    return word if word in PHASES else text


@dataclass(frozen=True)
class PhaseColumns:
    """One phase of a table that gives each its own columns of times."""

    phase: str
    heading: str
    """Of its times, as the table writes it."""
    header: list[str]
    """The table's, as if it had these times alone, with a column `phase` at the end."""


def phases_in(header: Sequence[str]) -> list[PhaseColumns]:
    """Those whose times have a heading of their own, `forward_ms` or `mean backward (s)`; none if none has."""
    parts = [_phase_and_figure(normal_name(name)) for name in header]
    found = []
    for phase in dict.fromkeys(part[0] for part in parts if part):
        alone = [
            (part[1] if part[0] == phase else "") if part else name for name, part in zip(header, parts, strict=True)
        ]
        timed = [place for place, part in enumerate(parts) if part and part[0] == phase and is_time(part[1])]
        if timed:
            found.append(PhaseColumns(phase, header[timed[0]], [*alone, "phase"]))
    return found


def _phase_and_figure(name: str) -> tuple[str, str] | None:
    """`mean_fwd_ms` as `forward` and `mean_ms`; None for a column that is no time or deviation of a phase."""
    for word, phase in _BY_COLUMN:
        before, is_named, after = f"_{name}_".partition(f"_{word}_")
        rest = "_".join(filter(None, (before.strip("_"), after.strip("_")))) or "time"
        if is_named and (is_time(rest) or is_deviation(rest)):
            return phase, rest
    return None


_BY_COLUMN = sorted(
    {
        re.sub("[^a-z0-9]+", "_", word): phase for word, phase in (WORDS | {name: name for name in PHASES}).items()
    }.items(),
    key=lambda item: -len(item[0]),
)
"""Words as a header writes them, the longest first; a phase that is alone in its header is a time too."""


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


# Arithmetic of a profiler's kernel table: calls, averages, totals and shares are four views of one time.


SHARE_TOLERANCE_POINTS = 1.0

USUAL_BATCH_SIZE = 4
"""The batch of tables that have no column for it."""


def total_of(kernel: Kernel) -> float | None:
    """Seconds of all calls, as the table gives them or as calls x average."""
    if kernel.total_seconds is not None:
        return kernel.total_seconds
    if kernel.calls is None or kernel.average_seconds is None:
        return None
    return kernel.calls * kernel.average_seconds


def not_positive(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        times = [time for time in (kernel.total_seconds, kernel.average_seconds) if time is not None]
        if any(time <= 0 for time in times) or not 0 <= (kernel.percent or 0) <= 100:
            shown, why = "a time or share out of range", "a kernel takes time, and a share lies between 0 and 100 %"
            yield found(IMPOSSIBLE, "amount", [kernel], shown, "0", why, "a wrong sign or unit")


def calls_times_average(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for kernel in kernels:
        if kernel.total_seconds and kernel.average_seconds and kernel.calls:
            product = kernel.calls * kernel.average_seconds
            if abs(product / kernel.total_seconds - 1) > 0.02:
                shown = f"{kernel.calls} x {kernel.average_seconds * 1e6:.4g} us is {product * 1e3:.4g} ms"
                limit = f"{kernel.total_seconds * 1e3:.4g} ms"
                why = "calls times their average is the total"
                yield found(INCONSISTENT, "calls x average", [kernel], shown, limit, why, "a cell of another row")


def profiles(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    return list(grouped(kernels, lambda k: (k.series, k.gpu, k.size, k.context_length, k.scope)).values())


def shares_of_one_time(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Each row's total over its share is the profile's GPU time; rows that imply another time are wrong."""
    for group in profiles(kernels):
        large = [kernel for kernel in group if kernel.percent and kernel.percent >= 1 and total_of(kernel)]
        implied = [_implied_seconds(kernel) for kernel in large]
        usual = median(implied) if implied else 0.0  # of a single one, its own
        for kernel, whole in zip(large, implied, strict=True):
            # A share is rounded to a tenth of a point, so small ones tell less about the whole.
            slack = 0.15 + SHARE_TOLERANCE_POINTS / (kernel.percent or 1) / 10
            if usual > 0 and abs(whole / usual - 1) > slack:
                shown = f"{(total_of(kernel) or 0) * 1e3:.4g} ms called {kernel.percent:g} %"
                limit = f"{kernel.percent:g} % of {usual * 1e3:.4g} ms, which the other rows imply"
                why = "the rows of one profile share one GPU time"
                yield found(INCONSISTENT, "share", [kernel], shown, limit, why, "a cell copied from another row")


def copied_cells(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """Two rows with the same share whose times differ; where a third row tells which is wrong, only that one."""
    for group in profiles(kernels):
        timed = [kernel for kernel in group if (kernel.percent or 0) >= 5 and (total_of(kernel) or 0) > 0]
        for same in grouped(timed, lambda kernel: kernel.percent).values():
            one, other = (pick(same, key=lambda kernel: total_of(kernel) or 0) for pick in (min, max))
            first, second = total_of(one) or 0, total_of(other) or 0
            if second > 1.1 * first:
                shown = f"{one.percent:g} % for {first * 1e3:.4g} ms and for {second * 1e3:.4g} ms"
                why, cause = "equal shares of one total are equal times", "a cell copied from the row above"
                pair = sorted((one, other), key=same.index)
                usual = median(map(_implied_seconds, timed))
                accused = [kernel for kernel in pair if abs(_implied_seconds(kernel) - usual) > 0.1 * usual] or pair
                yield found(INCONSISTENT, "copied cell", accused, shown, "1.1", why, cause, second / first)


def _implied_seconds(kernel: Kernel) -> float:
    """Of the whole profile, by this row's time and share."""
    return (total_of(kernel) or 0) / (kernel.percent or 1) * 100


def shares_add_up(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    for group in profiles(kernels):
        # Copies run beside kernels; profilers give their share of another total.
        shares = [kernel for kernel in group if kernel.percent is not None and "memory op" not in kernel.name]
        total = sum(kernel.percent or 0 for kernel in shares)
        if total > 100 + SHARE_TOLERANCE_POINTS:
            why, cause = "shares of one total cannot exceed 100 %", "rows of two profiles in one"
            yield found(INCONSISTENT, "sum of shares", shares, f"{total:.4g} %", "100 %", why, cause)


def missing_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A forward pass multiplies by seven matrices per layer and the head: those not listed need time of their own.

    A list of the largest kernels leaves out others. What it leaves out must fit into the share of the time that it
    leaves out, at the card's peak and if only the smallest products, those of attention, are missing.
    """
    for group in profiles(kernels):
        products = [kernel for kernel in group if _is_product(kernel) and kernel.calls]
        config, gpu, length = SIZES.get(group[0].size), gpu_of(group[0]), group[0].context_length
        missing = 0 if config is None else 7 * config.num_layers + 1 - sum(one.calls or 0 for one in products)
        rest = _unlisted_seconds(group)
        if config is None or group[0].scope != "forward" or not products or missing <= 0:
            continue
        if gpu is None or rest is None or not length:
            continue
        peak = gpu.rates["fp32"] if all(map(_is_fp32, products)) else max(gpu.rates.values())
        tokens = (group[0].batch_size or USUAL_BATCH_SIZE) * length
        needed = missing * 2 * tokens * config.d_model**2 / (peak * gpu.clock_margin)
        if needed > rest:
            why = f"{missing} of {7 * config.num_layers + 1} products are not listed, and need {needed * 1e3:.4g} ms"
            cause = "a capture that ended early, or another model"
            shown, limit = f"{rest * 1e3:.4g} ms for all that is not listed", f"{needed * 1e3:.4g} ms"
            excess = needed / rest if rest > 0 else needed / (total_of(products[0]) or needed)
            yield found(SUSPICIOUS, "missing products", products, shown, limit, why, cause, excess)


def _is_product(kernel: Kernel) -> bool:
    return re.search("gemm|xmma|cutlass", kernel.name) is not None


def _is_fp32(kernel: Kernel) -> bool:
    return re.search("sgemm|simt|ffma", kernel.name) is not None


def _unlisted_seconds(profile: Sequence[Kernel]) -> float | None:
    """Time of the profile outside of its rows; None where its total is not known."""
    shared = [kernel for kernel in profile if kernel.percent and total_of(kernel)]
    if not shared:
        return None
    whole = median(map(_implied_seconds, shared))
    rounding = 0.05 * len(shared)  # of shares to a tenth of a point
    return whole * (100 + rounding - sum(kernel.percent or 0 for kernel in shared)) / 100


def matrix_products(kernels: Sequence[Kernel]) -> Iterator[Finding]:
    """A kernel with exactly the products of a forward pass, above the card's fp32 peak."""
    for kernel in kernels:
        config, total = SIZES.get(kernel.size), total_of(kernel)
        if config is None or not total or not kernel.context_length or "sgemm" not in kernel.name:
            continue
        if kernel.scope != "forward" or kernel.calls != 7 * config.num_layers + 1:
            continue
        gpu = gpu_of(kernel)
        batch_size = kernel.batch_size or USUAL_BATCH_SIZE
        flops = config.forward_flops(batch_size, kernel.context_length)
        flops -= config.forward_attention_flops(batch_size, kernel.context_length)
        if gpu is not None and flops / total > gpu.rates["fp32"]:
            shown = f"{kernel.calls} products in {total * 1e3:.4g} ms are {flops / total / 1e12:.3g} TFLOP/s"
            limit, why = f"{gpu.rates['fp32'] / 1e12:.4g} TFLOP/s", f"beyond the peak at a batch of {batch_size}"
            yield found(SUSPICIOUS, "matrix products", [kernel], shown, limit, why, "a smaller batch than stated")


KERNEL_RULES = (
    not_positive,
    calls_times_average,
    copied_cells,
    shares_of_one_time,
    shares_add_up,
    missing_products,
    matrix_products,
)


# Rules between amounts of memory, and against the model whose peak they are.


WEIGHTS_OF_ADAMW = 4
"""Times the bytes of the weights: they, their gradients and two moments."""
LONG_SEQUENCE = 8192
"""From here on the T x T matrices dominate attention's memory."""


def below_weights(figures: Sequence[Memory]) -> Iterator[Finding]:
    """A peak below the weights alone, or a training step's below AdamW's state."""
    for memory in figures:
        config, per_weight = _config(memory), _weight_bytes(memory)
        if config is None or per_weight is None or "peak" not in memory.mode:
            continue
        if memory.most_bytes is None or memory.most_bytes < 0:
            continue
        weights = per_weight * config.parameters
        trained = WEIGHTS_OF_ADAMW * weights
        if memory.most_bytes + memory.rounding_bytes < weights:
            why = f"the weights in {'fp32' if per_weight == FLOAT32_BYTES else '16 bits'} are larger"
            yield _found(IMPOSSIBLE, "weights", memory, weights, why, "another model, a wrong unit, or half weights")
        elif _is_step_of_adamw(memory) and memory.most_bytes < 0.98 * trained:
            why = "weights, gradients and AdamW's two moments are larger"
            cause = "no optimizer state was ever made, as when gradients are cleared before the update"
            yield _found(SUSPICIOUS, "optimizer state", memory, trained, why, cause)


def _is_step_of_adamw(memory: Memory) -> bool:
    return memory.mode.startswith("full_step_peak") and memory.optimizer in OF_ADAMW


def _config(memory: Memory) -> ModelConfig | None:
    """The known shape with this width and depth; None for a block alone or a shard of the state."""
    if memory.kind != "model" or "block" in memory.size or is_another_model(memory.size):
        return None
    if pieces_named(memory.gpu) > 1:
        return None
    shapes = (config for config in SIZES.values() if memory.d_ff in (None, config.d_ff))
    return next((c for c in shapes if (c.d_model, c.num_layers) == (memory.width, memory.layers)), None)


def _weight_bytes(memory: Memory) -> int | None:
    """Of one parameter, at least: half-precision weights unless the label says autocast. None for other formats."""
    if memory.precision_label in ("", NO_PRECISION):
        return FLOAT32_BYTES
    precision = labelled_precision(memory.precision_label)
    is_mixed = re.search("amp|autocast|mixed", memory.precision_label.casefold())
    return None if precision is None else FLOAT32_BYTES if is_mixed or precision in ("fp32", "tf32") else 2


def flat_over_context(figures: Sequence[Memory]) -> Iterator[Finding]:
    """A step's peak below weights, moments and the tensors that its forward pass saves."""
    for memory in figures:
        config = _config(memory)
        is_step = memory.mode == "full_step_peak" and _is_step_of_adamw(memory)
        is_step = is_step and not memory.is_compiled and memory.checkpoint == "none"
        if config is None or not is_step or memory.most_bytes is None or not memory.batch_size or not memory.length:
            continue
        if not memory.precision_label.startswith(("fp32", "tf32")):
            continue
        trained = WEIGHTS_OF_ADAMW * FLOAT32_BYTES * config.parameters
        needed = trained - FLOAT32_BYTES * config.parameters + saved_bytes(config, memory.batch_size, memory.length)
        if 0.98 * trained <= memory.most_bytes < 0.95 * needed:
            why = "weights, moments and what autograd keeps of an eager pass are larger at this context"
            cause = "a figure of another context, or one read off a plot"
            yield _found(SUSPICIOUS, "saved tensors", memory, needed, why, cause)


def saved_squares(figures: Sequence[Memory]) -> Iterator[Finding]:
    """Before its backward pass eager attention holds a whole number of T x T matrices beside its inputs."""
    after_inputs = [memory for memory in figures if memory.mode == "after_inputs"]
    inputs = {_attention_key(memory): memory.value_bytes for memory in after_inputs if memory.value_bytes is not None}
    for memory in figures:
        is_long = memory.length is not None and memory.length >= LONG_SEQUENCE
        if memory.kind != "attention" or memory.mode != "before_backward" or not is_long or memory.is_compiled:
            continue
        if memory.checkpoint != "none":
            continue
        if memory.value_bytes is None or not memory.batch_size or not memory.width or not memory.length:
            continue
        tensor = memory.batch_size * memory.length * memory.width * FLOAT32_BYTES
        square = memory.batch_size * memory.length**2 * FLOAT32_BYTES
        rest = memory.value_bytes - inputs.get(_attention_key(memory), 4 * tensor)
        count = rest / square
        if abs(count - round(count)) > 0.1 + 4 * tensor / square or round(count) not in (1, 2, 3):
            why = f"{count:.2f} matrices of {square / GIB:.3g} GiB are held, not 1, 2 or 3"
            cause = "another batch than stated, inputs that require no gradient, or a fused kernel"
            yield _found(SUSPICIOUS, "saved squares", memory, square, why, cause)


def _attention_key(memory: Memory) -> tuple[object, ...]:
    return (memory.series, memory.gpu, memory.width, memory.length, memory.batch_size, memory.is_compiled)


def shrinking_peaks(figures: Sequence[Memory]) -> Iterator[Finding]:
    """More memory for less context, all else alike."""
    peaks = [m for m in figures if m.kind == "model" and "peak" in m.mode and m.length and m.value_bytes]
    groups = grouped(peaks, _set_up)
    for group in groups.values():
        for shorter, longer in pairwise(sorted(group, key=lambda memory: memory.length or 0)):
            most, least = longer.most_bytes or 0, shorter.value_bytes or 0
            if longer.length != shorter.length and most < 0.97 * least:
                why = f"context {shorter.length} has more"
                yield _found(INCONSISTENT, "shrinking peak", longer, least, why, "two cells exchanged, or two set-ups")


def _set_up(memory: Memory) -> tuple[object, ...]:
    """All but the context."""
    labels = (memory.precision_label, memory.is_compiled, memory.checkpoint, memory.optimizer)
    return (memory.series, memory.gpu, memory.size, memory.batch_size, memory.mode, *labels)


def _found(verdict: str, rule: str, memory: Memory, limit_bytes: float, why: str, cause: str) -> Finding:
    figure, limit = f"{(memory.value_bytes or 0) / GIB:.4g} GiB", f"{limit_bytes / GIB:.4g} GiB"
    return found(verdict, rule, [memory], figure, limit, why, cause)


MEMORY_RULES = (below_weights, flat_over_context, saved_squares, shrinking_peaks)


# All rules over one file.


T = TypeVar("T")
F = TypeVar("F", Timing, Memory, Kernel, Figure)

WINDOW = 100_000
"""Figures of a file that are held and compared at a time."""


@dataclass(frozen=True)
class Audit:
    """The findings on a file. `places` are those of its figures, in their order."""

    kind: str
    places: list[str]
    findings: list[Finding]
    not_judged: list[NotJudged]

    def counts(self) -> dict[str, int]:
        """Figures by their gravest verdict; `fine` are those judged without any."""
        gravest: dict[str, str] = {}
        for verdict in reversed(VERDICTS):
            gravest |= {place: verdict for finding in self.findings_of(verdict) for place in finding.places}
        unjudged = {one.place for one in self.not_judged} - gravest.keys()
        counted = Counter(gravest.values())
        return {
            **{verdict: counted[verdict] for verdict in VERDICTS},
            "not judged": len(unjudged),
            "fine": len(self.places) - len(gravest) - len(unjudged),
        }

    def findings_of(self, verdict: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == verdict]

    def reasons(self) -> dict[str, int]:
        """Why figures were not judged, most frequent first."""
        return dict(Counter(one.reason for one in self.not_judged).most_common())


def audit_file(path: Path, gpu: Gpu | None = None) -> Audit:
    """The whole file at once. `gpu` is the card of rows that name none. Raises ValueError for an unreadable file."""
    parts = list(audits_of(path, gpu))
    places = [place for part in parts for place in part.places]
    findings = [finding for part in parts for finding in part.findings]
    return Audit(parts[0].kind, places, _gravest_first(findings), [one for part in parts for one in part.not_judged])


def audits_of(path: Path, gpu: Gpu | None = None, window: int = WINDOW) -> Iterator[Audit]:
    """The same in parts of at most `window` figures, which are compared with each other and not with other parts'.

    Raises ValueError with one sentence for an unreadable file, and for one whose rows cannot be read at all.
    """
    if path.suffix.casefold() == ".json":
        yield audit_timings("pytest-benchmark", _on(gpu, read_benchmarks(path)))
        return
    with open_figures(path) as table:
        is_read = False
        for rows in _batched(table.figures, window):
            unreadable = [row for row in rows if isinstance(row, NotJudged)]
            figures = [row for row in rows if not isinstance(row, NotJudged)]
            if not figures and not is_read and unreadable:
                raise ValueError(f"{path}: no row can be read. {unreadable[0].place}: {unreadable[0].sentence()}.")
            is_read = True
            yield _with_unreadable(_audit_figures(table.kind, _on(gpu, figures)), unreadable)
        if not is_read:
            raise ValueError(f"{path} has a header but no rows.")


def _audit_figures(kind: str, figures: Sequence[Figure]) -> Audit:
    if kind == "memory":
        return audit_memory([figure for figure in figures if isinstance(figure, Memory)])
    if kind == "kernels":
        return audit_kernels([figure for figure in figures if isinstance(figure, Kernel)])
    return audit_timings(kind, [figure for figure in figures if isinstance(figure, Timing)])


def _on(gpu: Gpu | None, figures: Sequence[F]) -> list[F]:
    """Those that name no card, on this one."""
    return [figure if figure.gpu or gpu is None else replace(figure, gpu=gpu.name) for figure in figures]


def _with_unreadable(audit: Audit, unreadable: list[NotJudged]) -> Audit:
    places = [*audit.places, *(one.place for one in unreadable)]
    return replace(audit, places=places, not_judged=[*audit.not_judged, *unreadable])


def audit_timings(kind: str, timings: Sequence[Timing]) -> Audit:
    said: list[Finding | NotJudged | None] = []
    neighbours: Neighbours | None = None
    for timing in timings:
        for one in (*rule_out(timing), one_outlier(timing)):
            if isinstance(one, Finding):
                neighbours = neighbours or Neighbours(timings)
                one = neighbours.explain(one)
            said.append(one)
    said += consistency.findings_between(timings)
    return _audit(kind, timings, said)


def audit_memory(memories: list[Memory]) -> Audit:
    said = [memory_beyond_card(memory) for memory in memories]
    said += [finding for rule in MEMORY_RULES for finding in rule(memories)]
    return _audit("memory", memories, said)


def audit_kernels(kernels: list[Kernel]) -> Audit:
    said: list[Finding | NotJudged | None] = [finding for rule in KERNEL_RULES for finding in rule(kernels)]
    partial = "has neither a share nor both calls and average, so nothing to check it against"
    said += [
        NotJudged(kernel.place, partial)
        for kernel in kernels
        if kernel.percent is None and (total_of(kernel) is None or kernel.average_seconds is None)
    ]
    return _audit("kernels", kernels, said)


def _audit(kind: str, rows: Sequence[LabelledFigure], said: Sequence[Finding | NotJudged | None]) -> Audit:
    findings = _gravest_first([one for one in said if isinstance(one, Finding)])
    return Audit(kind, [row.place for row in rows], findings, [one for one in said if isinstance(one, NotJudged)])


def _gravest_first(findings: Sequence[Finding]) -> list[Finding]:
    order = list(VERDICTS)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))


def _batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """`itertools.batched` of Python 3.12."""
    rows = iter(rows)
    while batch := list(islice(rows, size)):
        yield batch


# What a file's audit came to, part by part: counts, and one line for findings that are alike.


MOST_GROUPS = 2000
"""Kept apart; findings beyond are counted under their rule alone."""
MOST_PLACES = 4


@dataclass
class Group:
    """Findings of one rule on one source, and the worst of them."""

    worst: Finding
    findings: int = 0
    figures: int = 0
    first_places: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.findings += 1
        self.figures += len(finding.places)
        self.first_places += finding.places[: MOST_PLACES - len(self.first_places)]
        if finding.excess > self.worst.excess:
            self.worst = finding

    def sentence(self) -> str:
        if self.findings == 1:
            return self.worst.sentence()
        others = f", ... ({how_many(self.figures, 'figure')})" if self.figures > len(self.first_places) else ""
        places = ", ".join(place.removeprefix("line ") for place in self.first_places)
        named = "lines " if self.first_places[0].startswith("line ") else ""
        return f"{self.worst.sentence()} The worst of {self.findings} like it: {named}{places}{others}."


@dataclass
class Tally:
    kind: str = ""
    figures: int = 0
    parts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    first_unjudged: dict[str, NotJudged] = field(default_factory=dict)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)

    def add(self, audit: Audit) -> None:
        self.kind = audit.kind
        self.figures += len(audit.places)
        self.parts += 1
        self.counts.update(audit.counts())
        for one in audit.not_judged:
            self.unjudged[one.reason] += 1
            self.first_unjudged.setdefault(one.reason, one)
        for finding in audit.findings:
            self._group(finding).add(finding)

    def _group(self, finding: Finding) -> Group:
        key = (finding.verdict, finding.rule, finding.series)
        if key not in self.groups and len(self.groups) >= MOST_GROUPS:
            key = (finding.verdict, finding.rule, "")
        return self.groups.setdefault(key, Group(finding))

    @property
    def accuses(self) -> bool:
        return any(verdict in ACCUSING for verdict, _, _ in self.groups)

    def worst_first(self, with_notices: bool) -> Iterator[Group]:
        order = list(VERDICTS)
        groups = [group for (verdict, _, _), group in self.groups.items() if with_notices or verdict != NOTICE]
        return iter(sorted(groups, key=lambda group: (order.index(group.worst.verdict), -group.worst.excess)))

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [f"{verdict}: {self.counts[verdict]} ({meaning})" for verdict, meaning in VERDICTS.items()]
        for reason, count in self.unjudged.most_common(MOST_REASONS):
            first = self.first_unjudged[reason]
            detail = f" ({'first ' if count > 1 else ''}{first.place}: {first.detail})" if first.detail else ""
            lines.append(f"not judged: {count}: {reason}{detail}")
        rest = self.unjudged.most_common()[MOST_REASONS:]
        if rest:
            lines.append(f"not judged: {sum(count for _, count in rest)}: {len(rest)} other reasons")
        lines.append(f"{how_many(self.figures, 'figure')} of {self.kind}, {self.counts['fine']} without a finding")
        return lines


MOST_REASONS = 30
"""Shown one by one."""
