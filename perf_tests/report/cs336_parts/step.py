"""What a step is made of: its parts, their ratios, and what does not fit."""

from collections.abc import Callable, Iterator
from statistics import median

from perf_tests.records.columns import Cell, inside, seconds_of
from perf_tests.records.format import significant
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Figure, Labels, Question
from perf_tests.report.cs336_parts.counted import SHAPES, gibibytes, of_ledger
from perf_tests.report.cs336_parts.published import E2E, is_warm_time, of_table, time_text
from perf_tests.report.cs336_parts.recorded import of_cases, of_ratios, place, plain, timed
from perf_tests.report.cs336_parts.sources import Sources
from perf_tests.report.cs336_parts.timing import PLACE, fp32

TITLE = "Parts of a step"
STEP = "pytest perf_tests/test_full_step.py --phase full_step --precision fp32"
DEEP = ("xl", "2.7B")


def part(cell: Cell, *names: str) -> list[float]:
    """Seconds of those parts of each round of a full step; empty where one is missing."""
    parts = [seconds_of(inside(cell.info, "part_seconds"), name) for name in names]
    return [sum(of) for of in zip(*parts, strict=False)] if all(parts) else []


def _part_text(*names: str) -> Callable[[Cell], str]:
    """The median in ms."""
    return lambda cell: significant(median(part(cell, *names)) * 1e3) if part(cell, *names) else ""


def _alone_and_inside(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """A forward pass, and that of the full step of the same record."""
    steps = {(*place(one.cell, labels), one.file): one.cell for one in sources.timed(plain("full_step"))}
    for one in sources.timed(plain("forward")):
        row = place(one.cell, labels)
        rounds = part(steps[*row, one.file], "forward") if (*row, one.file) in steps else []
        if rounds and one.cell.is_timed:
            alone, within = one.cell.median_seconds, median(rounds)
            yield Figure(row, "here: alone (ms)", significant(alone * 1e3), one.file)
            yield Figure(row, "here: inside the step (ms)", significant(within * 1e3), one.file)
            yield Figure(row, "here: inside / alone", significant(within / alone, 3), one.file)


def _layers(sources: Sources, _: Labels) -> list[Figure]:
    return [Figure((size,), "here: layers", str(sources.shapes[size].num_layers), SHAPES) for size in DEEP]


def _slower_though_smaller(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Published times of sources that have both models."""
    both = of_table(
        E2E, "mean_ms", "ms", fits=lambda row: row["warmup"] not in published.SHORT_WARM_UP, phase="forward",
        compiled="no", precision="bf16_amp", context="128", size=DEEP, edition="2025", sync="yes", status="ok",
    )  # fmt: skip
    figures = [figure for figure in both(sources, labels) if figure.text]
    smaller, larger = ({figure.column for figure in figures if figure.row == (size,)} for size in DEEP)
    return (figure for figure in figures if figure.column in smaller & larger)


QUESTIONS = (
    Question(
        "How long do backward pass and optimizer take together?",
        STEP,
        "One write-up times them as one; its rounds were not synchronised, so part of its forward pass is in them.",
        PLACE,
        [of_cases(timed(plain("full_step")), {"here (ms)": _part_text("backward", "optimizer")})],
        [fp32(time_text, "ms", phase="backward+optimizer")],
    ),
    Question(
        "How long does the optimizer take?",
        STEP,
        "It moves weights, gradients and both moments through memory and multiplies no matrices.",
        PLACE,
        [of_cases(timed(plain("full_step")), {"here (ms)": _part_text("optimizer")})],
        [of_table(E2E, time_text, "ms", fits=bool, phase="optimizer", compiled="no", precision="fp32")],
    ),
    Question(
        "Is a forward pass alone as long as the forward pass inside a step?",
        "pytest perf_tests/test_forward.py perf_tests/test_full_step.py --phase forward,full_step --precision fp32",
        "About: a step leaves cold caches, but a pass moves so much more than they hold that its time hardly changes.",
        PLACE, [_alone_and_inside],
    ),
    Question(
        "Does a backward pass take twice its forward pass?",
        "pytest perf_tests/test_forward.py perf_tests/test_backward.py --phase forward,backward --precision fp32",
        "Its products are twice as many; what launches or memory bound need not double.",
        PLACE,
        [of_ratios("phase", "backward", "forward", plain("forward", "backward"), "here: backward / forward")],
        [published.of_ratios(
            E2E, "phase", "backward", "forward", "backward / forward", is_warm_time, precision="fp32",
        )],
    ),
    Question(
        "Which sizes run out of memory?",
        "python -m perf_tests predict --size xl --context 128 --optimizer loop --gpu P100",
        "A forward pass that records a graph needs weights and activations, a backward pass also gradients.",
        ("Size", "Phase"),
        [of_ledger(
            "peak_bytes", "here: counted peak (GiB)", gibibytes, phase=("forward", "forward_backward", "full_step"),
        )],
        [of_table(
            E2E, "status", context="128", precision="fp32", phase=("forward", "fwd_bwd"), compiled="no",
            warmup=("5", "10"),
        )],
    ),
    Question(
        "Why can a smaller, deeper model be slower?",
        "pytest perf_tests/test_forward.py --phase forward --size xl,2.7B --context 128 --precision bf16",
        "It has fewer FLOPs and more launches; where the host launches more slowly than kernels run, launches decide.",
        ("Size",),
        [
            of_ledger(
                "kernel_launches", "here: launches", significant, of="forward", size=DEEP, precision=("bf16",),
            ),
            of_ledger(
                "model_flops", "here: TFLOP", lambda flops: significant(flops / 1e12), of="forward", size=DEEP,
                precision=("bf16",),
            ),
            _layers,
        ],
        [_slower_though_smaller],
    ),
)  # fmt: skip
