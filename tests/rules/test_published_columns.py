"""Figures in the columns of published collections: those first, every case there, and exactly the record's values."""

import csv
import io
import json
from pathlib import Path

import pytest

from perf_tests.audit.tables import audit_file
from perf_tests.records.published import FLAT_COLUMNS, flat_figures
from perf_tests.records.record import Json
from perf_tests.verbs.tables import exported
from tests.support.synthetic import (
    BACKWARD,
    attention_identity,
    record,
    remembered,
    timed,
    traced,
    untimed,
    warmed,
    with_passes,
)

# The heads of collections of such figures; readers of those find their columns here.
PUBLISHED = {
    "timing": "source,device,device_basis,edition,size,d_model,d_ff,n_layers,n_heads,vocab,batch,context,context_basis,"
    "precision,compiled,phase,mean_ms,std_ms,n_measured,warmup,sync,status,note",
    "attention": "source,device,device_basis,batch,d_model,seq_len,causal_mask,precision,compiled,phase,mean_ms,"
    "std_ms,n_measured,status,note",
    "memory": "source,device,device_basis,object,size,d_model,n_layers,batch,context,precision,compiled,mode,value,"
    "unit,status,note",
    "kernels": "source,device,device_basis,edition,size,context,scope,kernel,calls,total_ms,avg_us,std_us,"
    "pct_of_gpu_time,note",
    "warmup": "source,device,size,context,phase,warmup,mean_ms,std_ms,note",
}


def rows(data: Json, kind: str) -> list[dict[str, str]]:
    text = exported(flat_figures(data, "machine/0001_run")[kind], "csv").decode()
    return list(csv.DictReader(io.StringIO(text)))


def alone(**changes: object) -> Json:
    return {**timed(seconds=(0.010, 0.012)), "extra_info": {**attention_identity(), **changes}}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_published_columns_come_first(kind: str) -> None:
    assert ",".join(FLAT_COLUMNS[kind]).startswith(PUBLISHED[kind] + ",")


def test_a_timing_has_its_labels_and_its_figures() -> None:
    asked: Json = {"warmup_rounds": 3, "warmup_rounds_run": 5}
    (row,) = rows(record([timed(seconds=(0.010, 0.012), phase="forward_backward", **asked)]), "timing")
    assert (row["size"], row["d_ff"], row["n_layers"], row["context"], row["batch"]) == ("tiny", "512", "2", "8", "4")
    assert (row["phase"], row["status"], row["n_measured"], row["warmup"]) == ("fwd_bwd", "ok", "2", "5")
    assert float(row["mean_ms"]) == pytest.approx(11.0)
    assert float(row["median_ms"]) == pytest.approx(11.0)
    assert float(row["std_ms"]) == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    "changes, column, label",
    [
        ({}, "compiled", "no"),
        ({"attention": "compiled"}, "compiled", "yes"),
        ({"execution": "compiled"}, "compiled", "yes"),
        ({"execution": "reduce-overhead"}, "compiled", "yes"),
        ({"attention": "sdpa"}, "compiled", "no (sdpa)"),
        ({"precision": "bf16"}, "precision", "bf16_amp"),
    ],
)
def test_a_row_says_whether_it_was_compiled_fused_or_of_mixed_precision(changes: Json, column: str, label: str) -> None:
    assert rows(record([timed(**changes)]), "timing")[0][column] == label


@pytest.mark.parametrize("outcome, status", [("out_of_memory", "OOM"), ("would_not_fit", "would_not_fit")])
def test_a_case_without_a_timing_is_a_row_with_its_reason(outcome: str, status: str) -> None:
    _, row = rows(record([timed()], [untimed(BACKWARD, outcome, "6 GiB, asked\nof 5", phase="full_step")]), "timing")
    assert (row["status"], row["mean_ms"], row["note"]) == (status, "", "6 GiB, asked\nof 5")


def test_attention_is_a_table_of_its_own() -> None:
    figures = flat_figures(record([alone()]), "run")
    assert (len(figures["timing"]), len(figures["attention"])) == (0, 1)
    (row,) = rows(record([alone()]), "attention")
    assert (row["d_model"], row["seq_len"], row["causal_mask"], row["phase"]) == ("16", "256", "yes", "forward")


def test_a_peak_is_a_row_in_mebibytes_and_so_is_what_is_there_before_the_backward_pass() -> None:
    row = timed(phase="full_step", peak_allocated_bytes=3 * 2**20, bytes_before_backward=2**20)
    found = [(row["mode"], float(row["value"]), row["unit"]) for row in rows(record([row]), "memory")]
    assert found == [("full_step_peak", 3.0, "MiB"), ("before_backward", 1.0, "MiB")]
    (row,) = rows(record([alone(peak_allocated_bytes=2**20)]), "memory")
    assert (row["object"], row["mode"]) == ("attention", "peak_forward")


def test_running_out_of_memory_is_a_row_of_the_memory_table_too_and_a_reason_is_no_formula() -> None:
    (row,) = rows(record([], [untimed(reason="=HYPERLINK(1)")]), "memory")
    assert (row["value"], row["status"], row["note"]) == ("", "OOM", "'=HYPERLINK(1)")


def test_json_lines_say_null_for_what_is_not_known() -> None:
    (line,) = exported(flat_figures(record([], [untimed()]), "run")["timing"], "jsonl").splitlines()
    assert json.loads(line)["mean_ms"] is None


def test_a_kernel_is_a_row_in_the_published_units() -> None:
    first, _ = rows(with_passes(record([timed()]), traced()), "kernels")
    assert (first["kernel"], first["scope"], first["calls"], first["context"]) == ("gemm<float>", "forward", "10", "8")
    figures = [float(first[name]) for name in ("total_ms", "avg_us", "std_us", "pct_of_gpu_time")]
    assert figures == pytest.approx([7.5, 750.0, 75.0, 75.0])


def test_a_process_of_a_warm_up_study_is_a_row() -> None:
    found = rows(with_passes(record([timed()]), warmed(seconds=0.01)), "warmup")
    assert [row["warmup"] for row in found] == ["0", "1", "2", "5", "10", "5"]
    assert [row["note"] for row in found[-2:]] == ["", "warm-up without the timed phase"]
    assert (float(found[0]["first_ms"]), found[0]["steady_from_round"], found[0]["n_measured"]) == (50.0, "2", "10")


def test_a_memory_pass_has_its_peak_and_what_is_held_before_the_backward_pass() -> None:
    row = remembered(peak_bytes=2**21, phase="backward")
    row["values"]["memory_before_backward_bytes"] = 2**20
    peak, before = rows(with_passes(record([timed()]), row), "memory")
    assert (peak["mode"], peak["status"], before["mode"]) == ("backward_peak", "ok", "before_backward")
    assert [float(figure) for figure in (peak["value"], peak["predicted"], before["value"])] == [2, 3, 1]


@pytest.mark.parametrize("kind, read_as", [("kernels", "kernels"), ("warmup", "model timing"), ("memory", "memory")])
def test_the_audit_reads_what_a_pass_wrote(kind: str, read_as: str, tmp_path: Path) -> None:
    data = with_passes(record([timed()]), traced(), remembered(), warmed())
    path = tmp_path / f"{kind}.csv"
    path.write_bytes(exported(flat_figures(data, "run")[kind], "csv"))
    audit = audit_file(path)
    assert (audit.kind, len(audit.places)) == (read_as, len(flat_figures(data, "run")[kind]))
