"""Peaks by context and precision, what they consist of, and which line makes which tensor."""

from perf_tests.views.tables.cells import Cell, finite, inside, rows_in
from perf_tests.views.tables.digits import GIB, MIB, significant
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.played import PeakBeside
from perf_tests.views.writeup.sources import CONTEXTS, Found, Sources
from perf_tests.views.writeup.timing import SIZE_CONTEXT, plain

TITLE = "Memory"
BATCH = 4
COURSE_SIZE = "2.7B"
"""The size whose memory the course asks for."""
MEMORY, CONDITIONS = "published/memory.csv", "published/memory_conditions.csv"
COUNTING = "perf_tests/counting"
LEDGER_COMMAND = "pytest perf_tests/test_counters.py"
FORWARD_PEAK, STEP_PEAK, CHECKPOINT = "forward_peak(with grad)", "full_step_peak", "full_step_peak:checkpoint group="
CASE = (*SIZE_CONTEXT, "Precision")
UNITS = {"GB": 1e9, "MiB": MIB, "GiB": GIB}


def predict(context: str, *more: str, size: str = COURSE_SIZE) -> str:
    return " ".join(("python -m perf_tests predict --size", size, "--context", context, "--gpu A100-80GB", *more))


def _counted(sources: Sources, phase: str, precision: str) -> list[Figure]:
    return [
        Figure(
            (COURSE_SIZE, str(context), precision),
            "here: counted, AdamW foreach (GiB)" if phase == "full_step" else "here: counted (GiB)",
            significant(peak / GIB),
        )
        for context in CONTEXTS[:3]
        for peak in [sources.counted(phase, f"{COURSE_SIZE}-ctx{context}-{precision}-naive", "peak_bytes")]
    ]


def _peaks(sources: Sources, mode: str, phase: str, precision: str) -> Answer:
    """Published ones beside what is predicted under the conditions of each code, in the unit of the source."""
    beside = [
        peak for peak in sources.played.peaks
        if (peak.mode, peak.size) == (mode, COURSE_SIZE) and (peak.precision == "fp32") == (precision == "fp32")
    ]  # fmt: skip
    here, others = _counted(sources, phase, precision), []
    for peak in beside:
        row = (peak.size, str(peak.context), precision)
        here.append(Figure(row, f"here: predicted for {peak.source} ({peak.unit})", _in_digits_of(peak)))
        others.append(
            Figure(
                row,
                f"{peak.source}{', fp16' * (peak.precision == 'fp16_amp')} ({peak.unit})",
                peak.published or "not reported",
            )
        )
    return Answer(CASE, here, others, (sources.ledger_name, *((MEMORY, CONDITIONS) if beside else ())))


def _in_digits_of(peak: PeakBeside) -> str:
    return f"{peak.predicted:.1f}"


@question(
    "What is the peak of a forward pass, by context?",
    predict("128,256,512", "--optimizer loop"),
    "What is saved for the backward pass grows with the tokens, and in attention with their square.",
)
def forward_peak(sources: Sources) -> Answer:
    return _peaks(sources, FORWARD_PEAK, "forward", "fp32")


@question(
    "What is the peak of a training step, by context?",
    predict("128,256,512", "--optimizer loop --zero-grad after-forward"),
    "It holds weights and two moments at any context; the order of clearing decides what is held with gradients.",
)
def step_peak(sources: Sources) -> Answer:
    return _peaks(sources, STEP_PEAK, "full_step", "fp32")


@question(
    "What is the peak of a forward pass in mixed precision?",
    predict("128,256,512", "--optimizer loop --precision bf16"),
    "Copies of the weights add a constant, and activations of half the size save what grows with the context.",
)
def forward_peak_mixed(sources: Sources) -> Answer:
    return _peaks(sources, FORWARD_PEAK, "forward", "bf16")


@question(
    "And of a training step in mixed precision?",
    predict("128,256,512", "--optimizer loop --precision bf16 --zero-grad after-forward"),
    "Weights, gradients and moments stay float32, so only what the passes hold shrinks.",
)
def step_peak_mixed(sources: Sources) -> Answer:
    return _peaks(sources, STEP_PEAK, "full_step", "bf16")


@question(
    "Why do write-ups disagree on the peak of a step?",
    predict("128,256,512", "--optimizer loop --zero-grad before-step"),
    "Gradients cleared late live beside the activations of the pass; cleared before the update, AdamW has no state.",
)
def orders(sources: Sources) -> Answer:
    here = [
        Figure((COURSE_SIZE, str(one.context)), f"here: {one.order} ({unit})", f"{one.peak_bytes / size:.1f}")
        for one in sources.played.orders
        for unit, size in (("GB", 1e9), ("GiB", GIB))
    ]
    others = [
        Figure((peak.size, str(peak.context)), f"{peak.source} ({peak.unit})", peak.published or "not reported")
        for peak in sources.played.peaks
        if (peak.mode, peak.precision, peak.size) == (STEP_PEAK, "fp32", COURSE_SIZE)
    ]
    return Answer(SIZE_CONTEXT, here, others, (COUNTING, MEMORY))


