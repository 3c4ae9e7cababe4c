"""Attention alone: times, memory and their growth with the length; compiled and fused; the whole model compiled."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.views.tables.cells import Cell
from perf_tests.views.tables.digits import GIB, MIB, significant
from perf_tests.views.tables.timing import milliseconds, ratio
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.published import Row
from perf_tests.views.writeup.sources import Found, Sources

TITLE = "Attention alone"
GRID = ("Width", "Length")
BATCH = 8
TIMES, MEMORY = "published/attention_timing.csv", "published/memory.csv"
LENGTHS = (256, 1024, 4096, 8192, 16384)
WIDTHS = (16, 32, 64, 128)
FORWARD, BACKWARD = ("forward", "forward(+lm_head+loss)"), ("backward", "backward(lm_head only)+optimizer")
"""A phase here, and what one write-up timed in its place."""


def spot(cell: Cell) -> tuple[str, str]:
    return cell.label("head_dim"), cell.label("sequence_length")


def alone(phase: str = "", *names: str) -> Callable[[Cell], bool]:
    return lambda cell: (
        cell.is_attention
        and cell.label("precision") == "fp32"
        and (not phase or cell.phase == phase)
        and (not names or cell.implementation in names)
    )


def command(*names: str, phase: str = "forward,backward") -> str:
    return f"pytest perf_tests/test_attention.py --attention {','.join(names)} --phase {phase}"


def rows_of(sources: Sources, phases: Sequence[str], compiled: str = "no") -> list[Row]:
    return published.matching(
        sources.published("attention_timing.csv"), phase=phases, compiled=compiled, precision="fp32"
    )


def where(row: Row) -> tuple[str, str]:
    return row["d_model"], row["seq_len"]


def _what(row: Row) -> tuple[str, ...]:
    """What the source's batch and phase are, where they are not ours."""
    return tuple(
        part for part in (f"batch {row['batch']}" * (row["batch"] != str(BATCH)), _beside(row["phase"])) if part
    )


def _beside(phase: str) -> str:
    """What else was timed: `lm_head only + optimizer` of `backward(lm_head only)+optimizer`."""
    return phase.partition("(")[2].replace(")+", " + ").rstrip(")").lstrip("+")


def _times(sources: Sources, phases: Sequence[str]) -> Answer:
    """Op by op and compiled."""
    found = sources.timed(alone(phases[0], "naive", "compiled"))
    here = [Figure(spot(one.cell), f"here: {one.cell.implementation} (ms)", milliseconds(one.cell)) for one in found]
    others = [
        Figure(where(row), published.column(row, "ms", *_what(row), *words), published.time_text(row))
        for compiled, words in (("no", ()), ("yes", ("compiled",)))
        for row in rows_of(sources, phases, compiled)
    ]
    return Answer(GRID, here, others, files_with(found, TIMES))


def files_with(found: Sequence[Found], *others: str) -> list[str]:
    return files_of([*(one.file for one in found), *others])


@question(
    "How long is a forward pass of attention, by width and length?",
    command("naive,compiled", phase="forward"),
    "Scores grow with the square of the length, and writing them costs more than multiplying at these widths.",
)
def forward(sources: Sources) -> Answer:
    return _times(sources, FORWARD)


@question(
    "And a backward pass?",
    command("naive,compiled", phase="backward"),
    "It reads the saved scores and makes two gradients of each product, unless the inputs need none.",
)
def backward(sources: Sources) -> Answer:
    return _times(sources, BACKWARD)


@question(
    "Does the backward pass of attention take longer than its forward pass?",
    command("naive"),
    "A ratio below one says that no gradient reached the inputs.",
)
def backward_over_forward(sources: Sources) -> Answer:
    pairs = sources.pairs("phase", "backward", "forward", alone("", "naive"))
    here = [Figure(spot(one.cell), "here: backward / forward", ratio(one.cell, two.cell)) for one, two in pairs]
    others = []
    for phase, other in zip(BACKWARD, FORWARD, strict=True):
        rows = rows_of(sources, (phase, other))
        others += published.ratios(rows, "phase", phase, other, ("d_model", "seq_len"), "backward / forward")
    return Answer(GRID, here, others, files_with([one for one, _ in pairs], TIMES))


