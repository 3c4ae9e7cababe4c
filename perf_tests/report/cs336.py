"""`writeup`: answer the course's problems from records, counters and published figures: one page.

perf-tests writeup -o writeup.md
perf-tests writeup --all -o everything.md

A short page, every table, or data; the same from the same files, without -o of committed records alone. The questions
are data, in `cs336.toml`: what is asked, the command that measures it, one sentence why, and which figures of ours and
of five public write-ups stand beside each other.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import Any

from perf_tests.phases import FINDINGS, FINE, RefusalError, UsageError
from perf_tests.records.format import DASH, Table, distinct, in_markdown, pipe_table, significant
from perf_tests.records.record import Json, grouped, without_path
from perf_tests.records.store import check_folder, print_left_out, strict_json, write_named
from perf_tests.report.cs336_ours import HERE, OURS, counted_figures
from perf_tests.report.cs336_sources import ROOT, SENTENCES, SIZES, THEIRS, Figure, Sources, table, write_ups

TITLE = "Write-up"
QUESTIONS = Path(__file__).with_suffix(".toml")
NOT_RECORDED = "not recorded"
UNKNOWN = "Not recorded on this machine; the command records it."
READERS = {**OURS, **THEIRS}
TRACKED = "docs/cs336.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_all = "write this Markdown file, of records that git ignores too"
    parser.add_argument("-o", "--output", metavar="FILE", help=of_all)
    parser.add_argument("--all", action="store_true", help="every table of every question, with the published columns")
    parser.add_argument("--root", type=Path, default=ROOT, help="where .benchmarks, published and perf_tests lie")


def run(arguments: argparse.Namespace) -> int:
    output, root = arguments.output, arguments.root
    if output is not None:
        check_folder(output)
        if Path(output).resolve() == (root / TRACKED).resolve():
            raise UsageError(f"{output} is the page of the committed records; name another file for yours.")
    if not os.path.isdir(root / "published"):
        raise RefusalError(f"--root {root} holds no folder `published`; name a checkout of this suite.")
    try:
        sources = Sources(root, counted_figures(), takes_ignored=output is not None)
        if arguments.json:
            text = strict_json(as_data(sources)) + "\n"
        else:
            text = (markdown_page if arguments.all else short_page)(sources)
    except (OSError, ValueError, IndexError, KeyError) as error:
        named = getattr(error, "filename", None)
        why = f"{named}: {without_path(error)}" if named else str(error).removesuffix(".")
        raise RefusalError(f"The files below {root} do not hold what the answers need: {why}.") from error
    print_left_out(sources.left_out + sources.passed_over, ())
    if output is None:
        print(text, end="")
    else:
        write_named(output, text.encode())
    return FINDINGS if sources.left_out else FINE


@dataclass(frozen=True)
class Question:
    """One question of the assignment; `here` and `published` say where figures come from, as `cs336.toml` does."""

    section: str
    problem: str
    asked: str
    command: str
    """Measures the cases of the answer and no others."""
    why: str
    rows: tuple[str, ...]
    """The names of a row's labels."""
    here: Sequence[Mapping[str, Any]]
    published: Sequence[Mapping[str, Any]] = ()
    said: str = ""
    brief: str = ""
    """The name of its row on the short page; empty for a question that only the full page has."""
    at: Sequence[str] = ()
    """The row that the short page shows, where one of ours has it."""
    of: str = ""
    """A pattern of the columns that it shows, ours and others'; without one, ours and those in its unit."""

    def entry(self, sources: Sources) -> "Entry":
        """Read the figures; one without a text is none."""
        here: list[Figure] = []
        published: list[Figure] = []
        for found, of in ((here, self.here), (published, self.published)):
            for options in map(dict, of):  # `from` names a reader or a published table
                named = options.pop("from")
                read = READERS[named] if named in READERS else partial(table, file=named)
                found += [figure for figure in read(sources, self.rows, **options) if figure.text]
        return Entry(self, here, published, SENTENCES[self.said](here, published) if self.said else "")


@dataclass(frozen=True)
class Problem:
    """One problem of the assignment: what measures it, what to write, and what goes wrong."""

    name: str
    command: str
    write: str
    wrong: str