@question(
    "What is the peak of the first step, in which AdamW's state is born?",
    predict("128,256,512", "--optimizer loop", size="medium"),
    "The state is made at the end of the first step, so its passes run without it and those of later steps beside it.",
)
def first_step(sources: Sources) -> Answer:
    here = []
    for one in sources.played.first_steps:
        row = (one.size, str(one.context), one.precision)
        head = f"here: batch {one.batch_size}"
        here += [
            Figure(row, f"{head}, first (GB)", f"{one.first_bytes / 1e9:.1f}"),
            Figure(row, f"{head}, later (GB)", f"{one.later_bytes / 1e9:.1f}"),
        ]
    rows = published.matching(sources.published("memory.csv"), size="medium")
    words = {STEP_PEAK: "", "resident_before_forward": "before forward", "after_forward": "after forward"}
    others = [
        Figure(
            (row["size"], row["context"], row["precision"].removesuffix("_amp")),
            published.column(row, row["unit"], *filter(None, [words[row["mode"]]])),
            row["value"],
        )
        for row in rows
        if row["mode"] in words
    ]
    return Answer(CASE, here, others, (COUNTING, MEMORY))


def _remembered(sources: Sources, *phases: str) -> list[Found]:
    return [*sources.passed("memory", plain(*phases)), *sources.passed("memory", plain(*phases, precision="bf16"))]


def _case(cell: Cell) -> tuple[str, ...]:
    return cell.label("size"), cell.label("context_length"), cell.label("precision")


MEMORY_PASS = "pytest perf_tests/test_memory.py --memory --phase forward,backward,full_step"


@question(
    "What peaks are measured here, by context?",
    MEMORY_PASS + " --context 128,256,512",
    "Each case runs in a process of its own, so its peak is the same alone and in a grid.",
)
def measured(sources: Sources) -> Answer:
    found = _remembered(sources)
    here = []
    for one in found:
        for field, head in (("peak_allocated_bytes", "measured"), ("predicted_peak_bytes", "predicted")):
            value = finite(one.cell.info.get(field))
            if value is not None:
                here.append(
                    Figure((*_case(one.cell), one.cell.phase), f"here: {head} (MiB)", significant(value / MIB, 5))
                )
    return Answer((*CASE, "Phase"), here, files=files_of(one.file for one in found))


@question(
    "Do measured peaks agree with predicted ones?",
    MEMORY_PASS,
    "The count follows every tensor of the same code; a CPU's library may take some memory besides.",
)
def measured_against_predicted(sources: Sources) -> Answer:
    found = _remembered(sources)
    here = []
    for one in found:
        peak, expected = (finite(one.cell.info.get(name)) for name in ("peak_allocated_bytes", "predicted_peak_bytes"))
        if peak and expected:
            here.append(
                Figure((*_case(one.cell), one.cell.phase), "here: measured / predicted", f"{peak / expected:.5f}")
            )
    return Answer((*CASE, "Phase"), here, files=files_of(one.file for one in found))


@question(
    "What does the active memory timeline of a step look like?",
    "pytest perf_tests/test_memory.py --memory-snapshot --phase forward,full_step --precision fp32",
    "It rises through the forward pass and falls through the backward pass; pytorch.org/memory_viz opens the snapshot.",
)
def timeline(sources: Sources) -> Answer:
    found = [one for one in _remembered(sources) if one.cell.phase in ("forward", "full_step")]
    here = [
        Figure(
            (*_case(one.cell), one.cell.phase), f"here: peak in {row.get('phase')} (MiB)", significant(value / MIB, 5)
        )
        for one in found
        for row in rows_in(one.cell.info, "parts")
        if (value := finite(row.get("peak_allocated_bytes"))) is not None
    ]
    here += [
        Figure((*_case(one.cell), one.cell.phase), f"here: {mark.get('name')} (MiB)", significant(value / MIB, 5))
        for one in found
        for mark in rows_in(one.cell.info, "marks")
        if (value := finite(mark.get("allocated_bytes"))) is not None
    ]
    return Answer((*CASE, "Phase"), here, files=files_of(one.file for one in found))


@question(
    "What is held at the peak?",
    MEMORY_PASS,
    "A forward pass holds weights and activations; a step adds two moments, and gradients once activations are freed.",
)
def categories(sources: Sources) -> Answer:
    found = _remembered(sources)
    here = [
        Figure((*_case(one.cell), one.cell.phase), f"here: {name} (MiB)", significant(value / MIB, 5))
        for one in found
        for name, held in inside(one.cell.info, "peak_by_category_bytes").items()
        if (value := finite(held)) is not None
    ]
    return Answer((*CASE, "Phase"), here, files=files_of(one.file for one in found))


@question(
    "Why can mixed precision take more memory?",
    LEDGER_COMMAND,
    "Autocast keeps a copy of every weight that a product reads, and halves only what grows with the context.",
)
def added_by_mixed(sources: Sources) -> Answer:
    here = []
    for context in CONTEXTS:
        for phase, words in (("inference", "without gradients"), ("forward", "with gradients")):
            peaks = [
                sources.counted(phase, f"{COURSE_SIZE}-ctx{context}-{name}-naive", "peak_bytes")
                for name in ("bf16", "fp32")
            ]
            here.append(
                Figure(
                    (COURSE_SIZE, str(context)), f"here: added, {words} (GiB)", f"{(peaks[0] - peaks[1]) / GIB:+.2f}"
                )
            )
    return Answer(SIZE_CONTEXT, here, files=(sources.ledger_name,))


QUESTIONS = (
    forward_peak,
    step_peak,
    forward_peak_mixed,
    step_peak_mixed,
    orders,
    first_step,
    measured,
    measured_against_predicted,
    timeline,
    categories,
    added_by_mixed,
)
