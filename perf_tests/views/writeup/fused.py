"""Attention compiled and fused, beside the same written out; the whole model compiled."""

from statistics import median

from perf_tests.views.tables.digits import MIB, significant
from perf_tests.views.tables.timing import ratio
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.attention import (
    GRID,
    LENGTHS,
    MEMORY,
    TIMES,
    alone,
    command,
    files_with,
    rows_of,
    spot,
    where,
)
from perf_tests.views.writeup.sources import Sources
from perf_tests.views.writeup.timing import E2E, SIZE_CONTEXT, place

TITLE = "Compiled and fused"
FLASH = "published/flash_attention.csv"


def _against_naive(sources: Sources, name: str, phase: str) -> Answer:
    pairs = sources.pairs("attention", "naive", name, alone(phase, "naive", name))
    here = [Figure(spot(one.cell), f"here: naive / {name}", ratio(one.cell, two.cell)) for one, two in pairs]
    rows = published.matching(sources.published("attention_timing.csv"), phase=phase, precision="fp32")
    others = (
        published.ratios(rows, "compiled", "no", "yes", ("d_model", "seq_len"), "eager / compiled")
        if name == "compiled"
        else []
    )
    return Answer(GRID, here, others, files_with([one for one, _ in pairs], *([TIMES] if others else [])))


@question(
    "How much faster is a compiled forward pass of attention?",
    command("naive,compiled", phase="forward"),
    "Compiling joins scale, mask and softmax into fewer passes over the scores; the products stay.",
)
def compiled_forward(sources: Sources) -> Answer:
    return _against_naive(sources, "compiled", "forward")


@question(
    "And a compiled backward pass?",
    command("naive,compiled", phase="backward"),
    "A ratio far below one is a compilation inside of the timed rounds.",
)
def compiled_backward(sources: Sources) -> Answer:
    return _against_naive(sources, "compiled", "backward")


@question(
    "How long is the first round of compiled attention?",
    command("compiled"),
    "The first call compiles both directions; a mean over rounds that include it measures the compiler.",
)
def first_compiled_round(sources: Sources) -> Answer:
    found = [one for one in sources.timed(alone("", "compiled")) if one.cell.number("first_round_seconds")]
    here = []
    for one in found:
        first = one.cell.number("first_round_seconds") or 0.0
        row = (*spot(one.cell), one.cell.phase)
        here += [
            Figure(row, "here: first round (ms)", significant(first * 1e3)),
            Figure(row, "here: median (ms)", significant(one.cell.median_seconds * 1e3)),
        ]
    rows = [row for row in rows_of(sources, ("forward", "backward"), "yes") if where(row) == ("16", "256")]
    others = [Figure((*where(row), row["phase"]), published.column(row, "ms"), row["mean_ms"]) for row in rows]
    return Answer((*GRID, "Phase"), here, others, files_with(found, TIMES))


@question(
    "How much memory does compiling save in attention?",
    "pytest perf_tests/test_attention_memory.py --memory --attention naive,compiled --phase forward",
    "Fused, the scores before the softmax are never all in memory.",
)
def compiled_memory(sources: Sources) -> Answer:
    found = sources.passed("memory", alone("forward", "naive", "compiled"))
    here = [
        Figure(spot(one.cell), f"here: {one.cell.implementation} (MiB)", significant(peak / MIB))
        for one in found
        if (peak := one.cell.number("peak_allocated_bytes")) is not None
    ]
    words = {"yes": "compiled", "no": "eager"}
    others = [
        Figure(
            (row["d_model"], row["context"]),
            published.column(row, row["unit"].partition("(")[0], words[row["compiled"]]),
            row["value"],
        )
        for row in published.matching(sources.published("memory.csv"), object="attention")
    ]
    return Answer(GRID, here, others, files_with(found, MEMORY))


@question(
    "What does a fused kernel save in a forward pass?",
    command("naive,sdpa", phase="forward"),
    "Blocks of scores stay in cache, so memory traffic grows with the length and not with its square.",
)
def fused_forward(sources: Sources) -> Answer:
    return _fused(sources, "forward")


@question(
    "And in a backward pass?",
    command("naive,sdpa", phase="backward"),
    "It computes the scores again instead of reading them; without a good kernel of its own that is slower.",
)
def fused_backward(sources: Sources) -> Answer:
    return _fused(sources, "backward")


def _fused(sources: Sources, phase: str) -> Answer:
    """Beside a Triton kernel of one public repository, at one width of the course's grid."""
    found = _against_naive(sources, "sdpa", phase)
    rows = [
        row
        for row in sources.published("flash_attention.csv")
        if row["mean_ms"] and (row["phase"], row["d_model"], row["precision"]) == (phase, "64", "fp32")
    ]
    first = [row for row in rows if row["source"] == rows[0]["source"] and int(row["seq_len"]) in LENGTHS]
    others = published.ratios(
        first, "attention", "naive", "triton_fa2", ("d_model", "seq_len"), "batch 1, naive / Triton"
    )
    return Answer(GRID, found.here, others, files_of([*found.files, FLASH]))


@question(
    "How much faster is a whole model compiled?",
    "pytest perf_tests/test_forward.py perf_tests/test_full_step.py --phase forward,full_step --precision fp32 "
    "--execution eager,compiled",
    "Elementwise kernels are joined and launches saved, so small models gain most and large ones keep their products.",
)
def compiled_model(sources: Sources) -> Answer:
    """Published: the median over every source with both, and how many those are."""
    pairs = sources.pairs(
        "execution", "eager", "compiled", lambda cell: not cell.is_attention and cell.label("precision") == "fp32"
    )
    here = [
        Figure((*place(one.cell), one.cell.phase), "here: eager / compiled", ratio(one.cell, two.cell))
        for one, two in pairs
    ]
    rows = [
        row
        for row in sources.published("e2e_timing.csv")
        if (row["status"], row["precision"], row["precision_that_ran"]) == ("ok", "fp32", "fp32")
    ]
    groups: dict[tuple[str, ...], list[float]] = {}
    for figure in published.ratios(rows, "compiled", "no", "yes", ("size", "context", "phase"), ""):
        groups.setdefault(figure.row, []).append(float(figure.text))
    others = []
    for row, values in groups.items():
        if row[2] in ("forward", "full_step"):
            others += [
                Figure(row, "published: median", significant(median(values), 3)),
                Figure(row, "published: sources", str(len(values))),
            ]
    return Answer((*SIZE_CONTEXT, "Phase"), here, others, files_with([one for one, _ in pairs], E2E))


QUESTIONS = (
    compiled_forward,
    compiled_backward,
    first_compiled_round,
    compiled_memory,
    fused_forward,
    fused_backward,
    compiled_model,
)
