"""Mixed precision: how much faster by size and context, why not always, and what numbers do in sixteen bits."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.timing import milliseconds
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, Question, files_of, question
from perf_tests.views.writeup.published import SAID
from perf_tests.views.writeup.sources import Pair, Sources
from perf_tests.views.writeup.step import part, ratio_figures
from perf_tests.views.writeup.timing import E2E, SIZE_CONTEXT, is_plain, place

TITLE = "Mixed precision"
MIXED = ("bf16_amp", "fp16_amp", "fp16_amp?")
BASE = "fp32"


def pairs(sources: Sources, *phases: str) -> list[Pair]:
    """fp32 and bf16 of one record each."""
    return sources.pairs(
        "precision", BASE, "bf16", lambda cell: any(is_plain(cell, *phases, precision=name) for name in (BASE, "bf16"))
    )


def _speed_up(sources: Sources, phase: str, published_as: str) -> Answer:
    found = pairs(sources, phase)
    here = [
        Figure(place(one.cell), f"here: {one.cell.label('precision')} (ms)", milliseconds(one.cell))
        for pair in found
        for one in pair
    ]
    here += ratio_figures(found, "here: fp32 / bf16")
    return Answer(
        SIZE_CONTEXT,
        here,
        _ratios(sources, published_as, with_times=True),
        files_of([*(one.file for one, _ in found), E2E]),
    )


def _ratios(sources: Sources, published_as: str, with_times: bool = False) -> list[Figure]:
    rows = published.warmed_up(sources, phase=published_as, precision=(BASE, *MIXED))
    found: list[Figure] = []
    for mixed in MIXED:
        words = f"fp32 / {mixed.removesuffix('?').removesuffix('_amp')}"
        ratios = published.ratios(rows, "precision", BASE, mixed, ("size", "context"), words)
        where = {figure.row for figure in ratios}
        cards = {figure.column.removesuffix(f", {words}") for figure in ratios}
        if with_times:
            found += [
                Figure(row_place, published.column(row, "ms", row["precision"]), published.time_text(row))
                for row in rows
                if row["precision"] in (BASE, mixed)
                and (row_place := (published.label(row, "size"), published.label(row, "context"))) in where
                and published.column(row) in cards
            ]
        found += ratios
    return found


def _command(file: str, phase: str) -> str:
    return f"pytest perf_tests/{file} --phase {phase} --precision fp32,bf16 --size all"


@question(
    "How much faster is a forward pass in mixed precision, by size?",
    _command("test_forward.py", "forward"),
    "The gain grows with the size: products of large matrices run on faster units, launches do not.",
)
def forward(sources: Sources) -> Answer:
    return _speed_up(sources, "forward", "forward")


@question(
    "And a backward pass?",
    _command("test_backward.py", "backward"),
    "It has more products, so it gains at least as much where products are the time.",
)
def backward(sources: Sources) -> Answer:
    return _speed_up(sources, "backward", "backward")


@question(
    "And both together?",
    _command("test_backward.py", "forward_backward"),
    "Small models may lose: autocast adds casts, and each is a launch.",
)
def forward_backward(sources: Sources) -> Answer:
    return _speed_up(sources, "forward_backward", "fwd_bwd")


@question(
    "And a full step?",
    _command("test_full_step.py", "full_step"),
    "The optimizer works on float32 weights in both, so the step gains less than its passes.",
)
def full_step(sources: Sources) -> Answer:
    found = _speed_up(sources, "full_step", "full_step")
    others = [
        replace(figure, column=f"{figure.column}, backward + optimizer")
        for figure in _ratios(sources, "backward+optimizer", with_times=True)
    ]
    return replace(found, published=[*found.published, *others])


@question(
    "Does the gain grow with the size of the model?",
    _command("test_forward.py", "forward"),
    "Larger products use more of the faster units, while casts and launches cost the same at any width.",
)
def trend(sources: Sources) -> Answer:
    found = pairs(sources, "forward")
    files = files_of([*(one.file for one, _ in found), E2E])
    figures = [*_ratios(sources, "forward"), *_ratios(sources, "fwd_bwd")]
    return Answer(SIZE_CONTEXT, ratio_figures(found, "here: fp32 / bf16"), figures, files, _rises(figures))


def _rises(figures: Sequence[Figure]) -> str:
    """In how many columns with more than one size at a context the largest gains most."""
    columns: dict[tuple[str, str], list[float]] = {}
    for figure in figures:
        columns.setdefault((figure.column, figure.row[1]), []).append(float(figure.text))
    series = [values for values in columns.values() if len(values) > 1]
    rising = sum(values[-1] == max(values) for values in series)
    return (
        f"The largest size gains most in {rising} of the {len(series)} published series at one context."
        if series
        else ""
    )


@question(
    "Why can mixed precision be slower?",
    "pytest perf_tests/test_counters.py",
    "Each cast that autocast adds is a launch, and a model that leaves its GPU idle takes as long as its launches.",
)
def added_launches(sources: Sources) -> Answer:
    here = []
    for size in sources.shapes:
        counts = [
            sources.counted("forward", f"{size}-ctx128-{name}-naive", "kernel_launches") for name in (BASE, "bf16")
        ]
        for head, text in (
            ("fp32", f"{counts[0]:,}"),
            ("bf16", f"{counts[1]:,}"),
            ("added", f"{counts[1] / counts[0] - 1:+.0%}"),
        ):
            here.append(Figure((size,), f"here: launches, {head}" if head != "added" else "here: added", text))
    return Answer(("Size",), here, files=(sources.ledger_name,))


@question(
    "Does precision change the optimizer's time?",
    "pytest perf_tests/test_full_step.py --phase full_step --precision fp32,bf16",
    "Weights, gradients and AdamW's state are float32 in both, so its work is the same.",
)
def optimizer(sources: Sources) -> Answer:
    here, files = [], []
    for pair in pairs(sources, "full_step"):
        seconds = [part(one, "optimizer") for one in pair]
        if all(seconds):
            fp32, bf16 = map(median, seconds)
            for head, text in (
                ("fp32 (ms)", significant(fp32 * 1e3)),
                ("bf16 (ms)", significant(bf16 * 1e3)),
                ("fp32 / bf16", significant(fp32 / bf16, 3)),
            ):
                here.append(Figure(place(pair[0].cell), f"here: {head}", text))
            files.append(pair[0].file)
    return Answer(SIZE_CONTEXT, here, files=files_of(files))


def _exercise(name: str, sources: Sources) -> Answer:
    """The header names the labels of a row and one column each."""
    (header, *rows) = sources.played.exercises.get(name, (("",),))
    here = [
        Figure(row[:1], f"here: {head}", text) for row in rows for head, text in zip(header[1:], row[1:], strict=True)
    ]
    others = [
        Figure((row["item"],), published.source_of(row, row["column"]), row["value"])
        for row in published.said(sources, name)
    ]
    files = [*["numerics_tests/exercises.py"] * bool(rows), *[SAID] * bool(others)]
    return Answer(header[:1], here, others, files)


EXERCISES = tuple(
    Question(asked, f"pytest numerics_tests/{file}", why, partial(_exercise, name))
    for name, asked, file, why in (
        (
            "accumulation", "What does adding a hundredth a thousand times give?", "test_accumulation.py",
            "A float16 sum rounds at every step; a float32 sum of float16 numbers keeps only the error of the number.",
        ),
        (
            "partial_sums", "When do the sums in both formats part?", "test_accumulation.py",
            "Both add the same number; two roundings of the float16 sum may cancel, which says nothing of the next.",
        ),
        (
            "stored", "How far is a hundredth from what each format stores?", "test_accumulation.py",
            "No binary format has it, so every sum of it begins with an error that no accumulator removes.",
        ),
        (
            "stagnation", "Where does a running sum stop growing?", "test_accumulation.py",
            "Once half a unit in the last place reaches the addend, round to nearest leaves the sum as it is.",
        ),
        (
            "toy_model", "Which dtype has each part of the toy model under autocast?", "test_toy_model.py",
            "Weights stay float32 and products are lowered; the norm and the loss follow the device's own list.",
        ),
        (
            "norms", "What does a norm give in half precision?", "test_norms.py",
            "Squares of a thousand overflow float16, and bfloat16 has the range and not the digits.",
        ),
        (
            "inverse_rms", "Which part of a norm is sensitive?", "test_norms.py",
            "The mean of squares: infinite, it makes the inverse root zero; bfloat16 only rounds it.",
        ),
    )
)  # fmt: skip

QUESTIONS = (
    forward, backward, forward_backward, full_step, trend, added_launches, optimizer, *EXERCISES,
)  # fmt: skip
