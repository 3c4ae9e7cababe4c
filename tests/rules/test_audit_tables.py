"""Tables of others are read under the names, units and signs in use, line by line; what is no table is refused."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests.audit.figures import IMPOSSIBLE, TILED, Kernel, Memory, Timing
from perf_tests.audit.rows import bytes_in, half_digit, number_in, seconds_in
from perf_tests.audit.tables import audit_file, audits_of, read_table
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.hardware.limits import AttentionWork
from perf_tests.records.published import flat_figures
from perf_tests.records.record import Json
from perf_tests.verbs.tables import exported
from tests.support.audited_tables import Row, attention_row, audited, model_row, model_table, rules, without, written
from tests.support.synthetic import record, timed, timed_attention

TOO_FAST = model_row(mean_ms="90")


def read(*rows: Row, folder: Path) -> list[Timing]:
    return [figure for figure in read_table(written(folder, rows))[1] if isinstance(figure, Timing)]


@given(st.decimals(0, 10**9, places=3), st.sampled_from([",", ";", "\t"]), st.sampled_from(["ms", "GiB", "", "%"]))
def test_a_figure_is_read_as_it_was_written(value: object, separator: str, unit: str) -> None:
    plain = f"{value:f}"
    comma = plain.replace(".", ",")
    assert number_in(f"{plain} {unit}", "x", separator) == (float(plain), None, unit)
    assert number_in(f"{plain}±{plain}{unit}", "x", separator) == (float(plain), float(plain), unit)
    if separator == ",":
        assert number_in(f"{float(plain):,.3f}", "x", separator) == (float(plain), None, "")
    if separator == ";":
        assert number_in(comma, "x", separator) == (float(plain), None, "")
    assert half_digit(plain, separator) == pytest.approx(5e-4)


UNITS = {
    "s": 1.0, "Seconds": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "parsecs": None, "": None,
}  # fmt: skip
AMOUNTS = {
    "bytes": (1, 1), "B": (1, 1), "KiB": (2**10, 2**10), "MiB (written MB)": (2**20, 2**20), "GB": (1e9, 2**30),
    "GB (1e9)": (1e9, 1e9), "gb (decimal)": (1e9, 1e9), "TB": (1e12, 2**40), "furlongs": None, "bits": None,
}  # fmt: skip


def test_units_are_read_and_one_that_may_be_either_is_both() -> None:
    assert {word: seconds_in(word) for word in UNITS} == {
        word: seconds and (seconds, seconds) for word, seconds in UNITS.items()
    }
    assert {word: bytes_in(word) for word in AMOUNTS} == AMOUNTS


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
        ({"mean_ms": "3-5"}, "no figure"),
        ({"mean_ms": "OOM"}, "no figure"),
    ],
)
def test_a_row_that_cannot_be_read_is_unjudged_and_counted(changes: Row, reason: str) -> None:
    audit = audited({**model_row(), **changes}, TOO_FAST)
    assert (audit.counts()["not judged"], audit.counts()["impossible"]) == (1, 1)
    assert audit.not_judged[0].place == "line 2"
    assert audit.not_judged[0].sentence().startswith(reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("only,three,values", "the line has another number of values than the header"),
        ('"quoted" badly,1', "the line is no CSV"),
    ],
)
def test_a_damaged_line_spoils_no_other(line: str, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, [model_row(), TOO_FAST])
    path.write_text(path.read_text().replace("\n", f"\n{line}\n", 1))
    audit = audit_file(path)
    assert audit.reasons() == {reason: 1}
    assert audit.findings_of(IMPOSSIBLE)[0].places == ("line 4",)


@pytest.mark.parametrize(
    "time, seconds, deviation",
    [
        ({"mean_ms": "0.035s"}, 0.035, None),
        ({"mean_ms": "34.2 +- 3.4"}, 0.0342, 0.0034),
        ({"mean_ms": "34.2 ± 3.4", "std_ms": "2"}, 0.0342, 0.002),
        ({"ms": "35"}, 0.035, None),
        ({"time_s": "0.035", "stddev_s": "0.001"}, 0.035, 0.001),
        ({"Mean (µs)": "35000", "Std (µs)": "10"}, 0.035, 1e-5),
        ({"latency": "35", "unit": "ms"}, 0.035, None),
        ({"mean_ms": "35", "unit": "s"}, 0.035, None),
        ({"median_ms": "35", "std_ms": "much"}, 0.035, None),
    ],
)
def test_times_are_read_under_the_names_and_units_in_use(
    time: Row, seconds: float, deviation: float | None, tmp_path: Path
) -> None:
    (figure,) = read(without(model_row(), "mean_ms", "std_ms") | time, folder=tmp_path)
    assert figure.seconds == pytest.approx(seconds)
    assert figure.std_seconds == (None if deviation is None else pytest.approx(deviation))


ONE_NAME_EACH = {
    "repo": "a", "device": "A100-80GB", "impl": "triton_fa2", "dtype": "torch.float32", "batch_size": "1", "heads": "1",
    "seq_len": "16384", "d": "64", "direction": "fwd", "ms": "3", "iterations": "7",
}  # fmt: skip


def test_columns_are_read_under_the_names_in_use(tmp_path: Path) -> None:
    (figure,) = read(ONE_NAME_EACH, folder=tmp_path)
    assert (figure.phase, figure.precision, figure.attention) == ("attention_forward", "fp32", TILED)
    assert (figure.work, figure.series, figure.gpu, figure.rounds) == (AttentionWork(1, 16384, 64), "a", "A100-80GB", 7)


@pytest.mark.parametrize(
    "labels",
    [
        {"B": "8", "N": "16384", "d": "128"},
        {"BATCH": "2", "H": "4", "N_CTX": "16384", "HEAD_DIM": "128"},
        {"batch": "8", "seq_len": "16k", "head_dim": "128"},
        {"batch": "8", "seqlen": "16,384", "headdim": "128"},
        {"batch": "2", "heads": "4", "seq_len": "16384", "d_model": "512"},
    ],
)
def test_attention_is_read_under_the_letters_in_use_and_heads_count_as_sequences(labels: Row, tmp_path: Path) -> None:
    (figure,) = read({"pass": "forward", "ms": "50.0", **labels}, folder=tmp_path)
    assert figure.work == AttentionWork(8, 16384, 128)


@pytest.mark.parametrize(
    "columns, least, most",
    [
        ({"value": "3", "unit": "bytes"}, 3, 3),
        ({"value": "3", "unit": "GB"}, 3e9, 3 * 2**30),
        ({"peak_mb": "3", "unit": "GiB"}, 3 * 2**30, 3 * 2**30),
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


def test_an_unknown_unit_of_memory_is_one_row_unjudged() -> None:
    row = {"gpu": "A100-80GB", "object": "model", "mode": "peak", "value": "90"}
    assert audited(row | {"unit": "GiB"}, row | {"unit": "furlongs"}).counts() == {
        "impossible": 1, "inconsistent": 0, "suspicious": 0, "notice": 0, "not judged": 1, "fine": 0,
    }  # fmt: skip


def test_a_figure_without_a_source_is_named_by_its_labels_alone() -> None:
    row = {"gpu": "A100-80GB", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "MiB": "3"}
    (finding,) = audited(row).findings
    assert finding.cell.startswith("2.7B length")


def test_a_table_of_nsys_stats_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text("Time (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,6000000,60,100000.0,ampere_sgemm\n")
    kind, (figure,) = read_table(path)
    assert isinstance(figure, Kernel)
    assert (kind, figure.calls, figure.percent) == ("kernels", 60, 60)
    assert (figure.total_seconds, figure.average_seconds) == pytest.approx((6e-3, 1e-4))


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: text.replace(",", ";").replace("35.5", "35,5").encode(),
        lambda text: text.replace(",", "\t").encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: f"\n\n{text}".encode("utf-8-sig"),
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


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_packed_table_is_read_as_the_plain_one(suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    plain = written(tmp_path, [*model_table(), TOO_FAST])
    packed = tmp_path / f"packed.csv.{suffix}"
    packed.write_bytes(pack(plain.read_bytes()))
    assert audit_file(packed) == audit_file(plain)


@pytest.mark.parametrize(
    ("text", "separator", "seconds", "rounding"),
    [
        ("1,234.5", "\t", 1.2345, 5e-5),
        ("1.234,5", "\t", 1.2345, 5e-5),
        ("1,234,567", "\t", 1234.567, 5e-4),
        ("34,25", "\t", 0.03425, 5e-6),
        ("1,234", ";", 0.001234, 5e-7),
        ("1,234", "\t", None, None),
    ],
)
def test_of_two_signs_in_a_figure_the_last_one_begins_its_decimals(
    text: str, separator: str, seconds: float | None, rounding: float | None, tmp_path: Path
) -> None:
    """A comma that may be either sign leaves its figure unjudged: 1.234 ms would be impossible, 1234 ms would not."""
    path = written(tmp_path, [model_row(mean_ms=ms, source="a") for ms in ("35.5", "36.5")])
    path.write_text(path.read_text().replace(",", separator).replace("35.5", text))
    figure, _ = read_table(path)[1]
    if seconds is None:
        assert audit_file(path).reasons() == {"a comma before three digits may begin decimals or separate thousands": 1}
    else:
        assert isinstance(figure, Timing)
        assert (figure.seconds, figure.rounding_seconds) == pytest.approx((seconds, rounding))


@pytest.mark.parametrize("phase", ["Forward", "BACKWARD", "forward-backward", "fwd + bwd", "Full step", "no_grad"])
def test_a_phase_is_known_however_it_is_spelt(phase: str) -> None:
    audit = audited({**model_row(), "phase": phase, "mean_ms": "0.001"})
    assert bool(audit.findings_of(IMPOSSIBLE)) == (phase != "no_grad"), audit.reasons()


def test_phases_with_columns_of_their_own_are_read_as_rows(tmp_path: Path) -> None:
    narrow = [model_row(phase=phase, mean_ms=ms) for phase, ms in (("forward", "90"), ("backward", "800"))]
    labels = without(narrow[0], "phase", "mean_ms", "std_ms")
    wide = labels | {"Forward (ms)": "90", "fwd_std_ms": "0.1", "mean_backward_ms": "800", "bwd_std_ms": "0.1"}
    audit = audited(wide)
    assert rules(wide) == rules(*narrow)
    assert audit.places == ["line 2 Forward (ms)", "line 2 mean_backward_ms"]
    assert audit.findings_of(IMPOSSIBLE)[0].places == ("line 2 Forward (ms)",)


def test_a_table_of_times_beside_amounts_is_one_of_times() -> None:
    labels = {"gpu": "A100", "batch": "8", "d_model": "128", "seq_len": "16384", "precision": "fp32", "impl": "naive"}
    times = {"phase": "forward", "mean_ms": "9.0"}, {"forward_ms": "9.0", "backward_ms": "\N{EM DASH}"}
    for row in times:
        audit = audited(labels | {"peak_memory_mib": "26000"} | row)
        assert audit.kind == "attention timing"
        assert IMPOSSIBLE in {finding.verdict for finding in audit.findings}


def test_a_model_whose_vocabulary_is_not_stated_is_judged_by_its_blocks() -> None:
    audit = audited(without(model_row(mean_ms="1"), "vocab"))
    assert (audit.counts()["impossible"], audit.counts()["not judged"]) == (1, 0)


@pytest.mark.parametrize("column", ["tf32", "allow_tf32", "matmul_precision"])
def test_tf32_in_a_column_of_its_own_is_a_label(column: str) -> None:
    assert rules(TOO_FAST | {column: "high" if column == "matmul_precision" else "True"}) == set()


def test_the_label_is_judged_and_comments_are_not_read() -> None:
    commented = {**TOO_FAST, "precision": "tf32(labelled fp32)", "note": "TF32", "status": "wrong"}
    assert rules(TOO_FAST) == rules(commented) == {(IMPOSSIBLE, "arithmetic")}


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
    (figure,) = read(model_row(compiled=compiled), folder=tmp_path)
    assert figure.implementation == implementation
    (unsaid,) = read(without(attention_row(), "compiled"), folder=tmp_path)
    assert unsaid.implementation == "not stated"


def test_a_gpu_given_by_hand_stands_for_rows_that_name_none(tmp_path: Path) -> None:
    memory = {"gpu": "", "object": "model", "mode": "peak", "value": "90 GiB"}
    for row in (TOO_FAST | {"gpu": ""}, memory):
        path = written(tmp_path, [row])
        assert audit_file(path).findings == []
        assert audit_file(path, gpu_named("A100-80GB")).findings != []
    assert audit_file(written(tmp_path, [model_row(gpu="H100")]), gpu_named("T4-16GB")).findings == []


def test_a_file_is_read_in_parts_and_counted_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path, [*model_table(), *[TOO_FAST] * 3])
    whole, parts = audit_file(path), list(audits_of(path, window=10))
    assert max(len(part.places) for part in parts) == 10
    assert sum(part.counts()["impossible"] for part in parts) == whole.counts()["impossible"] == 3
    assert [place for part in parts for place in part.places] == whole.places


HEAD = ",".join(model_row())
NO_SHAPE = "lacks the columns d_model, d_ff, n_layers, read as a table of model timing; or seq_len, d_model, "


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("table.csv", "", "is empty"),
        ("table.csv", "\n", "is empty"),
        ("table.csv", "size|gpu\nsmall|T4\n", "'size|gpu'; separate columns by commas, semicolons or tabs"),
        ("table.csv", "a,b\n1,2\n", "lacks the columns"),
        ("table.csv", f"{HEAD},batch\n", "has the columns batch twice"),
        ("table.csv", HEAD.replace("mean_ms,", "").replace("phase,", "") + "\n", "phase, mean_ms or another time"),
        ("table.csv", "size,phase,mean_ms\nsmall,forward,12\n", NO_SHAPE),
        ("table.csv", "\xff\xfe\x00", "cannot be read as a CSV"),
        ("table.csv", 'd_ff,"' + "x" * 200_000, "cannot be read as a CSV"),
        ("table.csv", f"{HEAD}\n", "has a header but no rows"),
        ("table.csv", f"\xef\xbb\xbf{HEAD}\n", "has a header but no rows"),
        ("table.csv", f"{HEAD}\nonly,three,values\n", "no row can be read. line 2: the line has another number of"),
        ("table.csv", f"{HEAD}\n{HEAD.replace(',', ';')}\n", "line 2: the line is separated by semicolons and the"),
        ("run.json", "{", "cannot be read as JSON"),
        ("run.json", "[1]", "is no pytest-benchmark file"),
        ("run.json", '{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '\xef\xbb\xbf{"benchmarks": []}', "holds no benchmark"),
        ("run.json", '{"benchmarks": [{"name": "x"}]}', "Benchmark x has no timing"),
        ("run.json", '{"benchmarks": [{"name": "x", "stats": {"data": 0.5}}]}', "Benchmark x has no timing"),
        ("run.json", f'{{"benchmarks": [{{"name": "x", "stats": {{"data": [{10**400}]}}}}]}}', "x has no timing"),
        ("run.json", "[" * 100_000, "cannot be read as JSON"),
        ("folder.csv", None, "cannot be read as a CSV"),
    ],
)
def test_a_file_that_is_no_table_and_no_run_is_refused(
    name: str, content: str | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"\S") as caught:
        audit_file(path)
    message = str(caught.value)
    assert said in message
    assert str(path) in message
    assert "\n" not in message
