"""What a step is made of: its parts, their ratios, and what does not fit."""

from collections.abc import Sequence
from statistics import median

from perf_tests.views.tables.cells import inside
from perf_tests.views.tables.digits import GIB, significant
from perf_tests.views.tables.timing import ratio
from perf_tests.views.tables.warmup import seconds_of
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.sources import Found, Pair, Sources
from perf_tests.views.writeup.timing import E2E, SIZE_CONTEXT, file_of, place, plain

TITLE = "Parts of a step"
STEP_COMMAND = "pytest perf_tests/test_full_step.py --phase full_step --precision fp32"


def part(found: Found, *names: str) -> list[float]:
    """Seconds of those parts of each round of a full step; empty where one is missing."""
    parts = [seconds_of(inside(found.cell.info, "part_seconds"), name) for name in names]
    return [sum(of) for of in zip(*parts, strict=False)] if all(parts) else []


def _part_figures(found: Sequence[Found], *names: str) -> list[Figure]:
    known = [(one, seconds) for one in found if (seconds := part(one, *names))]
    return [Figure(place(one.cell), "here (ms)", significant(median(seconds) * 1e3)) for one, seconds in known]


@question(
    "How long do backward pass and optimizer take together?",
    STEP_COMMAND,
    "One write-up times them as one; its rounds were not synchronised, so part of its forward pass is in them.",
)
def backward_and_optimizer(sources: Sources) -> Answer:
    found = sources.timed(plain("full_step"))
    others = published.times(sources, phase="backward+optimizer", precision="fp32")
    return Answer(
        SIZE_CONTEXT, _part_figures(found, "backward", "optimizer"), others, files_of([*map(file_of, found), E2E])
    )


@question(
    "How long does the optimizer take?",
    STEP_COMMAND,
    "It moves weights, gradients and both moments through memory and multiplies no matrices.",
)
def optimizer(sources: Sources) -> Answer:
    found = sources.timed(plain("full_step"))
    rows = published.matching(
        sources.published("e2e_timing.csv"), bool, phase="optimizer", compiled="no", precision="fp32"
    )
    others = [
        Figure(
            (published.label(row, "size"), published.label(row, "context")),
            published.column(row, "ms"),
            published.time_text(row),
        )
        for row in rows
    ]
    return Answer(SIZE_CONTEXT, _part_figures(found, "optimizer"), others, files_of([*map(file_of, found), E2E]))


@question(
    "Is a forward pass alone as long as the forward pass inside a step?",
    "pytest perf_tests/test_forward.py perf_tests/test_full_step.py --phase forward,full_step --precision fp32",
    "Inside a step the optimizer's state and a cold cache lie between two forward passes.",
)
def forward_alone_and_inside(sources: Sources) -> Answer:
    steps = {(*place(one.cell), one.file): one for one in sources.timed(plain("full_step")) if one.cell.is_timed}
    here, files = [], []
    for one in sources.timed(plain("forward")):
        step = steps.get((*place(one.cell), one.file))
        inside_step = part(step, "forward") if step else []
        if inside_step and one.cell.is_timed:
            alone = one.cell.median_seconds
            texts = {
                "here: alone (ms)": significant(alone * 1e3),
                "here: inside the step (ms)": significant(median(inside_step) * 1e3),
                "here: inside / alone": significant(median(inside_step) / alone, 3),
            }
            here += [Figure(place(one.cell), head, text) for head, text in texts.items()]
            files.append(one.file)
    return Answer(SIZE_CONTEXT, here, files=files_of(files))


def ratio_figures(pairs: Sequence[Pair], head: str) -> list[Figure]:
    """Time of the first over time of the second of each pair."""
    return [Figure(place(one.cell), head, ratio(one.cell, two.cell)) for one, two in pairs]


@question(
    "Does a backward pass take twice its forward pass?",
    "pytest perf_tests/test_forward.py perf_tests/test_backward.py --phase forward,backward --precision fp32",
    "Its products are twice as many; what launches or memory bound need not double.",
)
def backward_over_forward(sources: Sources) -> Answer:
    pairs = sources.pairs("phase", "backward", "forward", plain("forward", "backward"))
    rows = published.warmed_up(sources, phase=("forward", "backward"), precision="fp32")
    others = published.ratios(rows, "phase", "backward", "forward", ("size", "context"), "backward / forward")
    files = files_of([*(one.file for one, _ in pairs), E2E])
    return Answer(SIZE_CONTEXT, ratio_figures(pairs, "here: backward / forward"), others, files)


@question(
    "Which sizes run out of memory?",
    "python -m perf_tests predict --size xl --context 128 --optimizer loop --gpu P100",
    "A forward pass that records a graph needs weights and activations, a backward pass also gradients.",
)
def out_of_memory(sources: Sources) -> Answer:
    here = [
        Figure(
            (size, phase),
            "here: counted peak (GiB)",
            significant(sources.counted(phase, f"{size}-ctx128-fp32-naive", "peak_bytes") / GIB),
        )
        for size in sources.shapes
        for phase in ("forward", "forward_backward", "full_step")
    ]
    rows = published.matching(
        sources.published("e2e_timing.csv"),
        context="128",
        precision="fp32",
        phase=("forward", "fwd_bwd"),
        compiled="no",
    )
    others = [
        Figure((row["size"], row["phase"].replace("fwd_bwd", "forward_backward")), published.column(row), row["status"])
        for row in rows
        if row["size"] in sources.shapes and row["warmup"] in ("5", "10")
    ]
    return Answer(("Size", "Phase"), here, others, (sources.ledger_name, E2E))


@question(
    "Why can a smaller, deeper model be slower?",
    "pytest perf_tests/test_forward.py --phase forward --size xl,2.7B --context 128 --precision bf16",
    "It has fewer FLOPs and more launches; where the host launches more slowly than kernels run, launches decide.",
)
def depth(sources: Sources) -> Answer:
    here = []
    for size in ("xl", "2.7B"):
        for name, head, factor in (("kernel_launches", "here: launches", 1.0), ("model_flops", "here: TFLOP", 1e-12)):
            value = sources.counted("forward", f"{size}-ctx128-bf16-naive", name) * factor
            here.append(Figure((size,), head, significant(value)))
        here.append(Figure((size,), "here: layers", str(sources.shapes[size].num_layers)))
    rows = published.matching(
        sources.published("e2e_timing.csv"), bool, phase="forward", compiled="no", precision="bf16_amp", context="128",
        size=("xl", "2.7B"), edition="2025", sync="yes", status="ok",
    )  # fmt: skip
    others = [
        Figure((row["size"],), published.column(row, "ms"), row["mean_ms"])
        for row in rows
        if row["mean_ms"] and row["warmup"] not in ("0", "1")
    ]
    slower = {figure.column for figure in others if figure.row == ("xl",)} & {
        figure.column for figure in others if figure.row == ("2.7B",)
    }
    return Answer(("Size",), here, [figure for figure in others if figure.column in slower], (sources.ledger_name, E2E))


QUESTIONS = (
    backward_and_optimizer,
    optimizer,
    forward_alone_and_inside,
    backward_over_forward,
    out_of_memory,
    depth,
)
