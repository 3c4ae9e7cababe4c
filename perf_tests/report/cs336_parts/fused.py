"""Attention compiled and fused, beside the same written out; the whole model compiled."""

from collections.abc import Iterator
from statistics import median

from perf_tests.records.columns import Cell
from perf_tests.records.format import MIB, significant
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.attention import GRID, LENGTHS, alone, command, unit_of
from perf_tests.report.cs336_parts.published import ATTENTION, E2E, MEMORY, of_table
from perf_tests.report.cs336_parts.recorded import number, of_cases, of_ratios, passed, timed
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.cs336_parts.timing import PLACE

TITLE = "Compiled and fused"
FLASH = "flash_attention.csv.xz"
FLASH_SOURCE = "yyin-dev/cs336-a2"
"""A public repository with a Triton kernel at one width of the course's grid."""
EAGER = {"yes": "compiled", "no": "eager"}


def _over(name: str, phase: str) -> Figures:
    return of_ratios("attention", "naive", name, alone(phase, "naive", name), f"here: naive / {name}")


def _ratio_question(asked: str, why: str, name: str, phase: str, theirs: Figures) -> Question:
    """How much faster that attention is than the one written out, here and by others."""
    return Question(asked, command(f"naive,{name}", phase=phase), why, GRID, [_over(name, phase)], [theirs])


def _compiled(phase: str) -> Figures:
    return published.of_ratios(
        ATTENTION, "compiled", "no", "yes", "eager / compiled", phase=phase, precision="fp32"
    )  # fmt: skip


def _triton(phase: str) -> Figures:
    return published.of_ratios(
        FLASH, "attention", "naive", "triton_fa2", "batch 1, naive / Triton",
        lambda row: published.name_of(row) == FLASH_SOURCE,
        phase=phase, d_model="64", precision="fp32", seq_len=tuple(map(str, LENGTHS)),
    )  # fmt: skip


def _median(cell: Cell) -> str:
    return significant(cell.median_seconds * 1e3) if cell.number("first_round_seconds") else ""


def _published_medians(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Over every source with both, and how many those are."""
    fixed = {"status": "ok", "precision": "fp32", "precision_that_ran": "fp32", "phase": ("forward", "full_step")}
    groups: dict[tuple[str, ...], list[float]] = {}
    for figure in published.of_ratios(E2E, "compiled", "no", "yes", "", bool, **fixed)(sources, labels):
        groups.setdefault(figure.row, []).append(float(figure.text))
    for row, values in groups.items():
        yield Figure(row, "published: median", significant(median(values), 3), f"published/{E2E}")
        yield Figure(row, "published: sources", str(len(values)), f"published/{E2E}")


QUESTIONS = (
    _ratio_question(
        "How much faster is a compiled forward pass of attention?",
        "Compiling joins scale, mask and softmax into fewer passes over the scores; the products stay.",
        "compiled", "forward", _compiled("forward"),
    ),
    _ratio_question(
        "And a compiled backward pass?",
        "A ratio far below one is a compilation inside of the timed rounds.",
        "compiled", "backward", _compiled("backward"),
    ),
    Question(
        "How long is the first round of compiled attention?",
        command("compiled"),
        "The first call compiles both directions; a mean over rounds that include it measures the compiler.",
        (*GRID, "Phase"),
        [of_cases(timed(alone("", "compiled")), {
            "here: first round (ms)": number("first_round_seconds", 1e3), "here: median (ms)": _median,
        })],
        [of_table(
            ATTENTION, "mean_ms", "ms", phase=("forward", "backward"), compiled="yes", precision="fp32",
            d_model="16", seq_len="256",
        )],
    ),
    Question(
        "How much memory does compiling save in attention?",
        "pytest perf_tests/test_attention_memory.py --memory --attention naive,compiled --phase forward",
        "Fused, the scores before the softmax are never all in memory.",
        GRID,
        [of_cases(passed("memory", alone("forward", "naive", "compiled")), {
            "here: {attention} (MiB)": number("peak_allocated_bytes", 1 / MIB),
        })],
        [of_table(
            MEMORY, "value", unit_of, lambda row: EAGER[row["compiled"]], row=("Width", "Context"), object="attention",
        )],
    ),
    _ratio_question(
        "What does a fused kernel save in a forward pass?",
        "Blocks of scores stay in cache, so memory traffic grows with the length and not with its square.",
        "sdpa", "forward", _triton("forward"),
    ),
    _ratio_question(
        "And in a backward pass?",
        "It computes the scores again instead of reading them; without a good kernel of its own that is slower.",
        "sdpa", "backward", _triton("backward"),
    ),
    Question(
        "How much faster is a whole model compiled?",
        "pytest perf_tests/test_forward.py perf_tests/test_full_step.py --phase forward,full_step --precision fp32 "
        "--execution eager,compiled",
        "Elementwise kernels are joined and launches saved, so small models gain most and large ones keep their "
        "products.",
        (*PLACE, "Phase"),
        [of_ratios(
            "execution", "eager", "compiled", lambda cell: not cell.is_attention and cell.label("precision") == "fp32",
            "here: eager / compiled",
        )],
        [_published_medians],
    ),
)  # fmt: skip
