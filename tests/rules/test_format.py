"""Figures and tables as text: what is read back is what was shown, and a name is never more than text."""

import math
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.records import format as shown
from perf_tests_suite.perf_tests.records.format import DASH, Column, MeanAndStd, text_column

POSITIVE = st.floats(1e-9, 1e9)
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def seconds_in(text: str) -> float:
    figure, unit = text.rsplit(" ", 1)
    return float(figure) * UNITS[unit]


@given(POSITIVE)
def test_a_duration_reads_back_to_four_digits_in_the_largest_unit_that_it_fills(seconds: float) -> None:
    text = shown.duration(seconds)
    assert seconds_in(text) == pytest.approx(seconds, rel=5e-4)
    assert seconds_in(shown.duration(seconds_in(text))) == pytest.approx(seconds_in(text))
    figure, unit = text.split()
    assert unit == "ns" or float(figure) >= 1


@given(POSITIVE, POSITIVE)
def test_a_range_reads_back_to_three_digits_in_one_unit(one: float, other: float) -> None:
    low, high = sorted((one, other))
    first, last, unit = re.fullmatch(r"(\S+) to (\S+) (\S+)", shown.duration_range(low, high)).groups()  # type: ignore[union-attr]
    assert float(last) * UNITS[unit] == pytest.approx(high, rel=5e-3, abs=5e-10)
    assert float(first) * UNITS[unit] == pytest.approx(low, rel=5e-3, abs=0.5 * UNITS[unit] if low < high else None)


@given(POSITIVE | st.floats(-1e9, -1e-9), st.integers(1, 9))
def test_a_significant_figure_reads_back_in_its_digits_and_never_as_a_power_of_ten(value: float, digits: int) -> None:
    text = shown.significant(value, digits)
    assert float(text) == pytest.approx(value, rel=0.5 * 10 ** (1 - digits))
    assert "e" not in text
    assert shown.significant(float(text), digits) == text


@given(POSITIVE, st.floats(1e-6, 1e6))
def test_a_figure_and_its_spread_end_at_one_place_two_digits_into_the_spread(value: float, spread: float) -> None:
    mean, deviation = shown.with_spread(value, spread).split(" ± ")
    assert float(deviation) == pytest.approx(spread, rel=0.051)
    assert abs(float(mean) - value) <= 0.051 * spread + 1e-9 * value
    assert len(mean.partition(".")[2]) == len(deviation.partition(".")[2])


def test_a_range_is_in_the_largest_unit_that_its_higher_end_fills() -> None:
    for text, ends in {"0.0005 to 1 s": (5e-4, 1.0), "0.5 to 1 ms": (5e-4, 1e-3), "200 to 500 ms": (0.2, 0.5)}.items():
        assert shown.duration_range(*ends) == text


FIGURES = {
    "875 ± 12": (875.0398, 12.0133), "1670 ± 120": (1665.15, 123.4), "1.00 ± 0.10": (1.0, 0.0996),
    "50000.0000 ± 0.0010": (50_000.0, 0.001), "12345": (12_345.0, 0.0), "0.001234": (0.0012345, None),
    "2.500": (2.5, None), "1.000": (1.0, math.inf), "0": (0.0, None), "nan": (math.nan, 1.0),
}  # fmt: skip


def test_a_figure_ends_where_its_spread_does() -> None:
    assert [shown.with_spread(*figure) for figure in FIGURES.values()] == list(FIGURES)


def test_the_spread_of_a_ratio_is_that_of_both_sides() -> None:
    assert shown.ratio_spread(2.0, 0.3, 10.0, 0.4, 10.0) == pytest.approx(2.0 * 0.05)
    assert shown.ratio_spread(2.0, None, 10.0, 0.2, 5.0) == pytest.approx(2.0 * 0.04)


STRANGE: tuple[object, ...] = (None, "1", True, False, [1], {}, math.nan, math.inf, -math.inf, 10**400)


def written(name: str, value: object, kind: type = float) -> tuple[str, str, str]:
    """A figure's heading, and how it reads alone and below that."""
    column: Column[object] = Column(name, kind, "", lambda row: row)
    return column.title, column.alone(value), column.below(value)


def test_what_is_no_finite_number_is_a_dash() -> None:
    for value in STRANGE:
        assert (shown.finite(value), written("x_seconds", value)[1:]) == (None, (DASH, DASH))
        assert written("x_seconds", MeanAndStd(value, 0.1), MeanAndStd)[2] == DASH  # type: ignore[arg-type]
    assert [written("x", None, kind)[1:] for kind in (str, bool, int, tuple)] == [(DASH, DASH)] * 4
    assert shown.duration(None) == DASH
    assert [shown.duration(seconds) for seconds in (1.0, 1e-3, 1e-6)] == ["1 s", "1 ms", "1 us"]
    assert shown.duration_range(5e-4, 1e-3) == "0.5 to 1 ms"


