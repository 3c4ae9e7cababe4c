"""One question of the write-up: its command, our figures, the published ones beside them, and one sentence why."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perf_tests.records.format import DASH, Table, distinct
from perf_tests.report.cs336_parts.sources import SIZES, Sources

NOT_RECORDED = "not recorded"
HERE = "here"


@dataclass(frozen=True)
class Figure:
    """A text in a row, named by its labels, and a column."""

    row: tuple[str, ...]
    column: str
    text: str
    file: str = ""
    """Where it comes from; several files with commas between them."""


Labels = Sequence[str]
"""What the labels of a row are, such as `Size`."""
Figures = Callable[[Sources, Labels], Iterable[Figure]]
"""Where the figures of rows with those labels come from; one without a text is none."""


@dataclass(frozen=True)
class Answer:
    """Figures of this suite and of others; without any of ours, the page says that they are not recorded."""

    labels: tuple[str, ...]
    """The names of a row's labels."""
    here: Sequence[Figure] = ()
    published: Sequence[Figure] = ()
    said: str = ""
    """A sentence made of the figures."""

    @property
    def is_known(self) -> bool:
        return bool(self.here or self.published)

    @property
    def files(self) -> list[str]:
        """Where the figures come from, each file once."""
        named = (figure.file for figure in (*self.here, *self.published) if figure.file)
        return distinct(file for files in named for file in files.split(", "))


@dataclass(frozen=True)
class Question:
    """A row of its section."""

    asked: str
    command: str
    """Measures the cases of the answer and no others."""
    why: str
    labels: tuple[str, ...]
    here: Sequence[Figures]
    published: Sequence[Figures] = ()
    said: Callable[[Sequence[Figure], Sequence[Figure]], str] | None = None
    """Makes a sentence of our figures and the published ones."""

    def answer(self, sources: Sources) -> Answer:
        here, published = (
            [figure for figures in of for figure in figures(sources, self.labels) if figure.text]
            for of in (self.here, self.published)
        )
        return Answer(self.labels, here, published, self.said(here, published) if self.said else "")


def table_of(answer: Answer) -> Table | None:
    """Our columns first, some of them others' too where a label says whose a row is; None without any figure."""
    if not answer.is_known:
        return None
    ours = distinct(figure.column for figure in answer.here) or [HERE]
    theirs = [column for column in distinct(figure.column for figure in answer.published) if column not in ours]
    texts: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for figure in (*answer.here, *answer.published):
        texts.setdefault(figure.row, {}).setdefault(figure.column, []).append(figure.text)
    rows = [
        (*row, *_ours(of, ours), *(" / ".join(distinct(of.get(column, [DASH]))) for column in theirs))
        for row, of in sorted(texts.items(), key=lambda item: tuple(map(_place, item[0])))
    ]
    return Table("figures", "", (*answer.labels, *ours, *theirs), len(answer.labels), tuple(rows), ())


def _ours(texts: dict[str, list[str]], columns: Sequence[str]) -> list[str]:
    """A row without any figure of ours says so once."""
    if not texts.keys() & set(columns):
        return [NOT_RECORDED, *[DASH] * (len(columns) - 1)]
    return [" / ".join(distinct(texts.get(column, [DASH]))) for column in columns]


def _place(label: str) -> tuple[int, float, str]:
    """Sizes by size, numbers by value, and words in the order of their first row."""
    if label in SIZES:
        return 0, SIZES.index(label), ""
    try:
        return 1, float(label.partition(" ")[0]), label
    except ValueError:
        return 2, 0.0, ""
