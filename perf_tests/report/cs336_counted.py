"""Figures of the course's answers that take no measurement: steps counted on fake tensors, and exercises.

What loads torch is imported where it is used: the page's other figures come from files alone.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from model.sizes import SIZES
from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.phases import ZERO_GRAD
from perf_tests.records.format import GIB, MIB, significant
from perf_tests.records.published import published_rows
from perf_tests.report.cs336_ours import COUNTING, COURSE_SIZE
from perf_tests.report.cs336_published import Printed, is_write_up
from perf_tests.report.cs336_sources import MEMORY, Counted, Figure, PeakBeside

if TYPE_CHECKING:
    from perf_tests.cases.language_model import LanguageModelCase

CONTEXTS = (128, 256, 512)
FIRST_STEP_SIZE = "medium"
BATCHES = (2, 4)
"""What one write-up configures, and what it states."""
LARGEST = 5
"""Blocks of memory of each context that are listed."""


def counted_figures() -> Counted:
    """Count every step in about ten seconds, and compute the exercises of the numerics suite."""
    from numerics_tests.harness.exercises import tables

    exercises = {
        name: [
            Figure((label,), f"here: {head}", text, "numerics_tests/harness/exercises.py")
            for label, *texts in rows
            for head, text in zip(header[1:], texts, strict=True)
        ]
        for name, (header, *rows) in tables().items()
    }
    residual, largest = _lines()
    steps = {
        "orders_of_clearing": list(_orders_of_clearing()), "first_steps": list(_first_steps()),
        "lines_of_the_residual_stream": residual, "lines_of_the_largest": largest,
    }  # fmt: skip
    return Counted({**exercises, **steps}, list(_peaks_beside()))


def _orders_of_clearing() -> Iterator[Figure]:
    """Peaks of a step that is not the first, by the order in which gradients are cleared."""
    from perf_tests.predict.counters import counters_of

    for context in CONTEXTS:
        for order in ZERO_GRAD:
            peak_bytes = counters_of(replace(_step(COURSE_SIZE, context), zero_grad=order)).peak_bytes
            for unit, size in (("GB", 1e9), ("GiB", GIB)):
                row, text = (COURSE_SIZE, str(context)), f"{peak_bytes / size:.1f}"
                yield Figure(row, f"here: {order} ({unit})", text, COUNTING)


def _first_steps() -> Iterator[Figure]:
    """Peaks of the step in which AdamW's state is born, and of later ones."""
    from perf_tests.predict.counters import counters_of

    for batch_size in BATCHES:
        for context in CONTEXTS:
            case = replace(_step(FIRST_STEP_SIZE, context), batch_size=batch_size)
            for which, phase in (("first", "first_step"), ("later", "full_step")):
                peak_bytes = counters_of(replace(case, phase=phase)).peak_bytes
                row, column = (case.size, str(context), case.precision), f"here: batch {batch_size}, {which} (GB)"
                yield Figure(row, column, f"{peak_bytes / 1e9:.1f}", COUNTING)


def _lines() -> tuple[list[Figure], list[Figure]]:
    """Equal blocks of memory that a line makes in a forward pass: those a block adds to the stream, and the largest."""
    from model.transformer import Block
    from perf_tests.predict.counters import counters_of
    from perf_tests.predict.fake_run import passes

    source, first = inspect.getsourcelines(Block)
    lines_of_block = {f"model/transformer.py:{line}" for line in range(first, first + len(source))}
    residual: list[Figure] = []
    largest: list[Figure] = []
    for context in CONTEXTS:
        case = replace(_step(COURSE_SIZE, context), phase="forward", optimizer=None)
        residual_bytes = case.tokens * case.config.d_model * FLOAT32_BYTES
        for (size_bytes, operator, line), count in sorted(passes(case)["forward"].allocations.items()):
            if (size_bytes, operator) == (residual_bytes, "aten.add") and line in lines_of_block:
                residual += _block(case, line, size_bytes, count)
        for one in counters_of(case).largest_allocations[:LARGEST]:
            largest += _block(case, one.place, one.bytes, one.count)
    return residual, largest


def _block(case: "LanguageModelCase", line: str, size_bytes: int, count: int) -> Iterator[Figure]:
    row = (case.size, str(case.context_length), line)
    yield Figure(row, "here: one (MiB)", significant(size_bytes / MIB), COUNTING)
    yield Figure(row, "here: made", str(count), COUNTING)


def _step(size: str, context: int) -> "LanguageModelCase":
    """Return a full step of the course's model and its AdamW on a GPU."""
    from perf_tests.cases.language_model import LanguageModelCase

    return LanguageModelCase(
        phase="full_step", size=size, config=SIZES[size].at_context(context), context_length=context, batch_size=4,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="loop", device="cuda",
        model="ours",
    )  # fmt: skip


def _peaks_beside() -> Iterator[PeakBeside]:
    """The cells of the five write-ups, and every single-level checkpoint, whose code's conditions are known."""
    from perf_tests.predict.published import CHECKPOINT, predicted_bytes, published_peaks

    rows = map(Printed, published_rows(MEMORY))
    printed = {(row["source"], row["mode"], row["context"], row["precision"]): row for row in rows}
    for cell in published_peaks():
        row = printed[cell.source, cell.mode, str(cell.case.context_length), cell.precision]
        if is_write_up(row) or cell.mode.startswith(CHECKPOINT):
            unit_bytes = int(cell.conditions["unit_bytes"])
            means_another = (row["unit"], unit_bytes) == ("GB", GIB)
            yield PeakBeside(
                row["source_name"], cell.case.size, cell.case.context_length, cell.precision, cell.mode, row["value"],
                "GB, meaning GiB" if means_another else row["unit"], predicted_bytes(cell) / unit_bytes,
            )  # fmt: skip
