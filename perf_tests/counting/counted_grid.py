"""The grid of the ledger of exact counters: every size, context and phase, on an imaginary GPU."""

from itertools import product

from model.sizes import SIZES
from perf_tests.cases import ATTENTION_BATCH_SIZE, AttentionCase, Case, LanguageModelCase
from perf_tests.counting.case_counters import COUNTED_ATTENTION, Counters
from perf_tests.options import CONTEXTS, HEAD_DIMS, SEQUENCE_LENGTHS, SIZES_APART
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
        LanguageModelCase.id_of(size, context, precision, attention): [
            LanguageModelCase(
                phase=phase.name, size=size, config=SIZES[size].at_context(context), context_length=context,
                batch_size=BATCH_SIZE, precision=precision, attention=attention, execution="eager", checkpoint="none",
                optimizer=OPTIMIZER if phase.trains else None, device=DEVICE, model="ours",
            )
            for phase in phases_of(LANGUAGE_MODEL)
        ]
        for size, context, attention, precision in product(sizes, CONTEXTS, COUNTED_ATTENTION, PRECISIONS)
    }  # fmt: skip
    for head_dim, sequence_length, attention in product(HEAD_DIMS, SEQUENCE_LENGTHS, COUNTED_ATTENTION):
        grid[AttentionCase.id_of(head_dim, sequence_length, "fp32", attention)] = [
            AttentionCase(phase.name, head_dim, sequence_length, ATTENTION_BATCH_SIZE, "fp32", attention, DEVICE)
            for phase in phases_of(ATTENTION_ALONE)
        ]
    return grid


def line_of(counters: Counters) -> dict[str, int | None]:
    """The counters that the ledger keeps."""
    return {name: getattr(counters, name) for name in COUNTERS}
