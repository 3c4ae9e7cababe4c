"""What warm-up rounds do, and what a first round is spent on."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean, median, stdev

from perf_tests.records.columns import Cell, labels_of, rows_in, seconds_of
from perf_tests.records.format import significant, with_spread
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Labels, Question
from perf_tests.report.cs336_parts.published import E2E, of_answers, of_table, time_text
from perf_tests.report.cs336_parts.recorded import Row, of_rows, passed
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.tables import first_round_parts, part_name, series_name

TITLE = "Warm-up"
COMMAND = (
    "pytest perf_tests/test_warmup.py perf_tests/test_attention_warmup.py --warmup-study --phase forward,backward "
    "--precision fp32"
)
CASE = ("Case", "Phase")
NONE, COURSE = "0", "5"
BARE, FEW, ALL = (NONE, COURSE), ("1", "2", COURSE), (COURSE, NONE, "1")
"""Numbers of warm-up rounds."""
STUDY = passed("warmup", bool)
inferred = partial(of_table, E2E, compiled="no", precision="fp32", size="small?")
"""Of the write-up that varied its warm-up, whose size is inferred."""


def _case(cell: Cell) -> tuple[str, str]:
    """Its size and context, or for attention alone its width and length; and the phase."""
    size, context, phase, precision, implementation = labels_of(cell)
    return " ".join((size, context, precision, implementation)), phase


def _series(cell: Cell) -> dict[str, Json]:
    return {series_name(row): row for row in rows_in(cell.info, "series")}


def _mean(series: Json) -> str:
    seconds = seconds_of(series, "seconds")
    return with_spread(fmean(seconds) * 1e3, stdev(seconds) * 1e3) if len(seconds) > 1 else ""


def _first_over_others(series: Json) -> str:
    rounds = seconds_of(series, "seconds")
    return significant(rounds[0] / median(rounds[1:]), 3) if len(rounds) > 1 else ""


def _after(*counts: str) -> Callable[[Cell, Labels], Iterator[Row]]:
    """Times after so many warm-up rounds."""
    return lambda cell, _: (
        (_case(cell), f"here, after {count} (ms)", _mean(_series(cell).get(count, {}))) for count in counts
    )


def _enough(cell: Cell, _: Labels) -> Iterator[Row]:
    yield _case(cell), "here: first round / others", _first_over_others(_series(cell).get(NONE, {}))
    needed = cell.number("recommended_warmup_rounds")
    yield _case(cell), "here: rounds enough", "" if needed is None else f"{needed:.0f}"


def _parts(sources: Sources, _: Labels) -> list[Figure]:
    """Of the first round, without parts that no case has."""
    here = [
        Figure(_case(one.cell), f"here: {part_name(name)} (ms)", significant(seconds * 1e3, 3), one.file)
        for one in STUDY(sources)
        for name, seconds in first_round_parts(one.cell.info).items()
        if not name.startswith("steady")
    ]
    shown = {figure.column for figure in here if figure.text not in ("0", "-0")}
    return [figure for figure in here if figure.column in shown]


def _left_out(cell: Cell, _: Labels) -> Iterator[Row]:
    for name, series in _series(cell).items():
        if "without" in name:
            yield _case(cell), "here: first round / others", _first_over_others(series)


def _slow_over_usual(row: published.Row) -> str:
    usual, slow = one_slow_round(float(row["mean_ms"]), float(row["std_ms"]), int(row["n_measured"]))
    return significant(slow / usual, 3)


def one_slow_round(mean: float, std: float, rounds: int) -> tuple[float, float]:
    """(each other round, the slow one), where one round of so many explains the whole population deviation.

    One round d above n - 1 equal ones: mean = other + d / n, std = d sqrt(n - 1) / n.
    """
    excess = std * rounds / math.sqrt(rounds - 1)
    return mean - excess / rounds, mean - excess / rounds + excess


QUESTIONS = (
    Question(
        "What changes without a warm-up?",
        COMMAND,
        "The first round also loads, compiles and allocates, so it lifts the mean and above all the standard "
        "deviation.",
        CASE, [of_rows(STUDY, _after(*BARE))],
        [
            *(inferred(time_text, "ms", f"after {count}", row=("size", "phase"), warmup=count) for count in BARE),
            of_answers("warmup", ("item", "forward_backward")),
        ],
    ),
    Question(
        "And with one or two warm-up rounds?",
        COMMAND,
        "Most one-time work is in the first round, but an allocator and a clock rate may take several to settle.",
        CASE, [of_rows(STUDY, _after(*FEW))],
        [inferred(time_text, "ms", f"after {count}", row=("size", "phase"), warmup=count) for count in FEW],
    ),
    Question(
        "How much longer is the first round, and how many warm-up rounds are enough?",
        COMMAND,
        "A round counts as steady when those after it no longer differ from it by more than they do from each other.",
        CASE, [of_rows(STUDY, _enough)],
    ),
    Question(
        "What is the extra time of the first round spent on?",
        COMMAND,
        "One process under a profiler shows it; what it cannot name stays unexplained.",
        CASE, [_parts],
    ),
    Question(
        "What if the warm-up leaves out the timed phase?",
        COMMAND,
        "Then its first round is measured; one slow round in a mean shows as a deviation as large as the mean.",
        CASE, [of_rows(STUDY, _left_out)],
        [
            inferred(text, unit, words, row=("size", f"backward, after {count}"), phase="backward", warmup=count)
            for count in ALL
            for text, unit, words in (
                (time_text, "ms", ""), (_slow_over_usual, "", "slow / others if it is one round"),
            )
        ],
    ),
)  # fmt: skip
