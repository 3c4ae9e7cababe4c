"""The write-up as sections of questions with their tables, as Markdown and as data; the same from the same files."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from perf_tests.records.format import Table, in_markdown, pipe_table
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts import (
    attention,
    exercises,
    fused,
    memory,
    precision,
    products,
    profile,
    published,
    regions,
    step,
    tensors,
    timing,
    warmup,
)
from perf_tests.report.cs336_parts.answer import Answer, Question, table_of
from perf_tests.report.cs336_parts.sources import Sources

TITLE = "Write-up"
UNKNOWN = "Not recorded on this machine; the command records it."


SECTIONS = {
    section.TITLE: section.QUESTIONS
    for section in (
        timing, step, warmup, profile, products, regions, precision, exercises, memory, tensors, attention, fused,
    )
}  # fmt: skip
"""Files of questions, in the order of the course."""


@dataclass(frozen=True)
class Entry:
    """A question with its answer, as the page shows them."""

    section: str
    question: Question
    answer: Answer
    table: Table | None

    @property
    def sentences(self) -> list[str]:
        """One made of the figures, and one why."""
        return [*filter(None, [self.answer.said]), self.question.why]

    @property
    def origin(self) -> list[str]:
        """Where the figures come from."""
        return [f"From {', '.join(self.answer.files)}."] if self.table and self.answer.files else []


def entries(sources: Sources) -> list[Entry]:
    found = []
    for title, questions in SECTIONS.items():
        for question in questions:
            answer = question.answer(sources)
            found.append(Entry(title, question, answer, table_of(answer)))
    return found


def introduction(found: Sequence[Entry]) -> list[str]:
    """What the page holds, in sentences."""
    ours = sum(bool(entry.answer.here) for entry in found)
    known = sum(entry.answer.is_known for entry in found)
    return [
        f"The questions of the course assignment (Stanford CS336, assignment 2) and of five public write-ups: "
        f"{known} of {len(found)} are answered, {ours} with figures of this suite.",
        "Written by python -m perf_tests writeup from the files that each answer names. Figures headed here are those "
        "of the records below, exact counters of an imaginary GPU, closed forms, or computed for this page; figures of "
        "others are as their sources print them, GB and GiB included. The command above a table measures its cases.",
    ]


def where(sources: Sources) -> Table:
    """The records of this machine, and the five write-ups."""
    records = [("here", *line.partition(": ")[::2]) for line in sources.machines]
    others = [(one.name, one.repository, ", ".join(one.gpus)) for one in published.write_ups(sources)]
    return Table("where", "Whose figures these are", ("Figures", "Source", "Machine"), 3, tuple(records + others), ())


def markdown_page(sources: Sources) -> str:
    found = entries(sources)
    lines = [f"# {TITLE}\n", *(f"{wrapped(line)}\n" for line in introduction(found)), *_markdown_table(where(sources))]
    section = ""
    for entry in found:
        if entry.section != section:
            section = entry.section
            lines.append(f"## {section}\n")
        lines += [f"### {entry.question.asked}\n", f"    {entry.question.command}\n"]
        lines += _markdown_table(entry.table) if entry.table else [f"{UNKNOWN}\n"]
        lines += [f"{wrapped(note)}\n" for note in (*entry.sentences, *entry.origin)]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    return ["\n".join(pipe_table(table.header, table.rows, table.label_columns)) + "\n"]


def wrapped(text: str, width: int = 120) -> str:
    """Lines broken at spaces; one that would begin as a list item or a heading keeps its neighbour."""
    lines, line = [], ""
    for word in re.split(r" +", in_markdown(text)):
        starts_markup = re.match(r"[-+*#>]|\d+[.)]$", word)
        if line and len(line) + 1 + len(word) > width and not starts_markup:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def as_data(sources: Sources) -> list[Json]:
    return [
        {
            "section": entry.section, "question": entry.question.asked, "command": entry.question.command,
            "labels": entry.answer.labels, "here": [asdict(figure) for figure in entry.answer.here],
            "published": [asdict(figure) for figure in entry.answer.published], "said": entry.answer.said,
            "why": entry.question.why, "files": list(entry.answer.files),
        }
        for entry in entries(sources)
    ]  # fmt: skip