@dataclass(frozen=True)
class Entry:
    """A question with our figures, those of others, and a sentence that is made of them."""

    question: Question
    here: Sequence[Figure]
    published: Sequence[Figure]
    said: str = ""

    @cached_property
    def table(self) -> Table | None:
        """Lay out our columns first, some of them others' too where a label says whose a row is; None if empty."""
        if not (self.here or self.published):
            return None
        ours = distinct(figure.column for figure in self.here) or [HERE]
        theirs = [column for column in distinct(figure.column for figure in self.published) if column not in ours]
        texts: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for figure in (*self.here, *self.published):
            texts.setdefault(figure.row, {}).setdefault(figure.column, []).append(figure.text)
        rows = []
        for row, of in sorted(texts.items(), key=lambda item: tuple(map(_place, item[0]))):
            cells = [" / ".join(distinct(of.get(column, [DASH]))) for column in (*ours, *theirs)]
            if not of.keys() & set(ours):
                cells[0] = NOT_RECORDED  # said once in a row without any figure of ours
            rows.append((*row, *cells))
        header = (*self.question.rows, *ours, *theirs)
        return Table("figures", "", header, len(self.question.rows), tuple(rows), ())

    @property
    def brief_row(self) -> tuple[str, str, str] | None:
        """Return name, our figure and the published range of one row: the chosen one, else the first that both have.

        None without a figure of ours. The range, `31.8 to 35.0, 5 sources`, is over columns of the question's pattern,
        else in our column's unit; texts that are no numbers stand as they are, each once.
        """
        theirs = {figure.row for figure in self.published}
        fitting = [figure for figure in self.here if re.search(self.question.of, figure.column)]
        fitting.sort(key=lambda one: (one.row != tuple(self.question.at), one.row not in theirs))
        if not fitting:
            return None
        ours = fitting[0]
        unit = re.compile(r"\(\w+\)$")
        beside = {
            theirs.column.partition(",")[0]: theirs.text
            for theirs in self.published
            if theirs.row == ours.row
            if re.search(self.question.of, theirs.column)
            if self.question.of or unit.findall(theirs.column) == unit.findall(ours.column)
        }
        numbers = [float(found[0]) for text in beside.values() if (found := re.match(r"\d+(\.\d+)?", text))]
        ends = [significant(one, 4) for one in (min(numbers), max(numbers))] if numbers else beside.values()
        counted = f"{len(beside)} source{'s' * (len(beside) > 1)}"
        said = re.sub(r"^here[:,]? *| *\(\w+\)$", "", ours.column).strip()
        named = f"{self.question.brief} ({', '.join(filter(None, [*ours.row, said]))})"
        return named, ours.text, f"{' to '.join(distinct(ends))}, {counted}" if beside else DASH

    @property
    def files(self) -> list[str]:
        """List the files that the figures come from, each once."""
        named = (figure.file for figure in (*self.here, *self.published) if figure.file)
        return distinct(file for files in named for file in files.split(", "))


def _place(label: str) -> tuple[int, float, str]:
    """Sizes by size, numbers by value, and words in the order of their first row."""
    if label in SIZES:
        return 0, SIZES.index(label), ""
    try:
        return 1, float(label.partition(" ")[0]), label
    except ValueError:
        return 2, 0.0, ""


@cache
def _asked() -> dict[str, Any]:
    return tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))


@cache
def questions() -> tuple[Question, ...]:
    """Return every question in the order of the full page."""
    return tuple(
        Question(**{"section": section["title"], "problem": section["problem"], **asked, "rows": tuple(asked["rows"])})
        for section in _asked()["section"]
        for asked in section["question"]
    )


def problems() -> list[Problem]:
    """Return the assignment's problems in its order."""
    return [Problem(**one) for one in _asked()["problem"]]


def entries(sources: Sources) -> list[Entry]:
    return [question.entry(sources) for question in questions()]


def as_data(sources: Sources) -> list[Json]:
    return [
        {
            "section": entry.question.section, "problem": entry.question.problem, "question": entry.question.asked,
            "command": entry.question.command,
            "labels": entry.question.rows, "here": [asdict(figure) for figure in entry.here],
            "published": [asdict(figure) for figure in entry.published], "said": entry.said,
            "why": entry.question.why, "files": entry.files,
        }
        for entry in entries(sources)
    ]  # fmt: skip


def markdown_page(sources: Sources) -> str:
    """Return every table of every question."""
    found = entries(sources)
    ours, known = sum(bool(entry.here) for entry in found), sum(entry.table is not None for entry in found)
    introduction = (
        f"The questions of the course assignment (Stanford CS336, assignment 2) and of five public write-ups: "
        f"{known} of {len(found)} are answered, {ours} with figures of this suite.",
        "Written by perf-tests writeup from the files that each answer names. Figures headed here are those "
        "of the records below, exact counters of an imaginary GPU, closed forms, or computed for this page; figures of "
        "others are as their sources print them, GB and GiB included. The command above a table measures its cases.",
    )
    whose = [*(("here", *line.partition(": ")[::2]) for line in sources.machines), *write_ups(sources)]
    lines = [f"# {TITLE}\n", *(f"{wrapped(line)}\n" for line in introduction)]
    lines.append("\n".join(pipe_table(("Figures", "Source", "Machine"), whose, 3)) + "\n")
    for title, of in groupby(found, lambda entry: entry.question.section):
        lines.append(f"## {title}\n")
        for entry in of:
            lines += [f"### {entry.question.asked}\n", f"    {entry.question.command}\n"]
            table = entry.table
            lines += pipe_table(table.header, table.rows, table.label_columns) if table else [UNKNOWN]
            lines.append("")
            origin = f"From {', '.join(entry.files)}." if entry.files else ""
            lines += [f"{wrapped(note)}\n" for note in (entry.said, entry.question.why, origin) if note]
    return "\n".join(lines)


def short_page(sources: Sources) -> str:
    """Return a page with one entry for each problem: its command, one row a question that has a figure, two notes."""
    rows = {
        problem: [
            row
            for question in questions()
            if question.brief and question.problem == problem.name and (row := question.entry(sources).brief_row)
        ]
        for problem in problems()
    }
    records = grouped((line.split(": ", 1) for line in reversed(sources.machines)), itemgetter(1))
    machines = "\n".join(
        fill(
            f"* {in_markdown(name)}: {', '.join(f'`{file}`' for file, _ in of)}", 120,
            subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
        )
        for name, of in records.items()
    )  # fmt: skip
    lines = [_asked()["head"].format(answered=sum(map(bool, rows.values())), of=len(rows), machines=machines)]
    for number, (problem, found) in enumerate(rows.items(), 1):
        lines += [f"## {number}. {problem.name}\n", f"    {problem.command}\n"]
        lines += [*pipe_table(("figure", "here", "published"), found, 1), ""] if found else []
        notes = f"*Write.* {problem.write}", f"*Goes wrong.* {problem.wrong}"
        lines += [f"{fill(note, 120, break_long_words=False, break_on_hyphens=False)}\n" for note in notes]
    return "\n".join(lines)


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
