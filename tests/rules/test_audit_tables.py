"""Tables of others are read under the names, units and signs in use, line by line; what is no table is refused."""

import gzip
import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.audit import figures
from perf_tests_suite.perf_tests.audit.figures import Finding, NotJudged, timings_of
from perf_tests_suite.perf_tests.audit.physics import judge
from perf_tests_suite.perf_tests.audit.rows import bytes_in, half_digit, number_in, seconds_in
from perf_tests_suite.perf_tests.audit.tables import open_figures
from perf_tests_suite.perf_tests.hardware.datasheets import gpu_named
from perf_tests_suite.perf_tests.hardware.limits import AttentionWork
from perf_tests_suite.perf_tests.phases import LANGUAGE_MODEL, phases_of
from perf_tests_suite.perf_tests.records.columns import case_rows
from perf_tests_suite.perf_tests.records.record import Json
from tests.support import audited_tables as tables
from tests.support.audited_tables import (
    TOO_FAST,
    Row,
    audit_file,
    audited,
    model_row,
    read_table,
    rules,
    without,
    written,
)
from tests.support.synthetic import record, timed, timed_attention


@given(st.decimals(0, 10**9, places=3), st.sampled_from(["ms", "GiB", "", "%"]))
def test_a_figure_is_read_as_it_was_written(value: object, unit: str) -> None:
    plain = f"{value:f}"
    assert number_in(f"{plain} {unit}", "x") == (float(plain), unit)
    assert number_in(f"{plain}±{plain}{unit}", "x") == (float(plain), unit)
    assert half_digit(f"{plain} {unit}") == pytest.approx(5e-4)


UNITS = {"s": 1.0, "Seconds": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "parsecs": None, "": None}
AMOUNTS = {
    "bytes": (1, 1), "B": (1, 1), "KiB": (2**10, 2**10), "MiB (written MB)": (2**20, 2**20), "GB": (1e9, 2**30),
    "GB (1e9)": (1e9, 1e9), "gb (decimal)": (1e9, 1e9), "TB": (1e12, 2**40), "furlongs": None, "bits": None,
}  # fmt: skip


def test_units_are_read_and_one_that_may_be_either_is_both() -> None:
    assert {word: seconds_in(word) for word in UNITS} == {word: one and (one, one) for word, one in UNITS.items()}
    assert {word: bytes_in(word) for word in AMOUNTS} == AMOUNTS


UNREADABLE: list[tuple[Row, str]] = [
    ({"mean_ms": "35 parsecs"}, "mean_ms has no known unit of time: 'parsecs'"),
    ({"mean_ms": "fast"}, "mean_ms is not a number: 'fast'"),
    ({"mean_ms": "1,234"}, "mean_ms is not a number: '1,234'"),  # 1.234 ms would be impossible, 1234 ms would not
    ({"mean_ms": "nan"}, "mean_ms is not finite and below 1e+15: 'nan'"),
    ({"mean_ms": "9" * 5000}, "mean_ms is not finite"),
    ({"batch": "2.5"}, "batch is not a whole number of 0 or more: 2.5"),
    ({"context": "-128"}, "context is not a whole number of 0 or more: -128"),
    ({"mean_ms": "3-5"}, "no figure"), ({"mean_ms": "OOM"}, "no figure"),
]  # fmt: skip


def test_a_row_or_a_line_that_cannot_be_read_is_unjudged_and_counted_and_spoils_no_other(tmp_path: Path) -> None:
    for changes, reason in UNREADABLE:
        audit = audited({**model_row(), **changes}, TOO_FAST)
        ((place, said),) = ((one.place, one.sentence()) for one in audit.not_judged)
        assert (place, said[: len(reason)], len(audit.findings)) == ("line 2", reason, 1)
    path = written(tmp_path, [model_row(), TOO_FAST])
    whole = path.read_text()
    for line, reason in (
        ("only,three,values", "the line has another number of values than the header"),
        ('"quoted" badly,1', "the line is not CSV"),
    ):
        path.write_text(whole.replace("\n", f"\n{line}\n", 1))
        audit = audit_file(path)
        assert ([one.reason for one in audit.not_judged], audit.findings[0].places) == ([reason], ("line 4",))


