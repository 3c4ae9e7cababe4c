"""Peaks of the write-up that take no measurement: under the conditions of published code, first steps, blocks."""

import inspect
from collections.abc import Iterator
from dataclasses import replace

from model.sizes import SIZES
from model.transformer import Block as ModelBlock
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.phases import ZERO_GRAD
from perf_tests.predict.counters import counters_of
from perf_tests.predict.fake_run import passes
from perf_tests.predict.published import CHECKPOINT, TABLE, predicted_bytes, published_peaks
from perf_tests.records.published import published_rows
from perf_tests.report.cs336_parts.played import Block, FirstStep, OrderPeak, PeakBeside
from perf_tests.report.cs336_parts.published import is_write_up, name_of

COURSE_SIZE = "2.7B"
COURSE_CONTEXTS = (128, 256, 512)
FIRST_STEP_SIZE = "medium"
BATCHES = (2, 4)
"""What the write-up configures, and what it states."""
GIB = 2**30
LARGEST = 5
"""Blocks of each context that are listed."""


def peaks_beside() -> Iterator[PeakBeside]:
    """The cells of the five write-ups, and every single-level checkpoint, whose code's conditions are known."""
    values = {(row["source"], row["mode"], row["context"], row["precision"]): row for row in published_rows(TABLE)}
    for cell in published_peaks():
        row = values[cell.source, cell.mode, str(cell.case.context_length), cell.precision]
        if is_write_up(row) or cell.mode.startswith(CHECKPOINT):
            unit_bytes = int(cell.conditions["unit_bytes"])
            yield PeakBeside(
                name_of(row), cell.case.size, cell.case.context_length, cell.precision, cell.mode, row["value"],
                _unit(row["unit"], unit_bytes), predicted_bytes(cell) / unit_bytes,
            )  # fmt: skip


def _unit(printed: str, unit_bytes: int) -> str:
    """As printed, and what it means where that is another."""
    return "GB, meaning GiB" if (printed, unit_bytes) == ("GB", GIB) else printed


def first_steps() -> Iterator[FirstStep]:
    for batch_size in BATCHES:
        for context in COURSE_CONTEXTS:
            case = replace(step(FIRST_STEP_SIZE, context), batch_size=batch_size)
            first, later = (counters_of(replace(case, phase=phase)).peak_bytes for phase in ("first_step", "full_step"))
            yield FirstStep(FIRST_STEP_SIZE, context, batch_size, case.precision, first, later)


def order_peaks() -> Iterator[OrderPeak]:
    """Of a step that is not the first."""
    for context in COURSE_CONTEXTS:
        for order in ZERO_GRAD:
            case = replace(step(COURSE_SIZE, context), zero_grad=order)
            yield OrderPeak(context, order, counters_of(case).peak_bytes)


def blocks() -> Iterator[Block]:
    """Of a forward pass: what adds to the residual stream, which a block does itself, and the largest."""
    source, first = inspect.getsourcelines(ModelBlock)
    lines_of_block = {f"model/transformer.py:{line}" for line in range(first, first + len(source))}
    for context in COURSE_CONTEXTS:
        case = replace(step(COURSE_SIZE, context), phase="forward", optimizer=None)
        residual_bytes = case.tokens * case.config.d_model * FLOAT32_BYTES
        made = passes(case)["forward"].allocations
        for (size, operator, line), count in sorted(made.items()):
            if (size, operator) == (residual_bytes, "aten.add") and line in lines_of_block:
                yield Block(case.size, context, size, count, line, True)
        for largest in counters_of(case).largest_allocations[:LARGEST]:
            yield Block(case.size, context, largest.bytes, largest.count, largest.place, False)


def step(size: str, context: int) -> LanguageModelCase:
    """A full step of the course's model and its AdamW on a GPU."""
    return LanguageModelCase(
        phase="full_step", size=size, config=SIZES[size].at_context(context), context_length=context, batch_size=4,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer="loop", device="cuda",
        model="ours",
    )  # fmt: skip
