"""What labels mean, and the timings of pytest-benchmark files: records of this suite, and files of others."""

import json
from pathlib import Path

import pytest

from perf_tests.audit.figures import (
    attention_of,
    covers_the_square,
    implementation_named,
    is_another_model,
    labelled_precision,
    timings_of,
)
from perf_tests.audit.tables import audit_file
from perf_tests.records.record import Json
from tests.support.synthetic import record, timed, timed_attention

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
    assert {label: labelled_precision(label) for label in PRECISIONS} == PRECISIONS
    assert {words: attention_of(words) for words in IMPLEMENTATIONS} == IMPLEMENTATIONS
    assert {axes: implementation_named(*axes) for axes in AXES} == AXES
    assert {name: covers_the_square(name) for name in WHOLE_SQUARE} == WHOLE_SQUARE
    assert {name: is_another_model(name) for name in ANOTHER_MODEL} == ANOTHER_MODEL


@pytest.mark.parametrize("gpu, honest, fast, limit", [
    ("NVIDIA A100-SXM4-80GB", {}, {"seconds": (1e-9,) * 10}, "A100"),
    (None, *({"matmul_ceiling_tflops_per_second": rate} for rate in (0.1, 1e-6)), "best product measured there"),
])  # fmt: skip
def test_a_record_is_held_to_a_gpus_datasheet_and_to_the_ceiling_that_a_cpus_run_measured(
    gpu: str | None, honest: Json, fast: Json, limit: str, tmp_path: Path
) -> None:
    """A model of two layers in 1 s is fine on any GPU; in a nanosecond on none."""
    path = tmp_path / "run.json"
    for changes, found in ((honest, []), (fast, [("impossible", "arithmetic")])):
        path.write_text(json.dumps(record([timed(**changes)], gpu={"name": gpu} if gpu else None)))
        findings = audit_file(path).findings
        assert [(finding.verdict, finding.rule) for finding in findings] == found
        assert all(limit in finding.limit for finding in findings)


def test_a_row_is_read_by_the_median_of_its_rounds_and_its_axes() -> None:
    rows = [timed(seconds=(1.0, 2.0, 6.0)), timed(attention="sdpa"), timed_attention(attention="compiled")]
    first, *others = timings_of(record(rows, gpu={"name": "T4"}))
    assert (first.seconds, first.rounds) == (2.0, 3)
    assert first.std_seconds == pytest.approx((14 / 3) ** 0.5)
    assert (first.gpu, first.implementation, first.phase) == ("T4", "eager", "forward")
    assert [one.implementation for one in others] == ["sdpa eager", "compiled"]


NOT_JUDGED: dict[str, Json] = {
    "neither phase nor shape": {},
    "no formula knows": timed(model="a.py:build")["extra_info"],
    "shared by several ranks": timed(parallel="ddp")["extra_info"],
    "no shape: d_model, d_ff, num_layers, num_heads, vocab_size must lie": timed(d_model=10**10)["extra_info"],
    "no shape: int()": timed(d_model=None)["extra_info"],
}


def test_a_row_without_a_shape_that_a_formula_knows_is_not_judged_and_says_why() -> None:
    rows = [{"name": "test_x", "stats": {"mean": 0.1}, "extra_info": info} for info in NOT_JUDGED.values()]
    read = timings_of({"machine_info": {"node": "x"}, "benchmarks": rows})
    assert [one.work for one in read] == [None] * len(rows)
    assert all(reason in one.without_work for reason, one in zip(NOT_JUDGED, read, strict=True))
