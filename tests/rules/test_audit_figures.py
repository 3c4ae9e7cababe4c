"""What labels mean, and the timings of pytest-benchmark files: records of this suite, and files of others."""

import pytest

from perf_tests.audit.figures import (
    COMPILED,
    IMPOSSIBLE,
    TILED,
    UNFUSED,
    UNKNOWN,
    attention_of,
    covers_the_square,
    implementation_named,
    is_another_model,
    labelled_precision,
    timings_of,
)
from perf_tests.records.record import Json
from tests.support.audited_tables import audited_record
from tests.support.synthetic import record, timed, timed_attention

PRECISIONS = {
    "fp32": "fp32", "torch.float32": "fp32", "fp32, TF32 off": "fp32", "fp32 (no tf32)": "fp32",
    "fp32 allow_tf32=False": "fp32", "fp32 (highest)": "fp32", "fp32 (TF32 on)": "tf32", "fp32/tf32": "tf32",
    "float32 (high)": "tf32", "AMP bf16": "bf16", "bf16 weights, fp32 sums": "bf16", "fp8": None,
    "bf16 (fp8 products)": None, "fp16, fp16 accumulate": None, "int8": None, "bf16?": None,
}  # fmt: skip


def test_a_label_of_several_precisions_counts_as_the_fastest_and_an_uncertain_one_as_none() -> None:
    assert {label: labelled_precision(label) for label in PRECISIONS} == PRECISIONS


IMPLEMENTATIONS = {
    "eager": UNFUSED, "naive eager": UNFUSED, "pytorch eager": UNFUSED, "compiled": COMPILED, "max-autotune": COMPILED,
    "naive compiled": UNFUSED, "sdpa eager": TILED, "triton_fa2 compiled": TILED, "a new idea eager": UNKNOWN,
    "naive eager ours checkpoint block": UNKNOWN, "kernels.py:flash eager": UNKNOWN,
}  # fmt: skip


def test_how_attention_runs_is_told_by_the_words_of_its_implementation() -> None:
    assert {words: attention_of(words) for words in IMPLEMENTATIONS} == IMPLEMENTATIONS


def test_an_implementation_at_the_defaults_has_everybodys_name() -> None:
    names = ("naive", "eager", "none"), ("compiled", "eager", "none"), ("naive", "compiled", "none")
    assert [implementation_named(*axes) for axes in names] == ["eager", "compiled", "compiled"]
    assert implementation_named("sdpa", "eager", "none") == "sdpa eager"
    assert implementation_named("naive", "eager", "block") == "naive eager ours checkpoint block"


def test_names_of_what_computes_less_are_known() -> None:
    less, whole = ("linear attention", "block-sparse", "mamba", "sliding window"), ("naive", "flash", "causal")
    assert [covers_the_square(name) for name in (*less, *whole)] == [False] * 4 + [True] * 3
    assert [is_another_model(name) for name in ("gpt2-large", "Llama-3", "t5", "large", "2.7B")] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize(
    "gpu, honest, fast, limit",
    [
        ("NVIDIA A100-SXM4-80GB", timed(), timed(seconds=(1e-9,) * 10), "A100"),
        (None, *(timed(matmul_ceiling_tflops_per_second=rate) for rate in (0.1, 1e-6)), "best product measured there"),
    ],
    ids=["a GPU's datasheet", "the ceiling that a CPU's run measured"],
)
def test_a_record_of_this_suite_is_held_to(gpu: str | None, honest: Json, fast: Json, limit: str) -> None:
    """A model of two layers in 1 s is fine on any GPU; in a nanosecond on none."""
    honest_run, fast_run = (record([row], gpu={"name": gpu} if gpu else None) for row in (honest, fast))
    assert audited_record(honest_run).findings == []
    (finding,) = audited_record(fast_run).findings
    assert (finding.verdict, finding.rule) == (IMPOSSIBLE, "arithmetic")
    assert limit in finding.limit


def test_a_row_is_read_by_the_median_of_its_rounds_and_its_axes() -> None:
    rows = [timed(seconds=(1.0, 2.0, 6.0)), timed(attention="sdpa"), timed_attention(attention="compiled")]
    first, *others = timings_of(record(rows, gpu={"name": "T4"}))
    assert (first.seconds, first.rounds) == (2.0, 3)
    assert first.std_seconds == pytest.approx((14 / 3) ** 0.5)
    assert (first.gpu, first.implementation, first.phase) == ("T4", "eager", "forward")
    assert [one.implementation for one in others] == ["sdpa eager", "compiled"]


NOT_JUDGED = {
    "neither phase nor shape": {},
    "no formula knows": timed(model="a.py:build")["extra_info"],
    "shared by several ranks": timed(parallel="ddp")["extra_info"],
    "no shape: d_model, d_ff, num_layers, num_heads, vocab_size must lie": timed(d_model=10**10)["extra_info"],
    "no shape: int()": timed(d_model=None)["extra_info"],
}


@pytest.mark.parametrize("reason", NOT_JUDGED)
def test_a_row_without_a_shape_that_a_formula_knows_is_not_judged_and_says_why(reason: str) -> None:
    row = {"name": "test_x", "stats": {"mean": 0.1}, "extra_info": NOT_JUDGED[reason]}
    (said,) = audited_record({"machine_info": {"node": "x"}, "benchmarks": [row]}).reasons()
    assert reason in said
