"""One question of the write-up: its command, our figures, the published ones beside them, and one sentence why."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.cells import distinct
from perf_tests.views.tables.table import Table
from perf_tests.views.writeup.sources import SIZES, Sources

NOT_RECORDED = "not recorded"
HERE = "here"


@dataclass(frozen=True)
class Figure:
    """A text in a row, named by its labels, and a column."""

    row: tuple[str, ...]
    column: str
    text: str


@dataclass(frozen=True)
class Answer:
    """Figures of this suite and of others; without any of ours, the page says that they are not recorded."""

    labels: tuple[str, ...]
    """The names of a row's labels."""
    here: Sequence[Figure] = ()
    published: Sequence[Figure] = ()
    files: Sequence[str] = ()
    """Where the figures come from."""
    said: str = ""
    """A sentence made of the figures."""

    @property
    def is_known(self) -> bool:
        return bool(self.here or self.published)


@dataclass(frozen=True)
class Question:
    asked: str
    command: str
    """Measures the cases of the answer and no others."""
    why: str
    answer: Callable[[Sources], Answer]


def question(asked: str, command: str, why: str) -> Callable[[Callable[[Sources], Answer]], Question]:
    """Decorates the function that answers it."""
    return partial(Question, asked, command, why)


def files_of(found: Iterable[str]) -> list[str]:
    """Each file once, in order."""
    return distinct(name for name in found if name)


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
