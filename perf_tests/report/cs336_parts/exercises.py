"""What numbers do in sixteen bits: the numerics suite's exercises, printed by the code that asserts them."""

from collections.abc import Iterator

from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.published import of_answers
from perf_tests.report.cs336_parts.sources import Sources

TITLE = "Numbers in sixteen bits"


def _exercise(name: str) -> Figures:
    """The header names the label of a row and one column each."""

    def figures(sources: Sources, _: Labels) -> Iterator[Figure]:
        header, *rows = sources.played.exercises.get(name, (("",),))
        for label, *texts in rows:
            for head, text in zip(header[1:], texts, strict=True):
                yield Figure((label,), f"here: {head}", text, "numerics_tests/harness/exercises.py")

    return figures


EXERCISES = (
    (
        "accumulation", "What does adding a hundredth a thousand times give?", "test_accumulation.py", "Loop",
        "A float16 sum rounds at every step; a float32 sum of float16 numbers keeps only the error of the number.",
    ),
    (
        "partial_sums", "When do the sums in both formats part?", "test_accumulation.py", "Additions",
        "Both add the same number; two roundings of the float16 sum may cancel, which says nothing of the next.",
    ),
    (
        "stored", "How far is a hundredth from what each format stores?", "test_accumulation.py", "Format",
        "No binary format has it, so every sum of it begins with an error that no accumulator removes.",
    ),
    (
        "stagnation", "Where does a running sum stop growing?", "test_accumulation.py", "Format",
        "Once half a unit in the last place reaches the addend, round to nearest leaves the sum as it is.",
    ),
    (
        "toy_model", "Which dtype has each part of the toy model under autocast?", "test_toy_model.py", "Part",
        "Weights stay float32 and products are lowered; the norm and the loss follow the device's own list.",
    ),
    (
        "norms", "What does a norm give in half precision?", "test_norms.py", "Input",
        "Squares of a thousand overflow float16, and bfloat16 has the range and not the digits.",
    ),
    (
        "inverse_rms", "Which part of a norm is sensitive?", "test_norms.py", "Format",
        "The mean of squares: infinite, it makes the inverse root zero; bfloat16 only rounds it.",
    ),
)  # fmt: skip
"""Name of the table, question, file that asserts it, label of a row, and why."""

QUESTIONS = tuple(
    Question(asked, f"pytest numerics_tests/{file}", why, (label,), [_exercise(name)], [of_answers(name)])
    for name, asked, file, label, why in EXERCISES
)
