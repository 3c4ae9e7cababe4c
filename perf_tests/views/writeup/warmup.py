"""What warm-up rounds do, and what a first round is spent on."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import Cell, finite, labels_of, rows_in
from perf_tests.views.tables.digits import significant, with_spread
from perf_tests.views.tables.warmup import first_round_parts, part_name, seconds_of, series_name
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.sources import Found, Sources
from perf_tests.views.writeup.timing import E2E

TITLE = "Warm-up"
COMMAND = (
    "pytest perf_tests/test_warmup.py perf_tests/test_attention_warmup.py --warmup-study --phase forward,backward "
    "--precision fp32"
)
CASE = ("Case", "Phase")
NONE, COURSE = "0", "5"


def case_of(cell: Cell) -> tuple[str, str]:
    """Its size and context, or for attention alone its width and length; and the phase."""
    size, context, phase, precision, implementation = labels_of(cell)
    return " ".join((size, context, precision, implementation)), phase


def _series(found: Found) -> dict[str, Json]:
    return {series_name(row): row for row in rows_in(found.cell.info, "series")}


def _mean(series: Json) -> str:
    seconds = seconds_of(series, "seconds")
    return with_spread(fmean(seconds) * 1e3, stdev(seconds) * 1e3) if len(seconds) > 1 else ""


def _after(sources: Sources, counts: Sequence[str]) -> Answer:
    found = sources.passed("warmup")
    here = [
        Figure(case_of(one.cell), f"here, after {count} (ms)", text)
        for one in found
        for count in counts
        if (text := _mean(_series(one).get(count, {})))
    ]
    rows = published.matching(sources.published("e2e_timing.csv"), compiled="no", precision="fp32", size="small?")
    rows.sort(key=lambda row: int(row["warmup"]))
    others = [
        Figure(
            (row["size"], row["phase"]), published.column(row, "ms", f"after {row['warmup']}"), published.time_text(row)
        )
        for row in rows
        if row["warmup"] in counts
    ]
    others += [
        Figure((row["item"], "forward_backward"), published.source_of(row, row["column"]), row["value"])
        for row in published.said(sources, "warmup")
        if NONE in counts
    ]
    return Answer(CASE, here, others, files_of([*(one.file for one in found), E2E]))


@question(
    "What changes without a warm-up?",
    COMMAND,
    "The first round also loads, compiles and allocates, so it lifts the mean and above all the standard deviation.",
)
def without(sources: Sources) -> Answer:
    return _after(sources, (NONE, COURSE))


@question(
    "And with one or two warm-up rounds?",
    COMMAND,
    "Most one-time work is in the first round, but an allocator and a clock rate may take several to settle.",
)
def after_few(sources: Sources) -> Answer:
    return _after(sources, ("1", "2", COURSE))


@question(
    "How much longer is the first round, and how many warm-up rounds are enough?",
    COMMAND,
    "A round counts as steady when those after it no longer differ from it by more than they do from each other.",
)
def enough(sources: Sources) -> Answer:
    found = sources.passed("warmup")
    here = []
    for one in found:
        rounds = seconds_of(_series(one).get(NONE, {}), "seconds")
        needed = finite(one.cell.info.get("recommended_warmup_rounds"))
        if len(rounds) > 1:
            here.append(
                Figure(case_of(one.cell), "here: first round / others", significant(rounds[0] / median(rounds[1:]), 3))
            )
        if needed is not None:
            here.append(Figure(case_of(one.cell), "here: rounds enough", f"{needed:.0f}"))
    return Answer(CASE, here, files=files_of(one.file for one in found))


@question(
    "What is the extra time of the first round spent on?",
    COMMAND,
    "One process under a profiler shows it; what it cannot name stays unexplained.",
)
def first_round(sources: Sources) -> Answer:
    found = sources.passed("warmup")
    here = [
        Figure(case_of(one.cell), f"here: {part_name(name)} (ms)", significant(seconds * 1e3, 3))
        for one in found
        for name, seconds in first_round_parts(one.cell.info).items()
        if not name.startswith("steady")
    ]
    shown = {figure.column for figure in here if figure.text not in ("0", "-0")}
    return Answer(
        CASE, [figure for figure in here if figure.column in shown], files=files_of(one.file for one in found)
    )


@question(
    "What if the warm-up leaves out the timed phase?",
    COMMAND,
    "Then its first round is measured; one slow round in a mean shows as a deviation as large as the mean.",
)
def leaves_out(sources: Sources) -> Answer:
    found = sources.passed("warmup")
    here = []
    for one in found:
        for name, series in _series(one).items():
            rounds = seconds_of(series, "seconds")
            if "without" in name and len(rounds) > 1:
                here.append(
                    Figure(
                        case_of(one.cell), "here: first round / others", significant(rounds[0] / median(rounds[1:]), 3)
                    )
                )
    others = []
    rows = published.matching(sources.published("e2e_timing.csv"), size="small?", phase="backward", compiled="no")
    for row in rows:
        usual, slow = one_slow_round(float(row["mean_ms"]), float(row["std_ms"]), int(row["n_measured"]))
        where = (row["size"], f"{row['phase']}, after {row['warmup']}")
        others += [
            Figure(where, published.column(row, "ms"), published.time_text(row)),
            Figure(where, published.column(row, "", "slow / others if it is one round"), significant(slow / usual, 3)),
        ]
    return Answer(CASE, here, others, files_of([*(one.file for one in found), E2E]))


def one_slow_round(mean: float, std: float, rounds: int) -> tuple[float, float]:
    """(each other round, the slow one), where one round of so many explains the whole population deviation.

    One round d above n - 1 equal ones: mean = other + d / n, std = d sqrt(n - 1) / n.
    """
    excess = std * rounds / math.sqrt(rounds - 1)
    return mean - excess / rounds, mean - excess / rounds + excess


QUESTIONS = (without, after_few, enough, first_round, leaves_out)
