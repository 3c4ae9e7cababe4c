"""Attention alone: times, memory and their growth with the length."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.records.columns import Cell
from perf_tests.records.format import GIB, significant
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.counted import mebibytes, of_ledger
from perf_tests.report.cs336_parts.published import ATTENTION, MEMORY, Row, is_write_up, of_table, time_text
from perf_tests.report.cs336_parts.recorded import of_cases, of_ratios, timed
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.tables import milliseconds

TITLE = "Attention alone"
GRID = ("Width", "Length")
BATCH = 8
LENGTHS = (256, 1024, 4096, 8192, 16384)
WIDTHS = (16, 32, 64, 128)
CASE = "d{width}-seq{length}-fp32-{attention}"
FORWARD, BACKWARD = ("forward", "forward(+lm_head+loss)"), ("backward", "backward(lm_head only)+optimizer")
"""A phase here, and what one write-up timed in its place."""
Point = tuple[str, int, int, float, str]
"""Column, width, length, time, file."""


def alone(phase: str = "", *names: str) -> Callable[[Cell], bool]:
    return lambda cell: (
        cell.is_attention
        and cell.label("precision") == "fp32"
        and (not phase or cell.phase == phase)
        and (not names or cell.implementation in names)
    )


def command(*names: str, phase: str = "forward,backward") -> str:
    return f"pytest perf_tests/test_attention.py --attention {','.join(names)} --phase {phase}"


def _batch(row: Row) -> str:
    """Where it is not ours."""
    return f"batch {row['batch']}" * (row["batch"] != str(BATCH))


def _beside(row: Row) -> str:
    """What else was timed: `lm_head only + optimizer` of `backward(lm_head only)+optimizer`."""
    return row["phase"].partition("(")[2].replace(")+", " + ").rstrip(")").lstrip("+")


def unit_of(row: Row) -> str:
    return row["unit"].partition("(")[0]


def _times(phases: Sequence[str]) -> tuple[list[Figures], list[Figures]]:
    """Op by op and compiled: ours, and theirs."""
    here = of_cases(timed(alone(phases[0], "naive", "compiled")), {"here: {attention} (ms)": milliseconds})
    return [here], [
        of_table(ATTENTION, time_text, "ms", _batch, _beside, words, phase=phases, compiled=compiled, precision="fp32")
        for compiled, words in (("no", ""), ("yes", "compiled"))
    ]


def _exponents(points: Sequence[Point]) -> Iterator[Figure]:
    """Of each length and the next: log(time ratio) / log(length ratio)."""
    for (column, width), of in groupby(sorted(points), key=lambda point: point[:2]):
        for (_, _, short, before, _), (_, _, long, after, file) in pairwise(of):
            if long > short:
                power = math.log(after / before) / math.log(long / short)
                yield Figure((str(width), f"{short} to {long}"), column, f"{power:.2f}", file)


def _exponents_here(sources: Sources, _: Labels) -> Iterator[Figure]:
    return _exponents([
        (
            f"here: {cell.implementation} {cell.phase}", int(cell.label("head_dim")),
            int(cell.label("sequence_length")), cell.mean_seconds, one.file,
        )
        for one in sources.timed(alone())
        for cell in [one.cell]
        if cell.is_timed
    ])  # fmt: skip


def _published_exponents(sources: Sources, _: Labels) -> Iterator[Figure]:
    fixed = {"phase": (*FORWARD, *BACKWARD), "compiled": "no", "precision": "fp32"}
    return _exponents([
        (
            published.column(row, "", row["phase"].partition("(")[0]), int(row["d_model"]), int(row["seq_len"]),
            float(row["mean_ms"]), f"published/{ATTENTION}",
        )
        for row in published.matching(sources.published(ATTENTION), is_write_up, **fixed)
        if row["mean_ms"] and float(row["mean_ms"]) > 0
    ])  # fmt: skip


def _one_matrix(_: Sources, labels: Labels) -> Iterator[Figure]:
    for length in LENGTHS:
        scores = significant(BATCH * length**2 * FLOAT32_BYTES / GIB, 3)
        yield Figure((str(length),), "here: one matrix of scores (GiB)", scores)


def _saved(sources: Sources, _: Labels) -> Iterator[Figure]:
    for name in ("naive", "sdpa"):
        squares, grows = squares_saved(sources, name)
        yield Figure((name,), "here: matrices of scores saved", f"{squares:.2f}", sources.ledger_name)
        yield Figure((name,), "here: growth at twice the length", f"{grows:.2f}", sources.ledger_name)


def squares_saved(sources: Sources, attention: str) -> tuple[float, float]:
    """(k of k L^2 + c L d numbers, from two lengths, and growth from one to the other)."""
    short, long = 8192, 16384
    small, large = (
        sources.counted("attention_backward", CASE.format(width=64, length=length, attention=attention), "saved_bytes")
        / (BATCH * FLOAT32_BYTES)
        for length in (short, long)
    )
    # Subtracting twice the short one removes the linear part.
    return abs(large - 2 * small) / (long**2 - 2 * short**2), large / small


QUESTIONS = (
    Question(
        "How long is a forward pass of attention, by width and length?",
        command("naive,compiled", phase="forward"),
        "Scores grow with the square of the length, and writing them costs more than multiplying at these widths.",
        GRID, *_times(FORWARD),
    ),
    Question(
        "And a backward pass?",
        command("naive,compiled", phase="backward"),
        "It reads the saved scores and makes two gradients of each product, unless the inputs need none.",
        GRID, *_times(BACKWARD),
    ),
    Question(
        "Does the backward pass of attention take longer than its forward pass?",
        command("naive"),
        "A ratio below one says that no gradient reached the inputs.",
        GRID,
        [of_ratios("phase", "backward", "forward", alone("", "naive"), "here: backward / forward")],
        [
            published.of_ratios(
                ATTENTION, "phase", phase, other, "backward / forward", compiled="no", precision="fp32",
            )
            for phase, other in zip(BACKWARD, FORWARD, strict=True)
        ],
    ),
    Question(
        "With which power of the length does the time grow?",
        command("naive,compiled,sdpa"),
        "Two at long lengths; launches and linear parts pull it down, and scores that outgrow a cache push it up.",
        ("Width", "Lengths"), [_exponents_here], [_published_exponents],
    ),
    Question(
        "How much memory does attention take, by width and length?",
        "python -m perf_tests predict --head-dim all --sequence-length all --gpu A100-80GB",
        "Several matrices of scores are alive at the peak, and the width hardly matters.",
        GRID,
        [of_ledger(
            "peak_bytes", "here: counted, {phase} (MiB)", mebibytes, CASE, "attention_{phase}",
            attention=("naive",), phase=("forward", "backward"), width=WIDTHS, length=LENGTHS,
        )],
        [of_table(
            MEMORY, "value", unit_of, lambda row: f"batch {row['batch']}", row=("Width", "Context"),
            object="attention", compiled="no",
        )],
    ),
    Question(
        "Where does attention run out of memory?",
        "python -m perf_tests predict --head-dim 16 --sequence-length all --gpu T4",
        "At the longest length one matrix of scores is already half of such a card, and a backward pass holds several.",
        ("Length",),
        [
            _one_matrix,
            of_ledger(
                "peak_bytes", "here: backward, {attention} (GiB)", lambda value: significant(value / GIB, 3), CASE,
                "attention_backward", attention=("naive", "sdpa"), width=(16,), length=LENGTHS,
            ),
        ],
        [of_table(
            ATTENTION, "status", "", lambda row: _batch(row) or _beside(row),
            phase=FORWARD, compiled="no", precision="fp32", d_model="16",
        )],
    ),
    Question(
        "How does what attention saves grow with the length, and what removes it?",
        "pytest perf_tests/test_counters.py",
        "Written out, two matrices of scores and a mask; a fused kernel computes the scores again and saves none of "
        "them.",
        ("Attention",), [_saved],
    ),
)  # fmt: skip