@question(
    "With which power of the length does the time grow?",
    command("naive,compiled,sdpa"),
    "Two at long lengths, for products and scores alike; launches and linear parts pull the exponent down.",
)
def exponent(sources: Sources) -> Answer:
    found = [one for one in sources.timed(alone()) if one.cell.is_timed]
    ours = [
        (f"here: {one.cell.implementation} {one.cell.phase}", spot(one.cell), one.cell.mean_seconds) for one in found
    ]
    rows = [row for row in rows_of(sources, (*FORWARD, *BACKWARD)) if row["mean_ms"] and float(row["mean_ms"]) > 0]
    theirs = [
        (published.column(row, "", row["phase"].partition("(")[0]), where(row), float(row["mean_ms"])) for row in rows
    ]
    return Answer(("Width", "Lengths"), _exponents(ours), _exponents(theirs), files_with(found, TIMES))


def _exponents(points: Sequence[tuple[str, tuple[str, str], float]]) -> list[Figure]:
    """Of each (column, (width, length), time) and the next length: log(time ratio) / log(length ratio)."""
    figures = []
    ordered = sorted((column, int(width), int(length), time) for column, (width, length), time in points)
    for (column, width), of in groupby(ordered, key=lambda point: point[:2]):
        for (_, _, short, before), (_, _, long, after) in pairwise(of):
            if long > short:
                power = math.log(after / before) / math.log(long / short)
                figures.append(Figure((str(width), f"{short} to {long}"), column, f"{power:.2f}"))
    return figures


@question(
    "How much memory does attention take, by width and length?",
    "python -m perf_tests predict --head-dim all --sequence-length all --gpu A100-80GB",
    "Several matrices of scores are alive at the peak, and the width hardly matters.",
)
def memory(sources: Sources) -> Answer:
    here = [
        Figure(
            (str(width), str(length)),
            f"here: counted, {phase} (MiB)",
            significant(sources.counted(f"attention_{phase}", f"d{width}-seq{length}-fp32-naive", "peak_bytes") / MIB),
        )
        for width in WIDTHS
        for length in LENGTHS
        for phase in ("forward", "backward")
    ]
    rows = published.matching(sources.published("memory.csv"), object="attention", compiled="no")
    others = [
        Figure(
            (row["d_model"], row["context"]),
            published.column(row, row["unit"].partition("(")[0], f"batch {row['batch']}"),
            row["value"],
        )
        for row in rows
    ]
    return Answer(GRID, here, others, (sources.ledger_name, MEMORY))


@question(
    "Where does attention run out of memory?",
    "python -m perf_tests predict --head-dim 16 --sequence-length all --gpu T4",
    "At the longest length one matrix of scores is already half of such a card, and a backward pass holds several.",
)
def out_of_memory(sources: Sources) -> Answer:
    here = []
    for length in LENGTHS:
        here.append(
            Figure(
                (str(length),),
                "here: one matrix of scores (GiB)",
                significant(BATCH * length**2 * FLOAT32_BYTES / GIB, 3),
            )
        )
        for name in ("naive", "sdpa"):
            peak = sources.counted("attention_backward", f"d16-seq{length}-fp32-{name}", "peak_bytes")
            here.append(Figure((str(length),), f"here: backward, {name} (GiB)", significant(peak / GIB, 3)))
    rows = published.matching(rows_of(sources, FORWARD), d_model="16")
    others = [Figure((row["seq_len"],), published.column(row, "", *_what(row)[:1]), row["status"]) for row in rows]
    return Answer(("Length",), here, others, (sources.ledger_name, TIMES))


@question(
    "How does what attention saves grow with the length, and what removes it?",
    "pytest perf_tests/test_counters.py",
    "Written out, two matrices of scores and a mask; a fused kernel computes the scores again and saves none of them.",
)
def saved(sources: Sources) -> Answer:
    here = []
    for name in ("naive", "sdpa"):
        squares, grows = squares_saved(sources, name)
        here += [
            Figure((name,), "here: matrices of scores saved", f"{squares:.2f}"),
            Figure((name,), "here: growth at twice the length", f"{grows:.2f}"),
        ]
    return Answer(("Attention",), here, files=(sources.ledger_name,))


def squares_saved(sources: Sources, attention: str) -> tuple[float, float]:
    """(k of k L^2 + c L d numbers, from two lengths, and growth from one to the other)."""
    short, long = 8192, 16384
    small, large = (
        sources.counted("attention_backward", f"d64-seq{length}-fp32-{attention}", "saved_bytes")
        / (BATCH * FLOAT32_BYTES)
        for length in (short, long)
    )
    # Subtracting twice the short one removes the linear part.
    return abs(large - 2 * small) / (long**2 - 2 * short**2), large / small


QUESTIONS = (
    forward,
    backward,
    backward_over_forward,
    exponent,
    memory,
    out_of_memory,
    saved,
)
