"""A table that cannot be read is refused with one sentence that says where and why."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.audit.figures import IMPOSSIBLE, TILED, Kernel, Memory, Timing
from perf_tests.audit.tables import audit_file, read_table
from perf_tests.hardware.limits import AttentionWork
from perf_tests.records.published import flat_figures
from perf_tests.records.record import Json
from perf_tests.verbs.tables import exported
from tests.support.foreign_tables import Row, model_row, written
from tests.support.synthetic import record, timed, timed_attention


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        audit_file(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"mean_ms": "35 parsecs"}, "mean_ms has no known unit of time: 'parsecs'"),
        ({"mean_ms": "fast"}, "mean_ms is not a number: 'fast'"),
        ({"mean_ms": "nan"}, "mean_ms is not finite and below 1e+15: 'nan'"),
        ({"mean_ms": "1e400"}, "mean_ms is not finite"),
        ({"mean_ms": "9" * 5000}, "mean_ms is not finite"),
        ({"batch": "2.5"}, "batch is not a whole number of 0 or more: 2.5"),
        ({"context": "-128"}, "context is not a whole number of 0 or more: -128"),
    ],
)
def test_a_row_that_cannot_be_read_is_unjudged_and_counted(changes: Row, reason: str, tmp_path: Path) -> None:
    audit = audit_file(written(tmp_path, [{**model_row(), **changes}, model_row(mean_ms="90")]))
    assert (audit.counts()["not judged"], audit.counts()["impossible"]) == (1, 1)
    assert audit.not_judged[0].place == "line 2"
    assert audit.not_judged[0].sentence().startswith(reason)


def test_unreadable_rows_are_shown_with_the_first_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [model_row(mean_ms=text) for text in ("280", "fast", "slow")]
    assert main(["audit", str(written(tmp_path, rows))]) == 0
    assert "not judged: 2: mean_ms is not a number (first line 3: 'fast')" in capsys.readouterr().out


def test_a_line_of_another_length_spoils_no_other(tmp_path: Path) -> None:
    path = written(tmp_path, [model_row(), model_row(mean_ms="90")])
    path.write_text(path.read_text().replace("\n", "\nonly,three,values\n", 1))
    audit = audit_file(path)
    assert audit.reasons() == {"the line has another number of values than the header": 1}
    assert audit.findings_of(IMPOSSIBLE)[0].places == ("line 4",)


@pytest.mark.parametrize(
    "time, seconds, deviation",
    [
        ({"mean_ms": "35 ms"}, 0.035, None),
        ({"mean_ms": "0.035s"}, 0.035, None),
        ({"mean_ms": "1,234.5"}, 1.2345, None),
        ({"mean_ms": "34.2 ± 3.4"}, 0.0342, 0.0034),
        ({"mean_ms": "34.2 +- 3.4"}, 0.0342, 0.0034),
        ({"ms": "35"}, 0.035, None),
        ({"time_s": "0.035", "stddev_s": "0.001"}, 0.035, 0.001),
        ({"Mean (µs)": "35000", "Std (µs)": "10"}, 0.035, 1e-5),
        ({"latency": "35", "unit": "ms"}, 0.035, None),
        ({"median_ms": "35"}, 0.035, None),
    ],
)
def test_times_are_read_under_the_names_and_units_in_use(
    time: Row, seconds: float, deviation: float | None, tmp_path: Path
) -> None:
    row = {name: text for name, text in model_row().items() if name not in ("mean_ms", "std_ms")}
    _, (figure,) = read_table(written(tmp_path, [{**row, **time}]))
    assert isinstance(figure, Timing)
    assert figure.seconds == pytest.approx(seconds)
    assert figure.std_seconds == (None if deviation is None else pytest.approx(deviation))


def test_columns_are_read_under_the_names_in_use(tmp_path: Path) -> None:
    row = {"repo": "a", "device": "A100-80GB", "impl": "triton_fa2", "dtype": "torch.float32", "batch_size": "1",
           "heads": "1", "seq_len": "16384", "d": "64", "direction": "fwd", "ms": "3"}  # fmt: skip
    kind, (figure,) = read_table(written(tmp_path, [row]))
    assert isinstance(figure, Timing)
    assert (kind, figure.phase, figure.precision) == ("attention timing", "attention_forward", "fp32")
    assert figure.work == AttentionWork(1, 16384, 64)
    assert figure.attention == TILED


def test_a_model_whose_vocabulary_is_not_stated_is_judged_by_its_blocks(tmp_path: Path) -> None:
    row = model_row(mean_ms="1")
    del row["vocab"]
    audit = audit_file(written(tmp_path, [row]))
    assert (audit.counts()["impossible"], audit.counts()["not judged"]) == (1, 0)


def test_heads_count_as_sequences(tmp_path: Path) -> None:
    row = {"heads": "16", "batch": "2", "seq_len": "4096", "phase": "forward", "ms": "3"}
    for name, width in (("head_dim", "64"), ("d_model", "1024")):
        _, (figure,) = read_table(written(tmp_path, [{**row, name: width}]))
        assert isinstance(figure, Timing)
        assert figure.work == AttentionWork(32, 4096, 64)


@pytest.mark.parametrize(
    "columns, least, most",
    [
        ({"value": "3", "unit": "bytes"}, 3, 3),
        ({"value": "3", "unit": "MiB (written MB)"}, 3 * 2**20, 3 * 2**20),
        ({"value": "3", "unit": "GB (1e9)"}, 3e9, 3e9),
        ({"value": "3", "unit": "GB"}, 3e9, 3 * 2**30),
        ({"value": "3 GiB"}, 3 * 2**30, 3 * 2**30),
        ({"peak_bytes": "3"}, 3, 3),
        ({"Peak memory (MiB)": "3"}, 3 * 2**20, 3 * 2**20),
        ({"MiB (written MB)": "3"}, 3 * 2**20, 3 * 2**20),
        ({"GB (1e9)": "3"}, 3e9, 3e9),
    ],
)
def test_memory_is_read_in_the_units_in_use(columns: Row, least: float, most: float, tmp_path: Path) -> None:
    row = {"gpu": "A100-80GB", "object": "model", "d_model": "768", "n_layers": "12", "mode": "peak", **columns}
    _, (figure,) = read_table(written(tmp_path, [row]))
    assert isinstance(figure, Memory)
    assert (figure.value_bytes, figure.most_bytes) == (least, most)


def test_a_figure_without_a_source_is_named_by_its_labels_alone(tmp_path: Path) -> None:
    row = {"gpu": "A100-80GB", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "MiB": "3"}
    (finding,) = audit_file(written(tmp_path, [row])).findings
    assert finding.cell.startswith("2.7B length")


def test_an_unknown_unit_of_memory_is_one_row_unjudged(tmp_path: Path) -> None:
    row = {"gpu": "A100-80GB", "object": "model", "mode": "peak", "value": "90"}
    rows = [{**row, "unit": "GiB"}, {**row, "unit": "furlongs"}]
    assert audit_file(written(tmp_path, rows)).counts() == {
        "impossible": 1, "inconsistent": 0, "suspicious": 0, "notice": 0, "not judged": 1, "fine": 0,
    }  # fmt: skip


def test_a_table_of_nsys_stats_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text("Time (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,6000000,60,100000.0,ampere_sgemm\n")
    kind, (figure,) = read_table(path)
    assert isinstance(figure, Kernel)
    assert kind == "kernels"
    assert (figure.calls, figure.percent) == (60, 60)
    assert figure.total_seconds == pytest.approx(6e-3)
    assert figure.average_seconds == pytest.approx(1e-4)


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: text.replace(",", ";").replace("35.5", "35,5").encode(),
        lambda text: text.replace(",", "\t").encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
    ],
    ids=["semicolons and decimal commas", "tabs", "CRLF", "byte order mark", "UTF-16"],
)
def test_a_table_is_read_as_spreadsheets_write_it(encoded: Callable[[str], bytes], tmp_path: Path) -> None:
    path = written(tmp_path, [model_row(mean_ms="35.5", source="a")])
    path.write_bytes(encoded(path.read_text()))
    _, (figure,) = read_table(path)
    assert isinstance(figure, Timing)
    assert figure.seconds == pytest.approx(0.0355)


@pytest.mark.parametrize(
    ("text", "seconds", "rounding_seconds"),
    [("1,234.5", 1.2345, 5e-5), ("1.234,5", 1.2345, 5e-5), ("1,234,567", 1234.567, 5e-4), ("34,25", 0.03425, 5e-6)],
)
def test_of_two_signs_in_a_figure_the_last_one_begins_its_decimals(
    text: str, seconds: float, rounding_seconds: float, tmp_path: Path
) -> None:
    """In tables with tabs or semicolons, in which a comma may stand for either."""
    path = written(tmp_path, [model_row(mean_ms="35.5", source="a")])
    path.write_text(path.read_text().replace(",", "\t").replace("35.5", text))
    _, (figure,) = read_table(path)
    assert isinstance(figure, Timing)
    assert figure.seconds == pytest.approx(seconds)
    assert figure.rounding_seconds == pytest.approx(rounding_seconds)


@pytest.mark.parametrize(("separator", "seconds"), [("\t", None), (";", 0.001234)])
def test_a_comma_between_tabs_that_may_be_either_sign_leaves_its_figure_unjudged(
    separator: str, seconds: float | None, tmp_path: Path
) -> None:
    """1.234 ms would be impossible, and 1234 ms would not."""
    path = written(tmp_path, [model_row(mean_ms=ms, source="a") for ms in ("35.5", "36.5")])
    path.write_text(path.read_text().replace(",", separator).replace("35.5", "1,234"))
    figure, _ = read_table(path)[1]
    assert (figure.seconds if isinstance(figure, Timing) else None) == seconds
    said = "a comma before three digits may begin decimals or separate thousands"
    assert audit_file(path).reasons() == ({} if seconds else {said: 1})


@pytest.mark.parametrize("phase", ["Forward", "BACKWARD", "forward-backward", "Full step"])
def test_a_phase_is_known_however_it_is_spelt(phase: str, tmp_path: Path) -> None:
    audit = audit_file(written(tmp_path, [{**model_row(), "phase": phase, "mean_ms": "0.001"}]))
    assert audit.findings_of(IMPOSSIBLE), audit.reasons()


def test_missing_columns_are_named(tmp_path: Path) -> None:
    row = model_row()
    del row["mean_ms"], row["phase"]
    assert "lacks the columns phase, mean_ms or another time" in refusal(written(tmp_path, [row]))


def test_times_without_a_shape_are_refused_with_the_columns_of_both_shapes(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, [{"size": "small", "phase": "forward", "mean_ms": "12"}]))
    assert "lacks the columns d_model, d_ff, n_layers, read as a table of model timing; or seq_len, d_model, " in said


HEAD = ",".join(model_row())


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("table.csv", "", "is empty"),
        ("table.csv", "\n", "is empty"),
        ("table.csv", "size|gpu\nsmall|T4\n", "'size|gpu'; separate columns by commas, semicolons or tabs"),
        ("table.csv", "a,b\n1,2\n", "lacks the columns"),
        ("table.csv", "\xff\xfe\x00", "cannot be read as a CSV"),
        ("table.csv", 'd_ff,"' + "x" * 200_000, "cannot be read as a CSV"),
        ("table.csv", f"{HEAD}\n", "has a header but no rows"),
        ("table.csv", f"\xef\xbb\xbf{HEAD}\n", "has a header but no rows"),
        (
            "table.csv",
            f"{HEAD}\nonly,three,values\n",
            "no row can be read. line 2: the line has another number of values",
        ),
        (
            "table.csv",
            f"{HEAD}\n{HEAD.replace(',', ';')}\n",
            "no row can be read. line 2: the line is separated by semicolons and the header is not",
        ),
        ("run.json", "{", "cannot be read as JSON"),
        ("run.json", "[1]", "is no pytest-benchmark file"),
        ("run.json", '{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '\xef\xbb\xbf{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '{"benchmarks": [{"name": "x"}]}', "Benchmark x has no timing"),
        ("run.json", '{"benchmarks": [{"name": "x", "stats": {"data": 0.5}}]}', "Benchmark x has no timing"),
        ("run.json", f'{{"benchmarks": [{{"name": "x", "stats": {{"data": [{10**400}]}}}}]}}', "x has no timing"),
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
    path.write_bytes(exported(flat_figures(record(rows), "ours")[kind], "csv"))
    figures = [figure for figure in read_table(path)[1] if isinstance(figure, Timing)]
    assert [figure.implementation for figure in figures] == ["eager", "compiled", "sdpa eager"]


@pytest.mark.parametrize("compiled, implementation", [("no", "eager"), ("yes", "compiled"), ("fused", "fused")])
def test_a_table_of_others_says_only_whether_it_compiled(compiled: str, implementation: str, tmp_path: Path) -> None:
    _, (figure,) = read_table(written(tmp_path, [model_row(compiled=compiled)]))
    assert isinstance(figure, Timing)
    assert figure.implementation == implementation
