"""A table as data, and as Markdown, LaTeX or Typst. A cell's content stays text in all of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf_tests.records.record import Json
from perf_tests.views.screens.lines import Columns, printable
from perf_tests.views.tables.cells import LABELS, Cell, labels_of, lost_row


@dataclass(frozen=True)
class Table:
    """The first `label_columns` say what a row is, the others hold figures."""

    name: str
    title: str
    header: tuple[str, ...]
    label_columns: int
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


PassRow = tuple[Cell, Json]
"""A case, and what a pass found of it."""


def pass_table(
    name: str, title: str, columns: Columns[Json], rows: Sequence[PassRow], notes: Sequence[str], words: int = 0
) -> Table | None:
    """Rows of an extra pass, each case's labels first; the first `words` columns are labels too. None without rows."""
    if not rows:
        return None
    header = (*LABELS, *columns)
    texts = tuple(
        lost_row(cell, len(header))
        if cell.outcome
        else (*labels_of(cell), *(text(values) for text in columns.values()))
        for cell, values in rows
    )
    return Table(name, title, header, len(LABELS) + words, texts, tuple(notes))


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, the title above and the conditions below."""
    lines: list[str] = []
    for table in tables:
        lines += [f"**{in_markdown(table.title)}**", "", *pipe_table(table.header, table.rows, table.label_columns)]
        lines += ["", *(f"- {in_markdown(note)}" for note in table.notes), ""]
    return "\n".join(lines)


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]], label_columns: int = 1) -> list[str]:
    """Lines of a Markdown table, labels to the left and figures to the right."""
    rule = [":---"] * label_columns + ["---:"] * (len(header) - label_columns)
    cells = [list(map(in_markdown, header)), rule, *(map(in_markdown, row) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def in_markdown(text: str) -> str:
    """Text on one line, with every character of markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>&|~$#!@])", r"\\\1", _one_line(text))


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip


def latex(tables: Sequence[Table]) -> str:
    r"""`table` environments for `\usepackage{booktabs}`, the conditions in a comment line above and in the caption."""
    return "\n".join([r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}", *map(_latex, tables)])


def _latex(table: Table) -> str:
    columns = "l" * table.label_columns + "r" * (len(table.header) - table.label_columns)
    caption = f"{_in_latex(table.title)}. {'; '.join(_in_latex(note) for note in table.notes)}."
    rows = "\n".join(map(_latex_row, table.rows))
    return rf"""\begin{{table}}
\centering
\caption{{{caption}}}
\label{{tab:{table.name.replace("_", "-")}}}
\begin{{tabular}}{{{columns}}}
\toprule
{_latex_row(table.header)}
\midrule
{rows}
\bottomrule
\end{{tabular}}
\end{{table}}
"""


def _latex_row(cells: Sequence[str]) -> str:
    # An empty group first: a row that began with a bracket would be read as an argument of the line break before it.
    return "{}" + " & ".join(map(_in_latex, cells)) + r" \\"


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in _one_line(text))


def typst(tables: Sequence[Table]) -> str:
    """Figures with a table each; every text is a string literal, in which Typst reads no markup."""
    return "\n".join(map(_typst, tables))


def _typst(table: Table) -> str:
    alignment = ", ".join("left" if i < table.label_columns else "right" for i in range(len(table.header)))
    rows = "\n".join(f"    {', '.join(map(_in_typst, row))}," for row in table.rows)
    return f"""#figure(
  table(
    columns: {len(table.header)},
    align: ({alignment},),
    table.header({", ".join(map(_in_typst, table.header))}),
{rows}
  ),
  caption: text({_in_typst(f"{table.title}. {'; '.join(table.notes)}.")}),
) <tab-{table.name.replace("_", "-")}>
"""


def _in_typst(text: str) -> str:
    return '"' + _one_line(text).replace("\\", r"\\").replace('"', r"\"") + '"'


def _one_line(text: str) -> str:
    """Line breaks and other control characters, lone surrogates among them, as spaces."""
    return " ".join(printable(text).split())
