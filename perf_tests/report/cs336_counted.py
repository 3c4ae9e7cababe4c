"""Figures of the course's answers that take no measurement: steps counted on fake tensors, and exercises.

What loads torch is imported where it is used: the page's other figures come from files alone.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from model.sizes import SIZES
from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.phases import ZERO_GRAD
from perf_tests.records.format import GIB, MIB, significant
from perf_tests.records.published import published_rows
from perf_tests.report.cs336_ours import COUNTING, COURSE_SIZE
from perf_tests.report.cs336_sources import MEMORY, Counted, Figure, PeakBeside, Printed, is_write_up

if TYPE_CHECKING:
    from perf_tests.cases.language_model import LanguageModelCase

CONTEXTS = (128, 256, 512)
FIRST_STEP_SIZE = "medium"
BATCHES = (2, 4)
"""What one write-up configures, and what it states."""
STEPS = {"first": "first_step", "later": "full_step"}
"""Phases in which AdamW's state is born, and in which it is there."""
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
    return Counted({**exercises, **_steps(), **_ranks()}, list(_peaks_beside()))


def _steps() -> dict[str, list[Figure]]:
    """Count peaks by the order of clearing and in first steps, and equal blocks of memory of a line's forward pass."""
    from model.transformer import Block
    from perf_tests.predict.counters import counters_of
    from perf_tests.predict.fake_run import passes

    found: dict[str, list[Figure]] = defaultdict(list)
    source, first = inspect.getsourcelines(Block)
    lines_of_block = {f"model/transformer.py:{line}" for line in range(first, first + len(source))}
    for context in CONTEXTS:
        step, row = _step(COURSE_SIZE, context), (COURSE_SIZE, str(context))
        for order in ZERO_GRAD:
            peak_bytes = counters_of(replace(step, zero_grad=order)).peak_bytes
            found["orders_of_clearing"] += [
                Figure(row, f"here: {order} ({unit})", f"{peak_bytes / size:.1f}", COUNTING)
                for unit, size in (("GB", 1e9), ("GiB", GIB))
            ]
        forward = replace(step, phase="forward", optimizer=None)
        residual = forward.tokens * forward.config.d_model * FLOAT32_BYTES, "aten.add"
        blocks = [
            ("lines_of_the_residual_stream", line, size_bytes, count)
            for (size_bytes, operator, line), count in sorted(passes(forward)["forward"].allocations.items())
            if (size_bytes, operator) == residual and line in lines_of_block
        ]
        largest = counters_of(forward).largest_allocations[:LARGEST]
        blocks += [("lines_of_the_largest", one.place, one.bytes, one.count) for one in largest]
        for name, line, size_bytes, count in blocks:
            texts = {"here: one (MiB)": significant(size_bytes / MIB), "here: made": str(count)}
            found[name] += [Figure((*row, line), column, text, COUNTING) for column, text in texts.items()]
    for batch_size, context, (which, phase) in product(BATCHES, CONTEXTS, STEPS.items()):
        case = replace(_step(FIRST_STEP_SIZE, context), batch_size=batch_size, phase=phase)
        place, column = (case.size, str(context), case.precision), f"here: batch {batch_size}, {which} (GB)"
        found["first_steps"].append(Figure(place, column, f"{counters_of(case).peak_bytes / 1e9:.1f}", COUNTING))
    return found


def _ranks() -> dict[str, list[Figure]]:
    """Predict what a rank of two holds and sends in a step of xl, and the step of the leaderboard."""
    from model.sizes import ModelConfig
    from perf_tests.cases.sharing import Sharing
    from perf_tests.predict.ranks import predict_ranks
    from perf_tests.predict.request import requested_machine

    found: dict[str, list[Figure]] = defaultdict(list)
    for way in ("ddp", "zero1", "fsdp2"):
        rank = predict_ranks(_step("xl", 128), requested_machine("H100"), Sharing(way, 2))
        for name, size in (("peaks_of_ranks", rank.peak_bytes), ("sent_by_ranks", rank.sent_bytes)):
            found[name].append(Figure((way,), "here (GB)", f"{size / 1e9:.2f}", COUNTING))
    config = ModelConfig(4096, 14336, 32, 32, vocab_size=128256).at_context(8192)
    step = replace(
        _step("xl", 8192), size="l8", config=config, batch_size=1, precision="bf16", attention="sdpa",
        checkpoint="block", optimizer="default",
    )  # fmt: skip
    rank = predict_ranks(step, requested_machine("B200"), Sharing("fsdp2", 2), 900e9)
    low, high = rank.seconds or (0.0, 0.0)
    text = f"{rank.peak_bytes / 1e9:.1f} GB, {low:.2f} to {high:.2f} s"
    found["leaderboard"].append(Figure(("2 x B200",), "here", text, COUNTING))
    return found


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