TIME = without(model_row(), "mean_ms", "std_ms")
FORWARD_OF_16384 = {"pass": "forward", "ms": "50.0", "impl": "triton_fa2"}
AMOUNT = {"gpu": "A100-80GB", "object": "model", "d_model": "768", "n_layers": "12", "mode": "peak"}

READ: list[tuple[Row, dict[str, Any]]] = [
    *((TIME | columns, {"seconds": pytest.approx(0.035)}) for columns in (
        {"mean_ms": "0.035s"}, {"mean_ms": "35.0 +- 3.4"}, {"ms": "35"}, {"mean_ms": "35 ± 3.4", "std_ms": "2"},
        {"time_s": "0.035", "stddev_s": "0.001"}, {"Mean (µs)": "35000", "Std (µs)": "10"},
        {"latency": "35", "unit": "ms"}, {"mean_ms": "35", "unit": "s"}, {"median_ms": "35", "std_ms": "much"},
    )),
    ({"repo": "a", "device": "A100-80GB", "impl": "triton_fa2", "dtype": "torch.float32", "batch_size": "1",
      "heads": "1", "seq_len": "16384", "d": "64", "direction": "fwd", "ms": "3"},
     {"phase": "attention_forward", "precision": "fp32", "attention": "tiled", "series": "a", "gpu": "A100-80GB",
      "work": AttentionWork(1, 16384, 64)}),
    *((FORWARD_OF_16384 | labels, {"work": AttentionWork(8, 16384, 128)}) for labels in (
        {"B": "8", "N": "16384", "d": "128"}, {"BATCH": "2", "H": "4", "N_CTX": "16384", "HEAD_DIM": "128"},
        {"batch": "8", "seq_len": "16k", "head_dim": "128"}, {"batch": "8", "seqlen": "16384", "headdim": "128"},
        {"batch": "2", "heads": "4", "seq_len": "16384", "d_model": "512"},
    )),
    *((AMOUNT | columns, {"value_bytes": least}) for columns, least in (
        ({"value": "3", "unit": "bytes"}, 3), ({"value": "3", "unit": "GB"}, 3e9), ({"value": "3 GiB"}, 3 * 2**30),
        ({"peak_mb": "3", "unit": "GiB"}, 3 * 2**30), ({"peak_bytes": "3"}, 3), ({"GB (1e9)": "3"}, 3e9),
        ({"Peak memory (MiB)": "3"}, 3 * 2**20), ({"MiB (written MB)": "3"}, 3 * 2**20),
    )),
    *((AMOUNT | columns, {"most_bytes": most}) for columns, most in (
        ({"value": "3", "unit": "GB"}, 3.5 * 2**30), ({"value": "3.0 GB"}, 3.05 * 2**30),
        ({"value": "3", "unit": "GiB"}, 3.5 * 2**30), ({"GB (1e9)": "3.0"}, pytest.approx(3.05e9)),
    )),
    *((model_row(compiled=word), {"implementation": implementation}) for word, implementation in (
        ("no", "eager"), ("yes", "compiled"), ("fused", "fused"),
    )),
    (without(tables.attention_row(), "compiled"), {"implementation": "not stated"}),
    *((model_row() | {"phase": word}, {"phase": phase}) for word, phase in {
        "BACKWARD": "backward", "forward-backward": "forward_backward", "fwd + bwd": "forward_backward",
        "Full step": "full_step", "no_grad": "no_grad",
    }.items()),
]  # fmt: skip


def test_columns_are_read_under_the_names_and_units_in_use() -> None:
    """Heads count as sequences."""
    for row, fields in READ:
        with TemporaryDirectory() as folder:
            _, (figure,) = read_table(written(Path(folder), [row]))
        assert {name: getattr(figure, name) for name in fields} == fields, row


