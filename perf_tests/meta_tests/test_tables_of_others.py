"""A table that cannot be read is refused with one sentence that says where and why."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import Timing
from perf_tests.audit.files import audit_file
from perf_tests.audit.tables_of_others import read_table
from perf_tests.meta_tests.foreign_tables import Row, model_row, written
from perf_tests.proofs.synthetic import attention_identity, record, timed
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
    ],
)
def test_a_value_that_is_no_figure_is_named(changes: Row, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, [{**model_row(), **changes}]))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    row = model_row()
    del row["batch"], row["gpu"]
    assert "lacks the columns gpu, batch" in refusal(written(tmp_path, [row]))


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a,b\n1,2\n", "lacks the columns"),
        (b"\xff\xfe\x00", "cannot be read as a CSV"),
        (b'd_ff,"' + b"x" * 200_000, "cannot be read as a CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert said in refusal(path)


def test_a_head_without_rows_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [model_row()])
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert "has a header but no rows" in refusal(path)


def test_a_line_with_too_few_values_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [model_row()])
    path.write_text(path.read_text() + "only,three,values\n")
    assert "line 3 has 3 values, the header has 18 columns" in refusal(path)


@pytest.mark.parametrize(
    "content, said",
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "is no pytest-benchmark file"),
        ('{"benchmarks": []}', "holds no benchmark"),
        ('{"benchmarks": [{"name": "x"}]}', "has no timing"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_json_that_is_no_benchmark_file_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        audit_file(path)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    assert "cannot be read as a CSV" in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["attention", "timing"])
def test_a_table_of_our_own_tells_its_implementations_apart(kind: str, tmp_path: Path) -> None:
    """By the columns that others lack: a pass that fuses is no second measurement of the one that compiles."""
    rows = []
    for name in ("naive", "compiled", "sdpa"):
        row = timed(f"a_test[{name}]", attention=name)
        alone = {**row, "extra_info": attention_identity(attention=name)}
        rows.append(alone if kind == "attention" else row)
    path = tmp_path / "ours.csv"
    path.write_text(as_csv(flat_figures(record(rows), "ours")[kind], COLUMNS[kind]))
    figures = [figure for figure in read_table(path)[1] if isinstance(figure, Timing)]
    assert [figure.implementation for figure in figures] == ["eager", "compiled", "sdpa eager"]


@pytest.mark.parametrize("compiled, implementation", [("no", "eager"), ("yes", "compiled"), ("fused", "compiled")])
def test_a_table_of_others_says_only_whether_it_compiled(compiled: str, implementation: str, tmp_path: Path) -> None:
    _, (figure,) = read_table(written(tmp_path, [model_row(compiled=compiled)]))
    assert isinstance(figure, Timing)
    assert figure.implementation == implementation
