"""The grid of a ledger of exact counters, on an imaginary GPU: every size, context and phase, or those asked for."""

from dataclasses import replace
from itertools import product

from model.sizes import SIZES
from perf_tests.cases.attention_alone import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.counting.case_counters import Counters
from perf_tests.options.settings import Settings
from perf_tests.options.shapes import SIZES_APART
from perf_tests.options.table import CONTEXTS, HEAD_DIMS, SEQUENCE_LENGTHS
from perf_tests.phases import ATTENTION_ALONE, LANGUAGE_MODEL, phases_of
from perf_tests.records.ledger import COUNTERS

BATCH_SIZE = 4
DEVICE = "cuda"
"""Its rules are applied on the CPU, so no GPU is needed."""

OPTIMIZER = "foreach"
"""AdamW's default on a GPU."""

PRECISIONS = ("fp32", "bf16")


def counted_grid() -> dict[str, list[Case]]:
    """From id to the cases that differ only in their phase and share one count, smallest first."""
    sizes = [size for size in SIZES if size not in SIZES_APART]
    grid: dict[str, list[Case]] = {
        LanguageModelCase.id_of(size, context, precision, attention): _cases(
            LanguageModelCase(
                phase="forward", size=size, config=SIZES[size].at_context(context), context_length=context,
                batch_size=BATCH_SIZE, precision=precision, attention=attention, execution="eager", checkpoint="none",
                optimizer=None, device=DEVICE, model="ours",
            )
        )
        for size, context, attention, precision in product(sizes, CONTEXTS, COUNTED_ATTENTION, PRECISIONS)
    }  # fmt: skip
    for head_dim, sequence_length, attention in product(HEAD_DIMS, SEQUENCE_LENGTHS, COUNTED_ATTENTION):
        grid[AttentionCase.id_of(head_dim, sequence_length, "fp32", attention)] = [
            AttentionCase(phase.name, head_dim, sequence_length, ATTENTION_BATCH_SIZE, "fp32", attention, DEVICE)
            for phase in phases_of(ATTENTION_ALONE)
        ]
    return grid


def own_grid(settings: Settings) -> dict[str, list[Case]]:
    """The same for the model of --model, over the axes of the run. Raises OwnModelError."""
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