def test_an_unknown_unit_of_memory_is_one_row_unjudged_and_a_figure_without_a_source_named_by_its_labels() -> None:
    row = {"gpu": "A100-80GB", "object": "model", "size": "2.7B", "mode": "peak", "value": "90"}
    audit = audited(row | {"unit": "GiB"}, row | {"unit": "furlongs"})
    assert [one.reason for one in audit.not_judged] == ["its unit of memory is unknown"]
    assert audit.findings[0].cell.startswith("2.7B length")


def test_a_table_is_read_as_spreadsheets_write_and_archives_pack_it(tmp_path: Path) -> None:
    text = written(tmp_path, [model_row(mean_ms="35.5", source="a")]).read_text()
    for name, content in (
        ("semicolons.csv", text.replace(",", ";").encode()),
        ("tabs.csv", text.replace(",", "\t").encode()),
        ("CRLF.csv", text.replace("\n", "\r\n").encode()),
        ("byte order mark.csv", f"\n\n{text}".encode("utf-8-sig")),
        ("UTF-16.csv", text.encode("utf-16")),
        ("table.gz", gzip.compress(text.encode())),
        ("table.xz", lzma.compress(text.encode())),
    ):
        (tmp_path / name).write_bytes(content)
        figures = read_table(tmp_path / name)[1]
        assert [getattr(figure, "seconds", None) for figure in figures] == [pytest.approx(0.0355)], name


