"""How long: passes by size and context, and how sure that is."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from perf_tests.records.columns import Cell
from perf_tests.records.format import significant
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Labels, Question
from perf_tests.report.cs336_parts.published import E2E, Row, is_warm, is_warm_time, of_ratios, of_table, time_text
from perf_tests.report.cs336_parts.recorded import number, of_cases, percent, place, plain, timed
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.tables import milliseconds, ratio

TITLE = "Timing a step"
PLACE = ("Size", "Context")
fp32 = partial(of_table, E2E, fits=is_warm, precision="fp32")
"""Published times in fp32 after a warm-up."""


EVERY_CASE = "--size small,medium,large,xl,2.7B --context all"
"""The rows of a table by size, whatever the device's default axes."""


def command(file: str, phase: str) -> str:
    return f"pytest perf_tests/{file} --phase {phase} --precision fp32 {EVERY_CASE}"


def _growth(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Over the shortest context of the same record and size."""
    found = [one for one in sources.timed(plain("forward")) if one.cell.is_timed]
    found.sort(key=lambda one: (one.cell.label("size"), one.file, int(one.cell.label("context_length"))))
    for _, of in groupby(found, key=lambda one: (one.cell.label("size"), one.file)):
        first, *others = of
        for one in others:
            column = f"here: over context {first.cell.label('context_length')}"
            yield Figure(place(one.cell, labels), column, ratio(one.cell, first.cell), one.file)


def _layer(cell: Cell) -> str:
    layers = cell.number("num_layers")
    return significant(cell.mean_seconds * 1e3 / layers, 3) if cell.is_timed and layers else ""


def _published_layer(row: Row) -> str:
    return significant(float(row["mean_ms"]) / int(row["n_layers"]), 3) if row["mean_ms"] and row["n_layers"] else ""


def _published_rates(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Of the sizes whose FLOPs are known."""
    fixed = {"phase": "forward", "precision": "fp32", "sync": "yes", "size": tuple(sources.shapes)}
    for row in published.matching(sources.published(E2E), is_warm_time, **fixed):
        if row["context"]:
            flops = sources.counted("forward", f"{row['size']}-ctx{row['context']}-fp32-naive", "model_flops")
            rate = significant(flops / float(row["mean_ms"]) / 1e9, 3)
            files = f"published/{E2E}, {sources.ledger_name}"
            yield Figure(published.place(row, labels), published.column(row, "TFLOP/s"), rate, files)


def _scatter(cell: Cell) -> str:
    return percent(cell.std_seconds / cell.mean_seconds) if cell.std_seconds else ""


def _published_scatter(row: Row) -> str:
    return percent(float(row["std_ms"]) / float(row["mean_ms"])) if row["std_ms"] else ""


PASSES = (
    (
        "How long does a forward pass take, by size?", "forward", "forward", "test_forward.py",
        "A card's time follows its FLOPs once they outlast the launches; below that every size costs its layers.",
    ),
    (
        "How long does a backward pass take, by size?", "backward", "backward", "test_backward.py",
        "It has two products for each one of the forward pass, and it clears no gradients here.",
    ),
    (
        "How long do forward and backward pass take together?", "forward_backward", "fwd_bwd", "test_backward.py",
        "Three write-ups time both in one range, which hides how the time is divided.",
    ),
    (
        "How long does a full training step take?", "full_step", "full_step", "test_full_step.py",
        "It clears gradients, goes forward and back, clips and updates; no write-up times the whole as one.",
    ),
)  # fmt: skip
"""Question, phase here and in published tables, file, why."""

QUESTIONS = (
    *(
        Question(
            asked, command(file, phase), why, PLACE,
            [of_cases(timed(plain(phase)), {"here (ms)": milliseconds})], [fp32(time_text, "ms", phase=theirs)],
        )
        for asked, phase, theirs, file, why in PASSES
    ),
    Question(
        "How does a forward pass grow with the context?",
        command("test_forward.py", "forward"),
        "Products grow with the tokens and attention with their square; a launch costs the same at any context.",
        PLACE, [_growth],
        [
            of_ratios(E2E, "context", context, "128", "over context 128", is_warm, phase="forward", precision="fp32")
            for context in ("256", "512", "1024")
        ],
    ),
    Question(
        "How long does one layer take, by size?",
        command("test_forward.py", "forward"),
        "Where launches are the time, every layer costs the same, and time follows depth and not width.",
        PLACE,
        [of_cases(timed(plain("forward")), {"here: one layer (ms)": _layer})],
        [fp32(_published_layer, "ms", "one layer", phase="forward")],
    ),
    Question(
        "How many TFLOP/s is a forward pass?",
        command("test_forward.py", "forward"),
        "Larger matrices reach more of a card's peak; a CPU reaches most of its best product at each of these sizes.",
        PLACE,
        [
            of_cases(timed(plain("forward")), {
                "here (TFLOP/s)": number("tflops_per_second", digits=3),
                "here: of the best product": lambda cell: percent(cell.number("share_of_matmul_ceiling"), 0),
            })
        ],
        [_published_rates],
    ),
    Question(
        "How much do the rounds of a case vary?",
        "pytest perf_tests/test_forward.py perf_tests/test_backward.py perf_tests/test_full_step.py --precision fp32",
        "It is the scatter within one process; two processes of the same code differ by more.",
        (*PLACE, "Phase"),
        [of_cases(timed(plain()), {"here: std / mean": _scatter})],
        [fp32(_published_scatter, "", "std / mean")],
    ),
)  # fmt: skip
