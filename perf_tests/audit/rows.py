"""Rows of published tables: columns under the names in use, labels and figures in cells, lines of a CSV as it comes."""

import csv
import io
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from sys import intern
from typing import Any, TextIO

from perf_tests_suite.perf_tests.records.record import SUFFIXES, unpacked, without_path


class UnreadableCellError(ValueError):
    """A cell that is no figure. `reason` is the same for all such cells of a column; `detail` is this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


# Units.


SECONDS = {
    word: seconds
    for seconds, words in (
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms msec msecs millisecond milliseconds"),
        (1e-6, "us usec usecs microsecond microseconds"),
        (1e-9, "ns nsec nsecs nanosecond nanoseconds"),
    )
    for word in words.split()
}
"""Seconds of one unit by its word, with u for the Greek letter."""

Factors = tuple[float, float] | None
"""Least and most SI units of one unit as tables write it; None for a word that is no unit."""


@lru_cache(maxsize=4096)
def seconds_in(word: str) -> Factors:
    """Seconds of one unit."""
    seconds = SECONDS.get(word.strip().casefold().replace("µ", "u").replace("μ", "u"))
    return None if seconds is None else (seconds, seconds)


@lru_cache(maxsize=4096)
def bytes_in(unit: str) -> Factors:
    """The fewest and most bytes of one unit.

    MB and GB are powers of 1000 or of 1024; a remark in parentheses, `(1e6)` or `(written MB)`, tells which.
    """
    name, _, remark = unit.casefold().replace(" ", "").partition("(")
    match = re.fullmatch(r"([kmgt]?)(i?)b", "b" if name in ("byte", "bytes") else name)
    if match is None:
        return None
    power = ("", "k", "m", "g", "t").index(match[1])
    least, most = 1000.0**power, 1024.0**power
    if match[2]:
        return most, most
    return (least, least) if re.match(r"1e\d|10\^|decimal", remark) else (least, most)


# The columns of published tables, under the names in use.


MODEL, ALONE, MEMORY = "model timing", "attention timing", "memory"
LABELLED, TIMED = (MODEL, ALONE, MEMORY), (MODEL, ALONE)


@dataclass(frozen=True)
class TableColumn:
    """What one column of these kinds of tables is called, the best name first."""

    name: str
    names: str
    kinds: Sequence[str] = LABELLED
    factors_of: Callable[[str], Factors] | None = None
    """A reader of the units of its figures, which its heading may name, `mean_ms`; None for labels and counts."""
    may_be_unnamed: bool = False
    """Whether a heading that is a unit alone names it, `ms`: a table has its main figures so."""

    def find(self, normal: Sequence[str], taken: Container[int] = ()) -> tuple[int, str] | None:
        """Place and unit of the first column of these names; one of figures also with a unit or by a unit alone."""
        words = self.names.split()
        if self.factors_of is None:
            return next(((normal.index(word), "") for word in words if word in normal), None)
        free = [(place, name) for place, name in enumerate(normal) if place not in taken]
        for word in words:
            for place, name in free:
                unit = name.removeprefix(f"{word}_")
                if name == word or (unit != name and self.factors_of(unit)):
                    return place, "" if name == word else unit
        return next(((place, name) for place, name in free if self.may_be_unnamed and self.factors_of(name)), None)


_CONTEXT = "context context_length ctx ctx_len n_ctx seq_len seqlen sequence_length seq_length seq"
MEAN = TableColumn(
    "mean", "mean mean_time time avg average avg_time average_time latency duration elapsed runtime median median_time "
    "p50 min min_time best", TIMED, seconds_in, may_be_unnamed=True,
)  # fmt: skip
AMOUNT = TableColumn(
    "value", "value peak memory mem peak_memory peak_mem max_memory allocated peak_allocated amount", (MEMORY,),
    bytes_in, may_be_unnamed=True,
)  # fmt: skip

COLUMNS = (
    TableColumn("source", "source repository repo file url origin"),
    TableColumn("gpu", "gpu gpu_name gpu_type device_name device card hardware accelerator"),
    TableColumn("gpu_basis", "gpu_basis device_basis"),
    TableColumn("cards", "n_gpus num_gpus gpu_count ngpus gpus world_size world n_devices num_devices"),
    TableColumn("batch", "batch batch_size bs batchsize local_batch_size b"),
    TableColumn("precision", "precision dtype data_type amp"),
    TableColumn("tf32", "tf32 allow_tf32 use_tf32 tf32_enabled matmul_precision float32_matmul_precision"),
    TableColumn("compiled", "compiled compile torch_compile is_compiled jit"),
    TableColumn(
        "attention", "attention impl implementation attention_impl attn attn_impl variant backend method kernel_type"
    ),
    TableColumn("window", "window window_size sliding_window attention_window sparsity"),
    TableColumn("execution", "execution"),
    TableColumn("checkpoint", "checkpoint"),
    TableColumn("optimizer", "optimizer optim optimiser"),
    TableColumn("unit", "unit units"),
    TableColumn("phase", "phase pass direction stage mode step_type what", TIMED),
    TableColumn("size", "size model model_size model_name size_name", (MODEL, MEMORY)),
    TableColumn("d_ff", "d_ff d_ffn ffn_dim ffn d_hidden intermediate_size hidden_dim_ff", (MODEL, MEMORY)),
    TableColumn("n_layers", "n_layers num_layers layers n_layer depth num_hidden_layers", (MODEL, MEMORY)),
    TableColumn("n_heads", "n_heads num_heads heads n_head num_attention_heads", (MODEL, MEMORY)),
    TableColumn("vocab", "vocab vocab_size", (MODEL, MEMORY)),
    TableColumn("d_model", "d_model dmodel width hidden_size n_embd embed_dim", (MODEL, MEMORY)),
    TableColumn("context", _CONTEXT, (MODEL,)),
    TableColumn("context", f"{_CONTEXT} length", (MEMORY,)),
    TableColumn(
        "seq_len", "seq_len seqlen sequence_length seq_length seq length context context_length ctx n_ctx l t n",
        (ALONE,),
    ),
    TableColumn("d_model", "d_model d head_dim d_head dim width embed_dim dmodel head_size headdim", (ALONE,)),
    TableColumn("heads", "heads n_heads num_heads nheads h", (ALONE,)),
    TableColumn("causal", "causal_mask causal is_causal", (ALONE,)),
    TableColumn("object", "object", (MEMORY,)),
    TableColumn("mode", "mode phase what quantity", (MEMORY,)),
    MEAN,
    AMOUNT,
)  # fmt: skip
"""Labels before figures: a column that is taken as a label is no figure too."""


@dataclass(frozen=True)
class Layout:
    """The columns of one table and their places."""

    header: Sequence[str]
    places: Mapping[str, int]
    factors: Mapping[str, tuple[float, float]]
    """SI units of one unit, for columns whose heading names it."""


def layout_of(header: Sequence[str], kind: str) -> Layout:
    """The columns of this kind of table among those of the header."""
    normal = [normal_name(name) for name in header]
    places: dict[str, int] = {}
    factors: dict[str, tuple[float, float]] = {}
    for column in (column for column in COLUMNS if kind in column.kinds):
        if found := column.find(normal, set(places.values())):
            places[column.name], unit = found
            if column.factors_of and (per_unit := column.factors_of(unit)):
                factors[column.name] = per_unit
    return Layout(header, places, factors)


def normal_name(name: str) -> str:
    """`Time (%)` as `time_pct`, `Mean [µs]` as `mean_us`; a unit of bytes keeps its remark, `MiB (written MB)`."""
    if bytes_in(name) is not None:
        return name.casefold().strip()
    plain = name.casefold().replace("µ", "u").replace("μ", "u").replace("%", " pct ")
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


TOO_LARGE = 1e15
"""Limit of any figure: what is larger has lost its decimal point or its meaning."""

Measured = tuple[float | None, float | None]
"""The least that the unit leaves open; the most that it does, with half of the last digit. None without a figure."""


class TableLine:
    """One line by column; what is no figure raises UnreadableCellError."""

    __slots__ = ("layout", "place", "values")

    def __init__(self, place: str, values: list[str], layout: Layout) -> None:
        self.place = place
        self.values = [*map(str.strip, values), ""]  # the last one stands for absent columns
        self.layout = layout

    @property
    def labels(self) -> tuple[str, str, str]:
        """Place, series and GPU, which every figure has; each text is kept once."""
        cards, gpu = self.text("cards"), self.text("gpu")
        if gpu and cards.isdecimal() and int(cards) > 1:
            gpu = f"{cards} x {gpu}"
        return self.place, intern(self.text("source")), intern(gpu)

    def has(self, column: str) -> bool:
        return column in self.layout.places

    def text(self, column: str) -> str:
        return self.values[self.layout.places.get(column, -1)]

    def name(self, column: str) -> str:
        """The column's, as the header writes it."""
        return self.layout.header[self.layout.places[column]]

    def figure(self, column: str) -> tuple[float, str] | None:
        """The figure as written and its unit; None where there is none."""
        text = self.text(column)
        if not text:
            return None
        try:
            found: tuple[float, str] | None = (float(text), "")
        except ValueError:
            found = number_in(text, self.name(column))
        if found and not abs(found[0]) < TOO_LARGE:
            raise UnreadableCellError(f"{self.name(column)} is not finite and below {TOO_LARGE:g}", repr(text[:40]))
        return found

    def count(self, column: str) -> int | None:
        """A whole number of 0 or more."""
        text = self.text(column)
        if text.isdecimal() and text.isascii() and len(text) < 15:
            return int(text)
        found = self.figure(column)
        if found is None:
            return None
        value, unit = found
        if unit in ("k", "K"):  # 4k tokens are 4096, 10k words are 10 000
            value *= 1024 if value > 0 and math.log2(value).is_integer() else 1000
        if value != int(value) or value < 0:
            raise UnreadableCellError(f"{self.name(column)} is not a whole number of 0 or more", f"{value:g}")
        return int(value)

    def measured(self, column: str, factors_of: Callable[[str], Factors]) -> Measured:
        """The figure in SI units."""
        found = self.figure(column)
        if found is None:
            return None, None
        value, unit = found
        of_heading, beside, is_time = self.layout.factors.get(column), self.text("unit"), factors_of is seconds_in
        if unit:
            factors = factors_of(unit)
        elif is_time:  # its heading goes before a column of units, which may be of amounts beside the times
            factors = of_heading or factors_of(beside)
        else:
            factors = factors_of(beside) if beside else of_heading
        if factors is None:
            what = f"{self.name(column)} has no known unit of time" if is_time else "its unit of memory is unknown"
            raise UnreadableCellError(what, repr(unit or beside) if unit or beside else "none")
        least, most = factors
        return value * least, (value + half_digit(self.text(column))) * most


