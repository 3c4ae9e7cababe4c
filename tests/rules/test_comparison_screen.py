"""Two runs in a terminal: what is lost first, the worst ratio next, every case once, in whatever width there is."""

from collections.abc import Sequence

import pytest

from perf_tests_suite.perf_tests.records.store import ComparedCase, Status, compare
from perf_tests_suite.perf_tests.report import comparison as screen
from perf_tests_suite.perf_tests.report.comparison import NARROWEST, Reading, comparison_lines, painted, shortened
from tests.support.synthetic import TEN_ROUNDS, record, timed, untimed


def slower(name: str, factor: float) -> dict[str, object]:
    return timed(name, [factor * seconds for seconds in TEN_ROUNDS])


BEFORE = record(
    [timed(name) for name in ("gone", "same", "slower", "much-slower", "faster", "incomparable", "no-longer")],
    [untimed("measured-now"), untimed("never", reason="never fits")],
)
NOW = record(
    [timed("same"), slower("slower", 2), slower("much-slower", 3), slower("faster", 0.5),
     timed("incomparable", batch_size=8), timed("measured-now"), timed("new")],
    [untimed("no-longer", reason="1 GiB asked"), untimed("never", reason="never fits")],
)  # fmt: skip
ROWS = compare(BEFORE, NOW)
SHOWN = {
    "gone": "gone (1.045 s before)",
    "no-longer": "no longer measured (1.045 s before): now out of memory: 1 GiB asked",
    "incomparable": "incomparable (1.045 s): batch_size was 4, is 8",
    "much-slower": "1.045 s 3.135 s 3.000 2.806 to 3.208 differs",
    "slower": "1.045 s 2.09 s 2.000 1.870 to 2.139 differs",
    "faster": "1.045 s 522.5 ms 0.500 0.468 to 0.535 differs",
    "same": "1.045 s 1.045 s 1.000 0.935 to 1.069 no difference",
    "measured-now": "measured now, not before (1.045 s): out of memory before",
    "never": "measured in neither: now out of memory: never fits",
    "new": "new (1.045 s)",
}
"""What stands of each case, in the order of the screen but for the last three."""


def measured(name: str, ratio: float, interval: tuple[float, float] | None, before: float = 1.0) -> ComparedCase:
    return ComparedCase(name, Status.MEASURED, ratio * before, before, ratio, interval)


def texts(rows: Sequence[ComparedCase], width: int = 120) -> list[str]:
    return [text for text, _ in comparison_lines(rows, width)]


def test_each_case_of_either_run_is_one_line_what_is_lost_first_and_then_the_worst_ratio() -> None:
    tally, *lines = texts(ROWS)
    assert tally == (
        "10 cases: 1 gone, 1 no longer measured, 1 incomparable, 3 differ, 1 no difference, 1 new, "
        "1 measured now, not before, 1 measured in neither"
    )
    found = {line.split()[0]: line for line in lines if not line.startswith(("case ", "ratio:"))}
    assert list(found)[:7] == list(SHOWN)[:7]
    for name, words in SHOWN.items():
        told = " ".join(found.pop(name).split()[1:]).partition(" -")[0].partition(" |")[0]
        assert words in told.removesuffix(" o"), name
    assert found == {}
    assert any("within these launches" in line and "For a verdict" in line for line in lines)
    red = {text.split()[0] for text, is_red in comparison_lines(ROWS, 120) if is_red}
    assert red == {"gone", "no-longer"}, "colour says only what words say"


LONG = "perf_tests/test_attention.py::test_attention_backward[d128-seq16384-fp32-compiled-{}]"
LONG_ROWS = [measured(LONG.format(number), 1.1117, (1.0123, 1.2345), before=11.1e-3) for number in range(3)]


@pytest.mark.parametrize("width", [20, 80, 100, 120, 160, 200, 400])
def test_the_table_fits_its_terminal(width: int) -> None:
    for rows in (LONG_ROWS, ROWS):
        found = texts(rows, width)
        first = next(place for place, text in enumerate(found) if text.startswith("case"))
        with_ratio = sum(row.ratio is not None for row in rows)
        assert max(map(len, found[first : first + 1 + with_ratio])) <= max(width, NARROWEST)


def test_a_narrow_terminal_keeps_ratio_and_interval_and_both_ends_of_a_name() -> None:
    header = next(text for text in texts(ROWS, 80) if text.startswith("case"))
    assert header.split()[:2] == ["case", "before"], "short names leave room"
    _, narrow, row, *_ = texts(LONG_ROWS, 80)
    assert narrow.split() == ["case", "ratio", "95", "%", "interval", "note"]
    assert "1.012 to 1.23" in row
    assert shortened("attention_backward d16-naive", 15) == "attent..6-naive"
    assert shortened("fifteen-letters", 15) == "fifteen-letters"


def test_a_wide_terminal_draws_each_interval_around_one() -> None:
    rows = [measured("up", 1.1, (1.05, 1.15)), measured("same", 1.0, (0.95, 1.05)), measured("few", 1.1, None)]
    up, few, same = (next(one for one in texts(rows, 160) if one.startswith(name)) for name in ("up", "few", "same"))
    middle = up.index("|")
    assert middle == same.rindex("o"), "one column stands for the ratio 1 in every row"
    assert middle < up.index("-o") < len(up) - 1
    assert up.endswith("-")
    assert (few[middle], few[-1], len(few)) == ("|", "o", up.rindex("o") + 1)
    assert len(up) - middle - 1 == screen.STRIP_COLUMNS // 2, "the end that is furthest off reaches the edge"


READINGS: list[tuple[float, tuple[float, float] | None, str]] = [
    (1.15, (1.01, 1.2), "differs"), (0.9, (0.8, 0.99), "differs"), (1.05, (0.9, 1.1), "no difference"),
    (1.1, (1.0, 1.2), "no difference"), (0.9, (0.8, 1.0), "no difference"), (1.5, None, "too few rounds"),
]  # fmt: skip


def test_a_reading_is_that_of_its_interval_and_what_lies_beyond_it_comes_first() -> None:
    for ratio, interval, said in READINGS:
        rows = texts([measured("a", ratio, interval), measured("sure", 1.02, (1.01, 1.03))])[2:4]
        assert any(row.startswith("a ") and f" {said} " in row for row in rows)
        assert [row.split()[0] for row in rows] == (["a", "sure"] if said == Reading.DIFFERS else ["sure", "a"])


def test_nothing_to_compare_is_nothing_to_say_and_what_is_lost_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts([]) == []
    assert texts(compare(record(), record([timed("a")]))) == ["1 case: 1 new", "a : new (1.045 s)"]
    for has_colours, red in ((True, "\x1b[31mgone\x1b[0m"), (False, "gone")):
        monkeypatch.setattr(screen, "has_colours", lambda has_colours=has_colours: has_colours)
        assert list(map(painted, [("gone", True), ("same", False)])) == [red, "same"]
