"""The rows of a CSV as it comes: any of three separators, UTF-8 or UTF-16, damaged lines among good ones."""

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import intern
from typing import Any, TextIO

from perf_tests.audit.files.headers import Layout
from perf_tests.audit.files.units import UnreadableError, bytes_in, half_digit, number_in, seconds_in
from perf_tests.records.unpacked import SUFFIXES, unpacked
from perf_tests.records.words import without_path

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
