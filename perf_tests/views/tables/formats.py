"""A table as Markdown, LaTeX or Typst. Whatever a cell holds stays text in each of them."""

import re
from collections.abc import Iterable, Sequence

from perf_tests.views.tables.timing import Table


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, the title above and the conditions below."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    columns = len(table.header)
    rule = [":---" if column < table.label_columns else "---:" for column in range(columns)]
    lines = [f"**{_in_markdown(table.title)}**", "", _piped(map(_in_markdown, table.header)), _piped(rule)]
    lines += [_piped(map(_in_markdown, row)) for row in table.rows]
    return "\n".join([*lines, "", *(f"- {_in_markdown(note)}" for note in table.notes), ""])


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>&|~$#!])", r"\\\1", _one_line(text))


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip
"""What LaTeX would not print as it is written."""


def latex(tables: Sequence[Table]) -> str:
    r"""`table` environments for `\usepackage{booktabs}`, the conditions in a comment line above and in the caption."""
    return "\n".join([r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}", *map(_latex, tables)])


def _latex(table: Table) -> str:
    columns = "l" * table.label_columns + "r" * (len(table.header) - table.label_columns)
    caption = f"{_in_latex(table.title)}. {'; '.join(_in_latex(note) for note in table.notes)}."
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.name.replace('_', '-')}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.header),
            r"\midrule",
            *map(_latex_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


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
    caption = f"{table.title}. {'; '.join(table.notes)}."
    return "\n".join(
        [
            "#figure(",
            "  table(",
            f"    columns: {len(table.header)},",
            f"    align: ({alignment},),",
            f"    table.header({', '.join(map(_in_typst, table.header))}),",
            *(f"    {', '.join(map(_in_typst, row))}," for row in table.rows),
            "  ),",
            f"  caption: text({_in_typst(caption)}),",
            f") <tab-{table.name.replace('_', '-')}>",
            "",
        ]
    )


def _in_typst(text: str) -> str:
    return '"' + _one_line(text).replace("\\", r"\\").replace('"', r"\"") + '"'


def _one_line(text: str) -> str:
    """Line breaks and other control characters, lone surrogates among them, as spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
