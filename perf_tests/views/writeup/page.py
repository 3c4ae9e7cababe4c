"""The page of questions as Markdown: the same bytes from the same files."""

import re

from perf_tests.views.writeup import kernels, memory, timing
from perf_tests.views.writeup.sources import Answer, Question, Sources

QUESTIONS = [
    found
    for answering in (timing, kernels, memory)
    for found in vars(answering).values()
    if isinstance(found, Question)
]

UNANSWERED = "No record in this repository answers this yet; the command makes one."

HEAD = """# Questions

Written by `python -m perf_tests questions` from the files that each answer names; `make test` compares the two. Exact
counters are those of an imaginary GPU at batch 4, attention alone at batch 8, `naive`, `eager`, AdamW `foreach`. An
answer from a record holds for that machine; the command measures yours.
"""


def answers(sources: Sources) -> list[tuple[Question, Answer | None]]:
    return [(question, question.answer(sources)) for question in QUESTIONS]


def questions_page(sources: Sources) -> str:
    parts = [HEAD]
    for question, answer in answers(sources):
        parts += [f"## {question.asked}\n", f"{_wrapped(answer.text if answer else UNANSWERED)}\n"]
        parts += [f"    {question.command}\n"]
        parts += [f"{_wrapped(f'From {answer.source}.')}\n"] if answer else []
    return "\n".join(parts)


def _wrapped(text: str, width: int = 120) -> str:
    """Lines broken at spaces; one that would begin as a list item or a heading keeps its neighbour."""
    lines, line = [], ""
    for word in re.split(r" +", text):
        starts_markup = re.match(r"[-+*#>]|\d+[.)]$", word)
        if line and len(line) + 1 + len(word) > width and not starts_markup:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
