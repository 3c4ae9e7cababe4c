"""The columns that the page of tables lists are those there are."""

from perf_tests.records.columns import COLUMNS, SPEEDUP, Column
from tests.support.documents import page

KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def column_table() -> list[str]:
    """The table of the page; print it to write it again."""
    rows = ["| column | kind | what it holds |", "|---|---|---|"]
    return rows + [_line(column) for column in (*COLUMNS.values(), SPEEDUP)]


def _line(column: Column) -> str:
    return f"| `{column.name}` | {KINDS[column.kind]} | {column.meaning} |"


def test_the_page_lists_each_column_with_its_kind_and_no_other() -> None:
    listed = page("tables").partition("<!-- columns:")[2].partition("<!-- end of columns")[0]
    assert [line for line in listed.splitlines() if line.startswith("| ")] == [
        line for line in column_table() if line.startswith("| ")
    ]
