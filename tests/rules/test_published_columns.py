"""Figures in the columns of published collections: those first, every case there, and exactly the record's values."""

import csv
import io
from pathlib import Path

import pytest

from perf_tests.records.published import FLAT_COLUMNS, flat_figures, published_rows
from perf_tests.records.record import Json
from perf_tests.verbs.tables import exported
from tests.support.audited_tables import read_table
from tests.support.synthetic import record, remembered, timed, timed_attention, traced, untimed, warmed, with_passes

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
"""The heads of collections of such figures; readers of those find their columns here."""


def test_the_published_columns_come_first() -> None:
    heads = {kind: ",".join(columns[: PUBLISHED[kind].count(",") + 1]) for kind, columns in FLAT_COLUMNS.items()}
    assert heads == PUBLISHED
    assert published_rows("memory_outliers.csv")[0].keys() & {"source", "device"}


BEFORE: Json = {"peak_allocated_bytes": 3 * 2**20, "bytes_before_backward": 2**20}
HELD = remembered(peak_bytes=2**21, phase="backward")
HELD["values"]["memory_before_backward_bytes"] = 2**20
RAN_OUT = {"status": "OOM", "note": "'=SUM(1)"}  # as no spreadsheet's formula
COMPILED: list[tuple[str, Json]] = [
    ("yes", {"attention": "compiled"}), ("yes", {"execution": "compiled"}), ("yes", {"execution": "reduce-overhead"}),
    ("no (sdpa)", {"attention": "sdpa"}),
]  # fmt: skip
ROWS: dict[str, tuple[str, Json, list[Json]]] = {
    "a timing": ("timing", record([timed(seconds=(0.010, 0.012), phase="forward_backward", warmup_rounds=5)]), [
        {"size": "tiny", "d_ff": 512, "n_layers": 2, "context": 8, "batch": 4, "phase": "fwd_bwd", "status": "ok",
         "n_measured": 2, "warmup": 5, "mean_ms": 11, "median_ms": 11, "std_ms": 2**0.5, "precision": "fp32",
         "compiled": "no"}]),
    "more warm-up rounds than asked for": (
        "timing", record([timed(warmup_rounds=5, warmup_rounds_run=9)]), [{"warmup": 9}]),
    **{f"compiled: {label}, {changes}": ("timing", record([timed(**changes)]), [{"compiled": label}])
       for label, changes in COMPILED},
    "mixed precision": ("timing", record([timed(precision="bf16")]), [{"precision": "bf16_amp"}]),
    "out of memory": ("timing", record([], [untimed(reason="=SUM(1)")]), [{**RAN_OUT, "mean_ms": ""}]),
    "and its memory": ("memory", record([], [untimed(reason="=SUM(1)")]), [{**RAN_OUT, "value": ""}]),
    "another outcome": ("timing", record([], [untimed("lost", "would_not_fit", "6 GiB, asked\nof 5")]), [
        {"status": "would_not_fit", "mean_ms": "", "note": "6 GiB, asked\nof 5"}]),
    "another outcome's memory": ("memory", record([], [untimed("lost", "would_not_fit")]), []),
    "attention": ("attention", record([timed_attention(), timed()]), [
        {"d_model": 16, "seq_len": 256, "causal_mask": "yes", "phase": "forward", "mean_ms": 1045}]),
    "attention is no timing of a model": ("timing", record([timed_attention()]), []),
    "a peak, and what is there before the backward pass": ("memory", record([timed(phase="full_step", **BEFORE)]), [
        {"object": "model", "mode": "full_step_peak", "value": 3, "unit": "MiB"},
        {"mode": "before_backward", "value": 1, "predicted": ""}]),
    "a forward pass's peak": ("memory", record([timed(peak_allocated_bytes=2**20)]), [
        {"mode": "forward_peak(with grad)", "value": 1}]),
    "attention's peak": ("memory", record([timed_attention(peak_allocated_bytes=2**20)]), [
        {"object": "attention", "mode": "peak_forward", "value": 1}]),
    "a memory pass": ("memory", with_passes(record([timed()]), HELD), [
        {"mode": "backward_peak", "status": "ok", "value": 2, "predicted": 3},
        {"mode": "before_backward", "value": 1}]),
    "kernels": ("kernels", with_passes(record([timed()]), traced()), [
        {"kernel": "gemm<float>", "scope": "forward", "calls": 10, "context": 8, "total_ms": 7.5, "avg_us": 750,
         "std_us": 75, "pct_of_gpu_time": 75}, {"kernel": "add", "pct_of_gpu_time": 25}]),
    "processes of a warm-up study": ("warmup", with_passes(record([timed()]), warmed(seconds=0.01)), [
        {"warmup": 0, "first_ms": 50, "steady_from_round": 2, "n_measured": 10, "note": ""},
        {"warmup": 1, "mean_ms": 10.09, "std_ms": 0.2}, *({"warmup": rounds} for rounds in (2, 5, 10)),
        {"warmup": 5, "note": "warm-up without the timed phase"}]),
}  # fmt: skip


@pytest.mark.parametrize("what", ROWS)
def test_a_row_has_the_published_labels_and_units(what: str) -> None:
    kind, data, expected = ROWS[what]
    figures = flat_figures(data, "machine/0001_run")[kind]
    rows = list(csv.DictReader(io.StringIO(exported(figures, "csv").decode(), newline=""))) if figures else []
    assert len(rows) == len(expected)
    for row, known in zip(rows, expected, strict=True):
        shown = {name: row[name] if isinstance(known[name], str) else float(row[name]) for name in known}
        assert shown == pytest.approx(known)


@pytest.mark.parametrize("kind, read_as", [("warmup", "model timing"), ("memory", "memory")])
def test_the_audit_reads_what_a_pass_wrote(kind: str, read_as: str, tmp_path: Path) -> None:
    figures = flat_figures(with_passes(record([timed()]), traced(), remembered(), warmed()), "run")[kind]
    (tmp_path / "x.csv").write_bytes(exported(figures, "csv"))
    kind_read, read = read_table(tmp_path / "x.csv")
    assert (kind_read, len(read)) == (read_as, len(figures))
