"""Mixed precision: how much faster by size and context, and why not always."""

from collections.abc import Iterator, Sequence
from statistics import median

from perf_tests.records.format import significant
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.counted import MODEL_CASE
from perf_tests.report.cs336_parts.published import E2E, is_warm, time_text
from perf_tests.report.cs336_parts.recorded import BF16, FP32, of_ratios, place, plain
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.cs336_parts.step import part
from perf_tests.report.cs336_parts.timing import EVERY_CASE, PLACE
from perf_tests.report.tables import milliseconds

TITLE = "Mixed precision"
MIXED = ("bf16_amp", "fp16_amp", "fp16_amp?")


def command(file: str, phase: str) -> str:
    return f"pytest perf_tests/{file} --phase {phase} --precision fp32,bf16 {EVERY_CASE}"


def both(phase: str, with_times: bool = False) -> Figures:
    """fp32 over bf16 of one record each."""
    times = {"here: {precision} (ms)": milliseconds} if with_times else {}
    return of_ratios("precision", FP32, BF16, plain(phase, precision=(FP32, BF16)), "here: fp32 / bf16", times)


def theirs(phase: str, *more: str, with_times: bool = False) -> Figures:
    """Ratios of one source and card, and the times they are made of."""

    def figures(sources: Sources, labels: Labels) -> Iterator[Figure]:
        rows = published.matching(sources.published(E2E), is_warm, phase=phase, precision=(FP32, *MIXED))
        for mixed in MIXED:
            words = ", ".join((f"fp32 / {mixed.removesuffix('?').removesuffix('_amp')}", *more))
            ratios = published.ratios(rows, "precision", FP32, mixed, labels, words, f"published/{E2E}")
            places, columns = {figure.row for figure in ratios}, {figure.column for figure in ratios}
            for row in rows if with_times else ():
                is_known = published.place(row, labels) in places and published.column(row, "", words) in columns
                if is_known and row["precision"] in (FP32, mixed):
                    head = published.column(row, "ms", row["precision"], *more)
                    yield Figure(published.place(row, labels), head, time_text(row), f"published/{E2E}")
            yield from ratios

    return figures


def _rises(_: Sequence[Figure], figures: Sequence[Figure]) -> str:
    """In how many columns with more than one size at a context the largest gains most."""
    columns: dict[tuple[str, str], list[float]] = {}
    for figure in figures:
        columns.setdefault((figure.column, figure.row[1]), []).append(float(figure.text))
    series = [values for values in columns.values() if len(values) > 1]
    rising = sum(values[-1] == max(values) for values in series)
    said = f"The largest size gains most in {rising} of the {len(series)} published series at one context."
    return said if series else ""


def _launches(sources: Sources, _: Labels) -> Iterator[Figure]:
    for size in sources.shapes:
        cases = [MODEL_CASE.format(size=size, context=128, precision=name) for name in (FP32, BF16)]
        fp32, bf16 = (sources.counted("forward", case, "kernel_launches") for case in cases)
        texts = {"launches, fp32": f"{fp32:,}", "launches, bf16": f"{bf16:,}", "added": f"{bf16 / fp32 - 1:+.0%}"}
        yield from (Figure((size,), f"here: {head}", text, sources.ledger_name) for head, text in texts.items())


def _optimizer(sources: Sources, labels: Labels) -> Iterator[Figure]:
    for pair in sources.pairs("precision", FP32, BF16, plain("full_step", precision=(FP32, BF16))):
        rounds = [part(one.cell, "optimizer") for one in pair]
        if all(rounds):
            fp32, bf16 = (median(of) * 1e3 for of in rounds)
            texts = {"fp32 (ms)": significant(fp32), "bf16 (ms)": significant(bf16),
                     "fp32 / bf16": significant(fp32 / bf16, 3)}  # fmt: skip
            row = place(pair[0].cell, labels)
            yield from (Figure(row, f"here: {head}", text, pair[0].file) for head, text in texts.items())


PASSES = (
    (
        "How much faster is a forward pass in mixed precision, by size?", "forward", "forward", "test_forward.py",
        "The gain grows with the size: products of large matrices run on faster units, launches do not.",
    ),
    (
        "And a backward pass?", "backward", "backward", "test_backward.py",
        "It has more products, so it gains at least as much where products are the time.",
    ),
    (
        "And both together?", "forward_backward", "fwd_bwd", "test_backward.py",
        "Small models may lose: autocast adds casts, and each is a launch.",
    ),
)  # fmt: skip
"""Question, phase here and in published tables, file, why."""

QUESTIONS = (
    *(
        Question(
            asked, command(file, phase), why, PLACE, [both(phase, with_times=True)], [theirs(name, with_times=True)]
        )
        for asked, phase, name, file, why in PASSES
    ),
    Question(
        "And a full step?",
        command("test_full_step.py", "full_step"),
        "The optimizer works on float32 weights in both, so the step gains less than its passes.",
        PLACE,
        [both("full_step", with_times=True)],
        [theirs("full_step", with_times=True), theirs("backward+optimizer", "backward + optimizer", with_times=True)],
    ),
    Question(
        "Does the gain grow with the size of the model?",
        command("test_forward.py", "forward"),
        "Larger products use more of the faster units, while casts and launches cost the same at any width.",
        PLACE, [both("forward")], [theirs("forward"), theirs("fwd_bwd")], _rises,
    ),
    Question(
        "Why can mixed precision be slower?",
        "pytest perf_tests/test_counters.py",
        "Each cast that autocast adds is a launch, and a model that leaves its GPU idle takes as long as its launches.",
        ("Size",), [_launches],
    ),
    Question(
        "Does precision change the optimizer's time?",
        "pytest perf_tests/test_full_step.py --phase full_step --precision fp32,bf16",
        "Weights, gradients and AdamW's state are float32 in both: equal work, and a ratio that scatters about one.",
        PLACE, [_optimizer],
    ),
)  # fmt: skip