# Figures as tables write them: `35 ms`, `34.2 ± 3`.


_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_FIGURE = re.compile(rf"([-+]?{_NUMBER})\s*(?:(?:±|\+/?-)\s*{_NUMBER})?\s*([a-z%]*)", re.I)
_NO_FIGURE = ("-", "\N{EM DASH}", "\N{EN DASH}", "n/a", "na", "none", "null", "oom")
_RANGE = re.compile(r"\d+ ?- ?\d+|up to \d+")
_DECIMALS = re.compile(r"\.(\d*)")


def number_in(text: str, column: str) -> tuple[float, str] | None:
    """The figure of `34.2 ± 3 ms` and its unit; None for no figure and for a range.

    Decimals begin with a point: a comma may begin them or separate thousands, so that its figure is none.
    """
    if text.casefold() in _NO_FIGURE or _RANGE.fullmatch(text):
        return None
    match = _FIGURE.fullmatch(text)
    if match is None:
        raise UnreadableCellError(f"{column} is not a number", repr(text[:40]))
    return float(match[1]), match[2]


def half_digit(text: str) -> float:
    """Half of the last digit, by which a figure may have been rounded; 0 in a notation with an exponent."""
    if "e" in text or "E" in text:
        return 0.0
    decimals = _DECIMALS.search(text)
    return float(0.5 * 10.0 ** -(len(decimals[1]) if decimals else 0))