def piped(rows: list[Row]) -> str:
    lines = [*rows[0]], ["---:"] * len(rows[0]), *(row.values() for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def test_a_page_is_read_by_its_first_table_of_a_kind_and_the_others_are_named(tmp_path: Path) -> None:
    rows = [TOO_FAST | {"source": "a\\|b", "mean_ms": "**90** ms"}, model_row(mean_ms="slow"), model_row()]
    notes = piped([{"what": "a", "why": "b"}])
    (tmp_path / "page.md").write_text(
        f"# Times\n\n{notes}\n\nText.\n\n{piped(rows)}\n| 3 |\n\n{piped([model_row()])}\n"
    )
    audit = audit_file(tmp_path / "page.md")
    assert [(one.series, one.places) for one in audit.findings] == [("a|b", ("line 11",))]
    assert [(one.place, one.reason.partition(";")[0]) for one in audit.not_judged] == [
        ("line 12", "mean_ms is not a number"),
        ("line 14", "the line has another number of values than the header"),
        ("line 16", "another table of this file"),
    ]


ALONE = {"gpu": "A100", "batch": "8", "d_model": "128", "seq_len": "16384", "precision": "fp32", "peak_mib": "26000"}
BESIDE: list[Row] = [
    ALONE | {"impl": "naive", "phase": "forward", "mean_ms": "9.0"},
    without(model_row(mean_ms="1"), "vocab"),  # judged by its blocks
    TOO_FAST | {"precision": "tf32(labelled fp32)", "note": "TF32", "status": "wrong"},  # by the label
    TOO_FAST | {"tf32": "off"},
]


def test_a_time_beside_what_is_no_label_is_judged_and_tf32_in_a_column_of_its_own_is_a_label() -> None:
    for row in BESIDE:
        assert "arithmetic" in rules(row), row
    for label in ({"tf32": "True"}, {"allow_tf32": "True"}, {"matmul_precision": "high"}):
        assert rules(TOO_FAST | label) == set()


def test_our_own_table_tells_its_implementations_apart(tmp_path: Path) -> None:
    """By the columns that others lack: a pass that fuses is no second measurement of the one that compiles."""
    data = record([timed(attention=name) for name in ("naive", "compiled", "sdpa")], gpu={"name": "T4"})
    rows = [{name: "" if value is None else str(value) for name, value in row.items()} for row in case_rows(data, "x")]
    kind, figures = read_table(written(tmp_path, rows))
    assert (kind, [figure.implementation for figure in figures]) == (
        "model timing",
        ["eager", "compiled", "sdpa eager"],
    )
    assert {(figure.gpu, figure.seconds is None) for figure in figures} == {("T4", False)}


def test_a_gpu_given_by_hand_stands_for_rows_that_name_none(tmp_path: Path) -> None:
    a100 = gpu_named("A100-80GB")
    for row, gpu, is_judged in (
        (TOO_FAST | {"gpu": ""}, a100, True), (AMOUNT | {"gpu": "", "value": "90 GiB"}, a100, True),
        (model_row(gpu="H100"), gpu_named("T4-16GB"), False), (TOO_FAST | {"gpu": ""}, None, False),
    ):  # fmt: skip
        assert bool(audit_file(written(tmp_path, [row]), gpu).findings) is is_judged, row


def test_a_line_is_judged_before_the_next_is_read(tmp_path: Path) -> None:
    """A table of any length takes no more memory than its longest line."""
    path = written(tmp_path, [TOO_FAST])
    with open(path, "a") as file, open_figures(path) as (_, figures):
        first = judge(next(figures))
        file.write(path.read_text().splitlines()[1].replace("90", "9000") + "\n")
        file.flush()
        others = [judge(figure) for figure in figures]
    assert ([len(said) for said in (first, *others)], len(others)) == ([1, 0], 1)


HEAD = ",".join(model_row())

NO_TABLE: list[tuple[str, str | None, str]] = [
    ("table.csv", "", "is empty"), ("table.csv", "\n", "is empty"),
    ("table.csv", "size|gpu\nsmall|T4\n", "'size|gpu'; separate columns by commas, semicolons or tabs"),
    ("table.csv", f"{HEAD},batch\n", "has the columns batch twice"),
    ("table.csv", HEAD.replace("mean_ms,", "").replace("phase,", "") + "\n", "phase, mean_ms or another time of model"),
    ("table.csv", "size,phase,mean_ms\nsmall,forward,12\n", "columns d_model, d_ff, n_layers of model timing; or"),
    ("page.md", "# A page\n\nwith | bars\n", "holds no table"),
    ("page.md", "| a | b |\n|---|---|\n| 1 | 2 |\n", "lacks the columns"),
    ("table.csv", "\xff\xfe\x00", "cannot be read as a CSV"),
    ("table.csv", 'd_ff,"' + "x" * 200_000, "be read as a CSV"),
    ("folder.csv", None, "be read as a CSV"),
    ("run.json", "{}", "is no table; of a record `perf-tests show"),
]  # fmt: skip


def test_what_is_no_table_or_run_is_one_sentence(tmp_path: Path) -> None:
    for number, (name, content, said) in enumerate(NO_TABLE):
        path = tmp_path / f"{number}{name}"
        path.write_text(content, encoding="latin-1") if content is not None else path.mkdir()
        with pytest.raises(ValueError, match=r"\S") as caught:
            audit_file(path)
        message = str(caught.value)
        assert (said in message, str(path) in message, "\n" in message) == (True, True, False), message


PRECISIONS = {
    "fp32": "fp32", "torch.float32": "fp32", "fp32, TF32 off": "fp32", "fp32 (no tf32)": "fp32",
    "fp32 allow_tf32=False": "fp32", "fp32 (highest)": "fp32", "fp32 (TF32 on)": "tf32", "fp32/tf32": "tf32",
    "float32 (high)": "tf32", "AMP bf16": "bf16", "bf16 weights, fp32 sums": "bf16", "fp8": None,
    "bf16 (fp8 products)": None, "fp16, fp16 accumulate": None, "int8": None, "bf16?": None,
}  # fmt: skip
IMPLEMENTATIONS = {
    "eager": "unfused", "naive eager": "unfused", "pytorch eager": "unfused", "compiled": "compiled",
    "max-autotune": "compiled", "naive compiled": "unfused", "sdpa eager": "tiled", "triton_fa2 compiled": "tiled",
    "a new idea eager": "unknown", "naive eager ours checkpoint block": "unknown", "kernels.py:flash eager": "unknown",
}  # fmt: skip
AXES = {
    ("naive", "eager", "none"): "eager", ("compiled", "eager", "none"): "compiled",
    ("naive", "compiled", "none"): "compiled", ("sdpa", "eager", "none"): "sdpa eager",
    ("naive", "eager", "block"): "naive eager ours checkpoint block",
}  # fmt: skip
WHOLE_SQUARE = {"naive": True, "flash": True, "linear attention": False, "block-sparse": False, "mamba": False}
ANOTHER_MODEL = {"gpt2-large": True, "Llama-3": True, "t5": True, "large": False, "2.7B": False}


def test_labels_are_read_as_their_words_say_and_for_the_figure_where_they_leave_something_open() -> None:
    assert {label: figures.labelled_precision(label) for label in PRECISIONS} == PRECISIONS
    assert {words: figures.attention_of(words) for words in IMPLEMENTATIONS} == IMPLEMENTATIONS
    assert {axes: figures.implementation_named(*axes) for axes in AXES} == AXES
    assert {name: figures.covers_the_square(name) for name in WHOLE_SQUARE} == WHOLE_SQUARE
    assert {name: figures.is_another_model(name) for name in ANOTHER_MODEL} == ANOTHER_MODEL


CEILING = "matmul_ceiling_tflops_per_second"
LIMITED: list[tuple[Json | None, Json, Json, str]] = [
    ({"name": "NVIDIA A100-SXM4-80GB"}, {}, {"seconds": (1e-9,) * 10}, "A100"),
    (None, {CEILING: 0.1}, {CEILING: 1e-6}, "best product measured there"),
]


def test_a_record_is_held_to_a_gpus_datasheet_and_to_the_ceiling_that_a_cpus_run_measured() -> None:
    """A model of two layers in 1 s is fine on any GPU; in a nanosecond on none."""
    for gpu, honest, fast, limit in LIMITED:
        for changes, found in ((honest, []), (fast, ["arithmetic"])):
            (read,) = timings_of(record([timed(**changes)], gpu=gpu))
            findings = [one for one in judge(read) if isinstance(one, Finding)]
            assert [finding.rule for finding in findings] == found
            assert all(limit in finding.limit for finding in findings)


@pytest.mark.parametrize("phase", [phase.name for phase in phases_of(LANGUAGE_MODEL) if phase.is_timed])
def test_a_row_of_each_phase_is_held_to_the_ceiling_of_a_cpu_or_not_judged(phase: str) -> None:
    """An update multiplies nothing, and a CPU has no datasheet that its bytes could be held to."""
    changes: Json = {"phase": phase, "optimizer": "loop", CEILING: 1.0}
    (read,) = timings_of(record([timed(**changes)]))
    assert read.matmul_flops_per_second == 1e12
    said = judge(read)
    assert [type(one) for one in said] == ([NotJudged] if phase == "optimizer" else [])


def test_a_row_is_read_by_the_median_of_its_rounds_and_its_axes() -> None:
    rows = [timed(seconds=(1.0, 2.0, 6.0)), timed(attention="sdpa"), timed_attention(attention="compiled")]
    first, *others = timings_of(record(rows, gpu={"name": "T4"}))
    assert (first.seconds, first.most_seconds) == (2.0, 2.0)
    assert (first.gpu, first.implementation, first.phase) == ("T4", "eager", "forward")
    assert [one.implementation for one in others] == ["sdpa eager", "compiled"]


NOT_JUDGED: dict[str, Json] = {
    "neither phase nor shape": {},
    "no formula knows": timed(model="a.py:build")["extra_info"],
    "shared by several ranks": timed(parallel="ddp")["extra_info"],
    "not a shape: d_model, d_ff, num_layers, num_heads, vocab_size must lie": timed(d_model=10**10)["extra_info"],
    "not a shape: int()": timed(d_model=None)["extra_info"],
}


def test_a_row_without_a_shape_that_a_formula_knows_is_not_judged_and_says_why() -> None:
    rows = [{"name": "test_x", "stats": {"mean": 0.1}, "extra_info": info} for info in NOT_JUDGED.values()]
    read = timings_of({"machine_info": {"node": "x"}, "benchmarks": rows})
    assert [one.work for one in read] == [None] * len(rows)
    assert all(reason in one.without_work for reason, one in zip(NOT_JUDGED, read, strict=True))
