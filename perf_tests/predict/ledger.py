"""What the ledger of exact counters holds: the grid on an imaginary GPU, or of a user's model, and what ranks send."""

from dataclasses import replace
from itertools import product

import torch

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests_suite.perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.options import CONTEXTS, HEAD_DIMS, SEQUENCE_LENGTHS, SIZES_APART
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.hardware.limits import VARIANTS, sent_bytes, step_messages
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, LANGUAGE_MODEL, phases_of
from perf_tests_suite.perf_tests.predict.compiling import compilation_or_reason
from perf_tests_suite.perf_tests.predict.counters import Counters
from perf_tests_suite.perf_tests.predict.shapes import parameter_shapes
from perf_tests_suite.perf_tests.records.ledger import COUNTERS
from perf_tests_suite.perf_tests.records.record import COMPILER_COUNTERS

BATCH_SIZE = 4


DEVICE = "cuda"
"""Its rules are applied on the CPU, so no GPU is needed."""


OPTIMIZER = "foreach"
"""AdamW's default on a GPU."""


GRID_PRECISIONS = ("fp32", "bf16")


def counted_grid() -> dict[str, list[Case]]:
    """Return, by id, the cases that differ only in their phase and share one count, smallest first."""
    sizes = [size for size in SIZES if size not in SIZES_APART]
    grid: dict[str, list[Case]] = {
        LanguageModelCase.id_of(size, context, precision, attention): _cases(
            LanguageModelCase(
                phase="forward", size=size, config=SIZES[size].at_context(context), context_length=context,
                batch_size=BATCH_SIZE, precision=precision, attention=attention, execution="eager", checkpoint="none",
                optimizer=None, device=DEVICE, model="ours",
            )
        )
        for size, context, attention, precision in product(sizes, CONTEXTS, COUNTED_ATTENTION, GRID_PRECISIONS)
    }  # fmt: skip
    for head_dim, sequence_length, attention in product(HEAD_DIMS, SEQUENCE_LENGTHS, COUNTED_ATTENTION):
        grid[AttentionCase.id_of(head_dim, sequence_length, "fp32", attention)] = [
            AttentionCase(phase.name, head_dim, sequence_length, ATTENTION_BATCH_SIZE, "fp32", attention, DEVICE)
            for phase in phases_of(ATTENTION_ALONE)
        ]
    return grid


def user_grid(settings: Settings) -> dict[str, list[Case]]:
    """The same for the model of --model, over the axes of the run. Raises UserCodeError."""
    grid: dict[str, list[Case]] = {}
    for values in LanguageModelCase.grid(settings):
        axes = dict(zip(LanguageModelCase.axes, values, strict=True))
        case = LanguageModelCase.of("forward", axes, settings)
        grid[LanguageModelCase.id_of(*values)] = _cases(replace(case, device=DEVICE))
    return grid


def _cases(case: LanguageModelCase) -> list[Case]:
    return [
        replace(case, phase=phase.name, optimizer=OPTIMIZER if phase.trains else None)
        for phase in phases_of(LANGUAGE_MODEL)
    ]


def line_of(counters: Counters) -> dict[str, int | None]:
    """The counters that the ledger keeps."""
    return {name: getattr(counters, name) for name in COUNTERS}


SEED = 2027
"""The seed of weights."""


def compiled_lines() -> list[str]:
    """A line of CSV under a header for each kind of case that is compiled on a CPU, with what torch makes of it.

    Raises ValueError with one sentence where it cannot be compiled here.
    """
    cases: dict[str, Case] = {
        LanguageModelCase.id_of("tiny", 128, "fp32", attention, "compiled"): LanguageModelCase(
            phase="backward", size="tiny", config=SIZES["tiny"].at_context(128), context_length=128,
            batch_size=BATCH_SIZE, precision="fp32", attention=attention, execution="compiled", checkpoint="none",
            optimizer=None, device="cpu", model="ours",
        )
        for attention in COUNTED_ATTENTION
    }  # fmt: skip
    alone = AttentionCase("attention_backward", 16, 256, ATTENTION_BATCH_SIZE, "fp32", "compiled", "cpu")
    cases[AttentionCase.id_of(16, 256, "fp32", "compiled")] = alone
    lines = [",".join(("phase", "id", *COMPILER_COUNTERS))]
    for case_id, case in cases.items():
        found, reason = compilation_or_reason(case, torch.device("cpu"), SEED)
        if found is None:
            raise ValueError(f"{case_id}: {reason}")
        values = ("" if value is None else str(value) for value in found.counters.values())
        lines.append(",".join((case.phase, case_id, *values)))
    return lines


WORLDS = (2, 8, 64)


SENT_COLUMNS = ("size", "parallel", "world", "messages", "bytes_sent_by_all_ranks")


def sent_lines() -> list[str]:
    """A line of CSV for each, under a header. A rank's share may be a fraction of a byte, the sum of all is not."""
    lines = [",".join(SENT_COLUMNS)]
    for size, variant, world in product([size for size in SIZES if size not in SIZES_APART], VARIANTS, WORLDS):
        messages = step_messages(variant, parameter_shapes(SIZES[size]), world)
        lines.append(f"{size},{variant},{world},{len(messages)},{int(world * sent_bytes(messages, world))}")
    return lines