# A CSV as it comes: any of three separators, UTF-8 or UTF-16, damaged lines among good ones.


SEPARATORS = ",;\t"
MOST_UNPACKED_BYTES = 200_000_000

Lines = Iterator[tuple[str, "list[str] | UnreadableCellError"]]
"""`line 7`, and its values or why it has none."""


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as text, whatever its byte order mark says. Raises ValueError with one sentence."""
    try:
        if path.is_char_device():
            raise ValueError(f"{path} is a device, which may never end; write the table into a file first.")
        # Line by line from the disk, but a packed table unpacked as a whole.
        packed = io.BytesIO(unpacked(path, MOST_UNPACKED_BYTES)) if path.suffix in SUFFIXES else None
        with open(path, "rb") if packed is None else io.BufferedReader(packed) as file:
            is_utf16 = file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff")
            encoding = "utf-16" if is_utf16 else "utf-8-sig"
            yield io.TextIOWrapper(file, newline="", encoding=encoding, errors="replace")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{path} cannot be read as a CSV: {without_path(error)}.") from error


def tables_in(path: Path, file: TextIO) -> Iterator[tuple[str, list[str], Lines]]:
    """The place, the header and the lines below it, of a CSV or of each table of a Markdown page.

    Raises ValueError for a file without a header.
    """
    first, above = file.readline(), 1
    while first and not first.strip():
        first, above = file.readline(), above + 1
    if path.suffix.casefold() in (".md", ".markdown") or first.lstrip().startswith("|"):
        yield from _pipe_tables([first, *file], above)
        return
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
    lines = csv.reader(file, delimiter=separator, strict=True)
    yield f"line {above}", header, _lines(lines, len(header), above)


def _pipe_tables(page: Sequence[str], above: int) -> Iterator[tuple[str, list[str], Lines]]:
    """Tables between bars, each under a rule of dashes; `above` is the number of the page's first line."""
    bare = (line.strip().removeprefix("|").removesuffix("|") if "|" in line else "" for line in page)
    split = (re.split(r"(?<!\\)\|", line) if line else [] for line in bare)
    cells = [[re.sub(r"\\(\W)|[*`]", r"\1", cell).strip() for cell in line] for line in split]
    for number, rule in enumerate(cells[1:], 1):
        header = cells[number - 1]
        if rule and len(rule) == len(header) and all(re.fullmatch(r" *:?-+:? *", cell) for cell in rule):
            below = enumerate(takewhile(bool, cells[number + 1 :]), above + number + 1)
            lines = [(f"line {place}", _of_width(values, len(header))) for place, values in below]
            yield f"line {above + number - 1}", header, iter(lines)


def _lines(lines: Any, columns: int, above: int) -> Lines:
    while True:
        try:
            values = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {above + lines.line_num}", UnreadableCellError("the line is not CSV", str(error))
            continue
        place = f"line {above + lines.line_num}"
        if values:
            yield place, _of_width(values, columns)


def _of_width(values: list[str], columns: int) -> list[str] | UnreadableCellError:
    """The values of a line, or why they are none under so many columns."""
    if len(values) == columns:
        return values
    reason = "the line has another number of values than the header"
    return UnreadableCellError(reason, f"{len(values)} values under {columns} columns")