def test_a_figure_is_in_the_unit_that_its_name_ends_with_which_stands_beside_it_or_above() -> None:
    for name, value, kind, *expected in (
        ("round_seconds", 0.0125, float, "round_seconds (ms)", "12.5 ms", "12.50"),
        ("round_seconds", (0.0125, 0.5), tuple, "round_seconds (ms)", "12.5 ms to 500 ms", "12.50 to 500.0"),
        ("peak_bytes", 3 * 2**19, int, "peak_bytes (MiB)", "1.500 MiB", "1.500"),
        ("seconds_share", 0.125, float, "seconds_share (%)", "12.5%", "12.5"),
        ("mfu", 0.4567, float, "mfu", "45.7%", "45.7%"),
        ("roofline_fraction", 1.236, float, "roofline_fraction", "124%", "124%"),
        ("sent_bytes_per_second", 1.5e9, float, "sent_bytes_per_second", "1.5 GB/s", "1.5 GB/s"),
        ("tokens_per_second", 12345.6, float, "tokens_per_second", "12,346", "12,346"),
        ("launches", 1234, int, "launches", "1,234", "1,234"),
        ("calls", 60.5, float, "calls", "60.5", "60.5"),
    ):  # fmt: skip
        assert written(name, value, kind) == tuple(expected)
    assert written("x_seconds", MeanAndStd(0.0125, 0.001), MeanAndStd)[2] == "12.5 ± 1.0"
    assert written("x_seconds", MeanAndStd(0.0125, None), MeanAndStd)[2] == "12.50"


def test_numbers_sort_before_words_and_each_value_is_kept_once() -> None:
    assert sorted(["b", 10, None, 9.5, "a"], key=shown.order) == [9.5, 10, None, "a", "b"]
    assert shown.distinct("banana") == ["b", "a", "n"]


def test_columns_are_aligned_whatever_their_width() -> None:
    rows = [("x", "12345", "one"), ("a long name", "1", "twenty")]
    lines = shown.table(("case", "a", "words"), rows, left=("words",))
    assert lines == ["case             a  words ", "x            12345  one   ", "a long name      1  twenty"]
    columns: list[Column[int]] = [
        text_column("n", str), Column("twice", int, "", lambda row: 2 * row, heading="double"), text_column("w", str)
    ]  # fmt: skip
    assert shown.column_table(columns, [1, 20]) == ["n   double  w ", "1        2  1 ", "20      40  20"]
    for width, left in ((14, ["n", "twice", "w"]), (13, ["n", "w"]), (3, ["w"])):
        assert [one.name for one in shown.fitting(columns, [1, 20], width, ("twice", "n"))] == left


CHARACTERS = "abc \n\t\x1b\x07\ud800\u2028|&%$#_{}\\<>[]()\"'`~^*!@=+-±é"
MARKUP = st.lists(st.sampled_from([*CHARACTERS, "\\input", "<script>", "**"]), max_size=12).map("".join)


def one_row(text: str) -> shown.Table:
    return shown.Table("some_name", text, ("A", text), 1, ((text, "1"), ("x", text)), (text,))


@given(MARKUP)
def test_no_text_moves_a_cursor_or_becomes_a_formula(text: str) -> None:
    assert shown.printable(text).isprintable()
    assert len(shown.printable(text)) == len(text)
    assert shown.one_line(text) == " ".join(shown.one_line(text).split())
    starts = text != DASH and text[:1] in tuple("=+-@\t\r")
    assert shown.no_formula(text) == (f"'{text}" if starts else text)
    assert (shown.no_formula(DASH), shown.no_formula(-1.5)) == (DASH, -1.5)


def unescaped(text: str) -> str:
    return re.sub(r"\\.", "", text)


@given(MARKUP)
def test_a_name_opens_nothing_in_markdown(text: str) -> None:
    lines = [line for line in shown.markdown([one_row(text)]).splitlines() if line.startswith("|")]
    assert {unescaped(line).count("|") for line in lines} == {3}
    assert not set("<>`[]*_$#~!@{}&") & set(unescaped(shown.in_markdown(text)))
    assert re.sub(r"\\(.)", r"\1", shown.in_markdown(text)) == shown.one_line(text)


COLOURS: list[tuple[bool, dict[str, str], bool]] = [
    (False, {}, False), (False, {"FORCE_COLOR": "1"}, True), (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    (True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False),
]  # fmt: skip


def test_verdicts_are_painted_where_the_output_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words stay; a change of a step is red where it is slower."""
    row, step = "forward a  SLOWER  +12.0%  OK", "forward a  +12.0%  +10.5% to +13.5%  -3.0%  x"
    red = step.replace("  +12.0%", "\x1b[31m  +12.0%\x1b[0m").replace("  -3.0%", "\x1b[32m  -3.0%\x1b[0m")
    for is_terminal, changes, is_painted in COLOURS:
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **changes}.items():
            monkeypatch.setenv(name, value)
        assert shown.has_colours() is is_painted, changes
    for is_painted in (True, False):
        said = shown.painted(row, is_painted), shown.painted(step, is_painted, shown.STEPS)
        assert said == ((row.replace("SLOWER", "\x1b[31mSLOWER\x1b[0m"), red) if is_painted else (row, step))
