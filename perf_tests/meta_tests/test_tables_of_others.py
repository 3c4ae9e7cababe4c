"""A table that cannot be read is refused with one sentence that says where and why."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests.audit.figures import Timing
from perf_tests.audit.files import audit_file
from perf_tests.audit.tables_of_others import read_table
from perf_tests.meta_tests.foreign_tables import Row, model_row, written
from perf_tests.proofs.synthetic import record, timed, timed_attention
from perf_tests.records.record import Json
from perf_tests.views.tables.flat_figures import COLUMNS, as_csv, flat_figures


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        audit_file(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"mean_ms": "35 ms"}, "line 2: mean_ms is '35 ms', not a number; write the number without a unit"),
        ({"mean_ms": "nan"}, "must be finite"),
        ({"mean_ms": "1e400"}, "must be finite"),
        ({"mean_ms": "9" * 5000}, "must be finite"),
        ({"batch": "2.5"}, "line 2: batch is 2.5; it must be a whole number"),
        ({"context": "-128"}, "context is -128"),
        ({"warmup": "a few"}, "line 2: warmup is 'a few', not a number"),
        ({"std_us": "1 us"}, "line 2: std_us is '1 us', not a number"),
    ],
)
def test_a_value_that_is_no_figure_is_named(changes: Row, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, [{**model_row(), **changes}]))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    row = model_row()
    del row["batch"], row["gpu"]
    assert "lacks the columns gpu, batch" in refusal(written(tmp_path, [row]))


HEAD = ",".join(model_row())


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("table.csv", "", "is empty"),
        ("table.csv", "\n", "is empty"),
        ("table.csv", "a,b\n1,2\n", "lacks the columns"),
        ("table.csv", "\xff\xfe\x00", "cannot be read as a CSV"),
        ("table.csv", 'd_ff,"' + "x" * 200_000, "cannot be read as a CSV"),
        ("table.csv", f"{HEAD}\n", "has a header but no rows"),
        ("table.csv", f"\xef\xbb\xbf{HEAD}\n", "has a header but no rows"),
        ("table.csv", f"{HEAD}\n".replace(",", ";"), "separates its columns by semicolons; write commas"),
        ("table.csv", f"{HEAD}\nonly,three,values\n", "line 2 has 3 values, the header has 18 columns"),
        ("run.json", "{", "cannot be read as JSON"),
        ("run.json", "[1]", "is no pytest-benchmark file"),
        ("run.json", '{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '\xef\xbb\xbf{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '{"benchmarks": [{"name": "x"}]}', "Benchmark x has no timing"),
        ("run.json", "[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_table_and_no_run_is_refused(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="latin-1")
    assert said in refusal(tmp_path / name)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    assert "cannot be read as a CSV" in refusal(tmp_path)


@pytest.mark.parametrize("kind, make", [("attention", timed_attention), ("timing", timed)])
def test_our_own_table_tells_its_implementations_apart(kind: str, make: Callable[..., Json], tmp_path: Path) -> None:
    """By the columns that others lack: a pass that fuses is no second measurement of the one that compiles."""
    rows = [make(attention=name) for name in ("naive", "compiled", "sdpa")]
    path = tmp_path / "ours.csv"
    path.write_text(as_csv(flat_figures(record(rows), "ours")[kind], COLUMNS[kind]))
    figures = [figure for figure in read_table(path)[1] if isinstance(figure, Timing)]
    assert [figure.implementation for figure in figures] == ["eager", "compiled", "sdpa eager"]


@pytest.mark.parametrize("compiled, implementation", [("no", "eager"), ("yes", "compiled"), ("fused", "compiled")])
def test_a_table_of_others_says_only_whether_it_compiled(compiled: str, implementation: str, tmp_path: Path) -> None:
    _, (figure,) = read_table(written(tmp_path, [model_row(compiled=compiled)]))
    assert isinstance(figure, Timing)
    assert figure.implementation == implementation
