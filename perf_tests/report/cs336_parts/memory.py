"""Peaks by context and precision, and what they consist of."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from perf_tests.records.columns import SHORT_OUTCOMES, Cell, inside
from perf_tests.records.format import GIB, MIB
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.counted import MODEL_CASE, gibibytes, of_ledger
from perf_tests.report.cs336_parts.played import PeakBeside
from perf_tests.report.cs336_parts.profile import listed
from perf_tests.report.cs336_parts.published import MEMORY, of_table
from perf_tests.report.cs336_parts.recorded import BF16, FP32, Cases, item, number, of_cases, of_items, passed, plain
from perf_tests.report.cs336_parts.sources import CONTEXTS, Sources
from perf_tests.report.cs336_parts.timing import PLACE

TITLE = "Memory"
COURSE_SIZE = "2.7B"
"""The size whose memory the course asks for."""
CONDITIONS = "published/memory_conditions.csv"
COUNTING = "perf_tests/predict"
LEDGER_COMMAND = "pytest perf_tests/test_counters.py"
FORWARD_PEAK, STEP_PEAK = "forward_peak(with grad)", "full_step_peak"
CASE = (*PLACE, "Precision")
CASE_PHASE = (*CASE, "Phase")
MEMORY_PASS = "pytest perf_tests/test_memory.py --memory --phase forward,backward,full_step"
MEBIBYTES = (1 / MIB, 5)
"""With as many digits as tell a measured from a predicted peak."""


def predict(context: str, *more: str, size: str = COURSE_SIZE) -> str:
    return " ".join(("python -m perf_tests predict --size", size, "--context", context, "--gpu A100-80GB", *more))


BOTH = plain(precision=(FP32, BF16))


def remembered(*phases: str) -> Cases:
    return passed("memory", plain(*phases, precision=(FP32, BF16)))


def of_peaks(mode: str, precision: str = "", digits: int = 1) -> tuple[Figures, Figures]:
    """What is predicted under the conditions of each code, in the unit of the source; and what it prints."""

    def peaks(sources: Sources) -> Iterator[tuple[PeakBeside, tuple[str, ...]]]:
        for peak in sources.played.peaks:
            name, _, value = peak.mode.partition("=")
            is_asked = not precision or (peak.precision == FP32) == (precision == FP32)
            if (name, peak.size) == (mode, COURSE_SIZE) and is_asked:
                yield peak, (peak.size, str(peak.context), value or precision)

    def ours(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for peak, row in peaks(sources):
            column = f"here: predicted for {peak.source} ({peak.unit})"
            yield Figure(row[: len(labels)], column, f"{peak.predicted:.{digits}f}", f"{COUNTING}, {CONDITIONS}")

    def theirs(sources: Sources, labels: Labels) -> Iterator[Figure]:
        for peak, row in peaks(sources):
            column = f"{peak.source}{', fp16' * (peak.precision == 'fp16_amp')} ({peak.unit})"
            yield Figure(row[: len(labels)], column, peak.published or "not reported", f"published/{MEMORY}")

    return ours, theirs


def _peak_question(asked: str, options: str, why: str, mode: str, phase: str, precision: str, counted: str) -> Question:
    ours, theirs = of_peaks(mode, precision)
    course: dict[str, Sequence[object]] = {
        "phase": (phase,), "size": (COURSE_SIZE,), "context": CONTEXTS[:3], "precision": (precision,),
    }  # fmt: skip
    counts = of_ledger("peak_bytes", counted, gibibytes, MODEL_CASE, "{phase}", **course)
    return Question(asked, predict("128,256,512", options), why, CASE, [counts, ours], [theirs])


def _orders(sources: Sources, _: Labels) -> Iterator[Figure]:
    for one in sources.played.orders:
        for unit, size in (("GB", 1e9), ("GiB", GIB)):
            column = f"here: {one.order} ({unit})"
            yield Figure((COURSE_SIZE, str(one.context)), column, f"{one.peak_bytes / size:.1f}", COUNTING)


def _first_steps(sources: Sources, _: Labels) -> Iterator[Figure]:
    for one in sources.played.first_steps:
        row = (one.size, str(one.context), one.precision)
        for which, peak in (("first", one.first_bytes), ("later", one.later_bytes)):
            yield Figure(row, f"here: batch {one.batch_size}, {which} (GB)", f"{peak / 1e9:.1f}", COUNTING)


def _peak_or_outcome(cell: Cell) -> str:
    return SHORT_OUTCOMES[cell.outcome] if cell.outcome else number("peak_allocated_bytes", *MEBIBYTES)(cell)


def _measured_over_predicted(cell: Cell) -> str:
    peak, expected = cell.number("peak_allocated_bytes"), cell.number("predicted_peak_bytes")
    return f"{peak / expected:.5f}" if peak and expected else ""


def _categories(cell: Cell) -> Iterator[Json]:
    return ({"name": name, "bytes": held} for name, held in inside(cell.info, "peak_by_category_bytes").items())


def _added_by_mixed(sources: Sources, _: Labels) -> Iterator[Figure]:
    for context in CONTEXTS:
        cases = [MODEL_CASE.format(size=COURSE_SIZE, context=context, precision=name) for name in (BF16, FP32)]
        for phase, words in (("inference", "without gradients"), ("forward", "with gradients")):
            mixed, full = (sources.counted(phase, case, "peak_bytes") for case in cases)
            column = f"here: added, {words} (GiB)"
            yield Figure((COURSE_SIZE, str(context)), column, f"{(mixed - full) / GIB:+.2f}", sources.ledger_name)


QUESTIONS = (
    _peak_question(
        "What is the peak of a forward pass, by context?",
        "--optimizer loop",
        "What is saved for the backward pass grows with the tokens, and in attention with their square.",
        FORWARD_PEAK, "forward", FP32, "here: counted (GiB)",
    ),
    _peak_question(
        "What is the peak of a training step, by context?",
        "--optimizer loop --zero-grad after-forward",
        "It holds weights and two moments at any context; the order of clearing decides what is held with gradients.",
        STEP_PEAK, "full_step", FP32, "here: counted, AdamW foreach (GiB)",
    ),
    _peak_question(
        "What is the peak of a forward pass in mixed precision?",
        "--optimizer loop --precision bf16",
        "Copies of the weights add a constant, and activations of half the size save what grows with the context.",
        FORWARD_PEAK, "forward", BF16, "here: counted (GiB)",
    ),
    _peak_question(
        "And of a training step in mixed precision?",
        "--optimizer loop --precision bf16 --zero-grad after-forward",
        "Weights, gradients and moments stay float32 and copies of the weights come on top; only long contexts gain.",
        STEP_PEAK, "full_step", BF16, "here: counted, AdamW foreach (GiB)",
    ),
    Question(
        "Why do write-ups disagree on the peak of a step?",
        predict("128,256,512", "--optimizer loop --zero-grad before-step"),
        "Gradients cleared late live beside the activations of the pass; cleared before the update, AdamW has no "
        "state.",
        PLACE, [_orders], [of_peaks(STEP_PEAK, FP32)[1]],
    ),
    Question(
        "What is the peak of the first step, in which AdamW's state is born?",
        predict("128,256,512", "--optimizer loop", size="medium"),
        "The state is made at the end of the first step, so its passes run without it and those of later steps beside "
        "it.",
        CASE, [_first_steps],
        [
            of_table(MEMORY, "value", itemgetter("unit"), words, size="medium", mode=mode)
            for mode, words in (
                (STEP_PEAK, ""), ("resident_before_forward", "before forward"), ("after_forward", "after forward"),
            )
        ],
    ),
    Question(
        "What peaks are measured here, by context?",
        MEMORY_PASS + " --context 128,256,512",
        "Each case runs in a process of its own, so its peak is the same alone and in a grid.",
        CASE_PHASE,
        [of_cases(lambda sources: sources.passed_or_lost("memory", BOTH), {
            "here: measured (MiB)": _peak_or_outcome,
            "here: predicted (MiB)": number("predicted_peak_bytes", *MEBIBYTES),
        })],
    ),
    Question(
        "Do measured peaks agree with predicted ones?",
        MEMORY_PASS,
        "The count follows every tensor of the same code; a CPU's library may take some memory besides.",
        CASE_PHASE, [of_cases(remembered(), {"here: measured / predicted": _measured_over_predicted})],
    ),
    Question(
        "What does the active memory timeline of a step look like?",
        "pytest perf_tests/test_memory.py --memory-snapshot --phase forward,full_step --precision fp32",
        "It rises through the forward pass and falls through the backward pass; pytorch.org/memory_viz opens the "
        "snapshot.",
        CASE_PHASE,
        [
            of_items(remembered("forward", "full_step"), listed(name), {column: item(field, *MEBIBYTES)})
            for name, column, field in (
                ("parts", "here: peak in {item[phase]} (MiB)", "peak_allocated_bytes"),
                ("marks", "here: {item[name]} (MiB)", "allocated_bytes"),
            )
        ],
    ),
    Question(
        "What is held at the peak?",
        MEMORY_PASS,
        "A forward pass holds weights and activations; a step adds two moments, and gradients once activations are "
        "freed.",
        CASE_PHASE,
        [of_items(remembered(), _categories, {"here: {item[name]} (MiB)": item("bytes", *MEBIBYTES)})],
    ),
    Question(
        "Why can mixed precision take more memory?",
        LEDGER_COMMAND,
        "Autocast keeps a copy of every weight that a product reads, and halves only what grows with the context.",
        PLACE, [_added_by_mixed],
    ),
)  # fmt: skip
