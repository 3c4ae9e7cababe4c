"""Two runs in a terminal: what is lost first, the worst ratio next, every case once, in whatever width there is."""

import sys
from collections.abc import Sequence

import pytest

from perf_tests.records.store import ComparedCase, Status, compare
from perf_tests.report.comparison import (
    NARROWEST,
    STRIP_COLUMNS,
    Reading,
    ScreenLine,
    comparison_lines,
    painted,
    reading,
    shortened,
)
from tests.support.synthetic import FORWARD, record, timed, untimed

TEN = timed()["stats"]["data"]


def times(factor: float) -> list[float]:
    return [factor * seconds for seconds in TEN]


BEFORE = record(
    [timed("gone"), timed("same"), timed("slower"), timed("much-slower"), timed("faster"), timed("incomparable"),
     timed("no-longer")],
    [untimed("measured-now"), untimed("never", reason="never fits")],
)  # fmt: skip
NOW = record(
    [timed("same"), timed("slower", times(2)), timed("much-slower", times(3)), timed("faster", times(0.5)),
     timed("incomparable", batch_size=8), timed("measured-now"), timed("new")],
    [untimed("no-longer", reason="1 GiB asked"), untimed("never", reason="never fits")],
)  # fmt: skip


def texts(width: int = 120) -> list[str]:
    return [line.text for line in comparison_lines(compare(BEFORE, NOW), width)]


def measured(
    case_id: str, ratio: float, interval: tuple[float, float] | None, before_seconds: float = 1.0
) -> ComparedCase:
    return ComparedCase(case_id, Status.MEASURED, ratio * before_seconds, before_seconds, ratio, interval)


@pytest.mark.parametrize(
    "case_id, words",
    [
        ("same", "1.000"),
        ("slower", "2.000"),
        ("gone", "gone (1.045 s before)"),
        ("new", "new (1.045 s)"),
        ("incomparable", "incomparable (1.045 s): batch_size was 4, is 8"),
        ("measured-now", "measured now, not before (1.045 s): out of memory before"),
        ("no-longer", "no longer measured (1.045 s before): now out of memory: 1 GiB asked"),
        ("never", "measured in neither: now out of memory: never fits"),
    ],
)
def test_each_case_of_either_run_is_one_line(case_id: str, words: str) -> None:
    (line,) = [text for text in texts() if text.startswith(f"{case_id} ")]
    assert words in line


def test_the_first_line_counts_what_became_of_the_cases_and_a_note_says_that_no_interval_is_a_verdict() -> None:
    assert any("within these launches" in text and "no verdict" in text for text in texts())
    assert texts()[0] == (
        "10 cases: 1 gone, 1 no longer measured, 1 incomparable, 3 differ, 1 no difference, 1 new, "
        "1 measured now, not before, 1 measured in neither"
    )


def test_what_is_lost_comes_first_and_the_worst_ratio_next() -> None:
    order = [text.split()[0] for text in texts() if not text.startswith(("10", "ratio:", "case"))]
    assert order[:7] == ["gone", "no-longer", "incomparable", "much-slower", "slower", "faster", "same"]
    assert set(order[7:]) == {"new", "measured-now", "never"}


def test_a_large_ratio_within_its_interval_stands_below_a_small_one_beyond_it() -> None:
    rows = [measured("noisy", 2.0, (0.5, 3.0)), measured("sure", 1.1, (1.05, 1.2))]
    found = [line.text.split()[0] for line in comparison_lines(rows, 120)]
    assert found.index("sure") < found.index("noisy")


LONG = "perf_tests/test_attention.py::test_attention_backward[d128-seq16384-fp32-compiled-{}]"
LONG_ROWS = [measured(LONG.format(number), 1.1117, (1.0123, 1.2345), before_seconds=11.1e-3) for number in range(3)]


@pytest.mark.parametrize("width", [20, 80, 100, 120, 160, 200, 400])
@pytest.mark.parametrize("rows", [LONG_ROWS, compare(BEFORE, NOW)])
def test_the_table_fits_its_terminal(rows: Sequence[ComparedCase], width: int) -> None:
    found = [line.text for line in comparison_lines(rows, width)]
    first = next(place for place, text in enumerate(found) if text.startswith("case"))
    measured = sum(row.ratio is not None for row in rows)
    assert max(map(len, found[first : first + 1 + measured])) <= max(width, NARROWEST)


def test_a_narrow_terminal_keeps_ratio_and_interval_and_drops_times() -> None:
    header = next(text for text in texts(80) if text.startswith("case"))
    _, narrow, row, *_ = comparison_lines(LONG_ROWS, 80)
    assert header.split()[:2] == ["case", "before"], "short names leave room"
    assert narrow.text.split() == ["case", "ratio", "95", "%", "interval", "reading"]
    assert "1.012 to 1.23" in row.text


def test_a_name_that_does_not_fit_keeps_both_ends() -> None:
    assert shortened("attention_backward d16-naive", 15) == "attent..6-naive"
    assert shortened("short", 15) == "short"


def test_a_wide_terminal_draws_each_interval_around_one() -> None:
    rows = [measured("up", 1.1, (1.05, 1.15)), measured("same", 1.0, (0.95, 1.05))]
    up, same = [line.text for line in comparison_lines(rows, 160)][2:4]
    middle = up.index("|")
    assert middle == same.rindex("o"), "one column stands for the ratio 1 in every row"
    assert middle < up.rindex("o")
    assert up.rstrip().endswith("-")
    assert len(same) - middle <= STRIP_COLUMNS


@pytest.mark.parametrize(
    "interval, said",
    [
        ((1.01, 1.2), Reading.DIFFERS),
        ((0.8, 0.99), Reading.DIFFERS),
        ((0.9, 1.1), Reading.SAME),
        (None, Reading.TOO_FEW),
    ],
)
def test_a_reading_is_that_of_its_interval(interval: tuple[float, float] | None, said: Reading) -> None:
    row = measured("a", 1.0, interval)
    assert reading(row) is said
    assert f" {said} " in comparison_lines([row], 120)[2].text


def test_colour_says_only_what_words_say() -> None:
    found = [(line.is_red, line.text.split()[0]) for line in comparison_lines(compare(BEFORE, NOW), 120)]
    assert {name for is_red, name in found if is_red} == {"gone", "no-longer"}


@pytest.mark.parametrize(
    "is_terminal, environment, is_painted",
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_whose_users_want_it(
    is_terminal: bool, environment: dict[str, str], is_painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert painted(ScreenLine("gone", is_red=True)) == ("\x1b[31mgone\x1b[0m" if is_painted else "gone")
    assert painted(ScreenLine("same")) == "same"


def test_nothing_to_compare_is_nothing_to_say() -> None:
    assert comparison_lines([], 120) == []
    new_alone = comparison_lines(compare(record(), record([timed(FORWARD)])), 120)
    assert [line.text for line in new_alone] == ["1 case: 1 new", "forward tiny-ctx8-fp32-naive: new (1.045 s)"]
