"""Honest figures pass, and what no hardware can do is impossible: times, peaks of memory, profiles."""

import pytest

from perf_tests.audit.figures import ACCUSING, IMPOSSIBLE, INCONSISTENT, NOTICE, SUSPICIOUS
from perf_tests.audit.physics import slow_round
from tests.support.audited_tables import (
    Row,
    attention_row,
    attention_table,
    audited,
    model_row,
    model_table,
    rules,
    without,
)

TOO_FAST = model_row(mean_ms="90")
"""Of fp32 on one A100: impossible under the labels that `model_row` has."""


def accuses(*rows: Row) -> bool:
    return any(verdict in ACCUSING for verdict, _ in rules(*rows))


@pytest.mark.parametrize("table", [model_table(), attention_table()], ids=["models", "attention"])
def test_an_honest_table_is_accused_of_nothing(table: list[Row]) -> None:
    audit = audited(*table)
    assert {(one.verdict, one.rule) for one in audit.findings} <= {(NOTICE, "launch-bound")}
    assert audit.not_judged == []


@pytest.mark.parametrize(
    "row, rule, cause",
    [
        (TOO_FAST, "arithmetic", "TF32"),
        (model_row("2.7B", precision="fp32", mean_ms="90"), "arithmetic", "another precision"),
        (model_row(gpu="T4-16GB", mean_ms="350"), "arithmetic", "half the batch"),
        (model_row(gpu="T4-16GB", mean_ms="100"), "arithmetic", "smaller batch or model"),
        (model_row(mean_ms="0.28"), "arithmetic", "wrong unit"),
        (model_row(mean_ms="0"), "time", "unit"),
        (model_row(mean_ms="-3"), "time", "sign"),
        (model_row("2.7B", phase="fwd_bwd", gpu="L4 24GB", mean_ms="99999"), "memory", "paging"),
        (attention_row(mean_ms="0.5", precision="tf32", d_model="16"), "traffic", "kept no gradient"),
    ],
)
def test_what_breaks_physics_is_impossible(row: Row, rule: str, cause: str) -> None:
    (finding,) = audited(row).findings_of(IMPOSSIBLE)
    assert (finding.rule, finding.places) == (rule, ("line 2",))
    assert cause in finding.likely_cause


@pytest.mark.parametrize(("ms", "rule"), [("210", (IMPOSSIBLE, "arithmetic")), ("223", (SUSPICIOUS, "near peak"))])
def test_a_rate_is_held_to_the_peak_and_suspected_near_it(ms: str, rule: tuple[str, str]) -> None:
    assert rules(model_row(mean_ms=ms)) == {rule}
    assert rules(model_row(mean_ms="231")) == set()


def attention_ms(products: float, tera_flops_per_second: float) -> str:
    """The time of so many products of width 128 over eight whole squares of 16384."""
    return f"{products * 2 * 8 * 16384**2 * 128 / tera_flops_per_second / 1e9:.6g}"


@pytest.mark.parametrize(
    "changes, products, is_impossible",
    [
        ({"compiled": "yes"}, 2, True),
        ({"compiled": "yes", "attention": "pytorch"}, 2, True),
        ({"attention": "flash"}, 2, False),
        ({"attention": "flash", "causal_mask": "no"}, 2, True),
        ({"attention": "a new idea"}, 2, False),
        ({"phase": "backward", "attention": "triton_fa2"}, 2.5, True),
        ({"phase": "backward", "attention": "a new idea"}, 2.5, False),
        ({"phase": "fwd_bwd", "attention": "flash"}, 3.5, True),
    ],
)
def test_a_kernel_is_held_to_the_products_that_it_cannot_skip(
    changes: Row, products: float, is_impossible: bool
) -> None:
    """At 1 % above 19.5 TFLOP/s: torch.compile keeps the whole square, a kernel of blocks half of it, and one product
    more in its backward pass."""
    row = attention_row(16384, **{"d_model": "128", "mean_ms": attention_ms(products, 19.7)} | changes)
    assert ((IMPOSSIBLE, "arithmetic") in rules(row)) == is_impossible


def test_a_compiled_pass_in_tf32_is_impossible_where_its_products_exceed_the_peak() -> None:
    """A100: 37.6 TFLOP/s over the whole square, 18.8 over half of it."""
    (finding,) = audited(attention_row(8192, compiled="yes", d_model="128", mean_ms="7.317")).findings_of(IMPOSSIBLE)
    assert "TF32" in finding.likely_cause


@pytest.mark.parametrize("ms, is_found", [("11.2", True), ("11.5", False)])
def test_passes_over_the_square_that_the_cache_cannot_keep_take_their_time(ms: str, is_found: bool) -> None:
    """Six products and five passes of softmax over 2 GiB of scores, less a cache of 40 MiB, at 2.039 TB/s: 11.36 ms."""
    row = attention_row(8192, d_model="16", precision="tf32", phase="fwd_bwd", mean_ms=ms)
    assert ((IMPOSSIBLE, "traffic") in rules(row)) is is_found


def test_a_time_is_held_to_what_its_digits_may_stand_for() -> None:
    """2.4 ms at the peak; printed as whole milliseconds, 2 may be 2.4, and 2.0 may not."""
    seconds = 4 * 8 * 4096**2 * 64 / 2 / 19.5e12
    below = f"{float(f'{seconds * 1e3:.1f}') - 0.3:.1f}"
    exact, whole = (attention_row(4096, attention="a new idea", mean_ms=ms) for ms in (below, f"{float(below):.0f}"))
    assert rules(exact) == {(IMPOSSIBLE, "arithmetic")}
    assert not accuses(whole)
    shown = [audited(TOO_FAST | {"mean_ms": ms}).findings[0].figure for ms in ("9.0000", "9")]
    assert [figure.partition(" is ")[2].startswith("at least") for figure in shown] == [False, True]


def test_an_inferred_gpu_is_said_to_be_one_and_a_geforces_clock_too() -> None:
    (finding,) = audited(TOO_FAST | {"gpu_basis": "inferred"}).findings_of(IMPOSSIBLE)
    assert "GPU inferred, not stated" in finding.limit
    (finding,) = audited(model_row(gpu="RTX 2080 Ti", mean_ms="90")).findings_of(IMPOSSIBLE)
    assert "for its clock" in finding.limit


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"gpu": ""}, "no GPU stated"),
        ({"gpu": "Apple M3"}, "no datasheet"),
        ({"context": ""}, "no context"),
        ({"batch": ""}, "no batch"),
        ({"precision": "half?"}, "not certain"),
        ({"precision": ""}, "precision not stated"),
        ({"gpu": "T4", "precision": "bf16_amp"}, "no bf16 path"),
        ({"phase": "optimizer"}, "no known arithmetic"),
        ({"mean_ms": ""}, "no figure"),
        ({"d_model": "0"}, "d_model is 0"),
        ({"gpu": "8x A100-80GB"}, "several cards"),
        ({"gpu": "A100-80GB x8"}, "several cards"),
        ({"gpu": "A100-80GB (8 GPUs)"}, "several cards"),
        ({"world_size": "8"}, "several cards"),
        ({"size": "gpt2-large"}, "another architecture"),
        ({"attention": "sliding window"}, "a part of the square"),
        ({"window_size": "256"}, "a part of the square"),
        ({"precision": "fp8"}, "not certain"),
    ],
)
def test_what_cannot_be_judged_is_no_finding_and_counted_with_its_reason(changes: Row, reason: str) -> None:
    audit = audited(TOO_FAST | changes)
    assert (audit.findings, audit.counts()["not judged"]) == ([], 1)
    assert reason in next(iter(audit.reasons()))


@pytest.mark.parametrize("changes", [{"world_size": "1"}, {"window": "none"}, {"tf32": "no"}, {"gpu": "A100 (8x box)"}])
def test_a_label_that_takes_nothing_away_leaves_a_row_judged(changes: Row) -> None:
    assert accuses(TOO_FAST | changes)


@pytest.mark.parametrize("attention", ["linear attention", "block-sparse", "mamba"])
def test_attention_to_a_part_of_the_keys_is_not_held_to_the_square(attention: str) -> None:
    assert rules(attention_row(16384, mean_ms="1", attention=attention)) == set()


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"std_ms": "270"}, {(SUSPICIOUS, "outlier")}),
        ({"std_ms": "900"}, {(SUSPICIOUS, "outlier")}),
        ({"std_ms": "270", "warmup": "0"}, {(NOTICE, "no warm-up")}),
        ({"std_ms": "110", "n_measured": "100"}, {(NOTICE, "scatter")}),
        ({"std_ms": "60"}, set()),
        ({"std_ms": "270", "n_measured": ""}, set()),
    ],
)
def test_a_spread_is_a_mistake_where_it_misleads_and_nothing_announces_it(
    changes: Row, found: set[tuple[str, str]]
) -> None:
    assert rules(model_row() | changes) == found


def test_one_slow_round_gives_mean_and_spread() -> None:
    assert slow_round(1.9, 2.7, 10) == pytest.approx((1.0, 10.0))
    assert [slow_round(1.0, 3.0, 10), slow_round(1.0, 0.5, 2), slow_round(1.0, 0.0, 10)] == [None] * 3


def memory_row(**changes: str) -> Row:
    row = {
        "source": "somebody/repository:memory.md", "gpu": "A100-80GB", "object": "model(2025)", "size": "2.7B",
        "d_model": "2560", "n_layers": "32", "batch": "4", "context": "512", "precision": "fp32", "compiled": "no",
        "mode": "full_step_peak", "value": "65.5", "unit": "GiB",
    }  # fmt: skip
    return {**row, **changes}


def attention_memory(gib: str, **changes: str) -> Row:
    labels = {"object": "attention", "d_model": "64", "batch": "8", "context": "8192", "mode": "before_backward"}
    return memory_row(**labels | {"value": gib} | changes)


def kernel_row(name: str, calls: int, average: float, percent: float, **changes: str) -> Row:
    row = {
        "source": "somebody/repository:profile.md", "gpu": "A100-80GB", "size": "small", "context": "128",
        "scope": "forward", "kernel": name, "calls": str(calls), "total_ms": f"{calls * average / 1e3:.6g}",
        "avg_us": str(average), "std_us": "", "pct_of_gpu_time": str(percent),
    }  # fmt: skip
    return {**row, **changes}


PROFILE = [
    kernel_row("ampere_sgemm", 85, 100.0, 85.0),
    kernel_row("elementwise", 100, 10.0, 10.0),
    kernel_row("reduce", 50, 10.0, 5.0),
]
OVER_100_PERCENT = (INCONSISTENT, "sum of shares")
AFTER_INPUTS = attention_memory("1.06", mode="after_inputs")

MISTAKES: dict[str, tuple[list[Row], set[tuple[str, str]]]] = {
    "more than the card holds": ([memory_row(value="90")], {(IMPOSSIBLE, "card memory")}),
    "a negative amount": ([memory_row(value="-1")], {(IMPOSSIBLE, "amount")}),
    "less than the weights": ([memory_row(value="9", mode="forward_peak")], {(IMPOSSIBLE, "weights")}),
    "half weights under autocast": (
        [memory_row(precision="bf16 autocast", mode="forward_peak", value="8")],
        {(IMPOSSIBLE, "weights")},
    ),
    "no optimizer state": ([memory_row(value="26", unit="GB")], {(SUSPICIOUS, "optimizer state")}),
    "too little saved": ([memory_row(value="51.4")], {(SUSPICIOUS, "saved tensors")}),
    "more than two squares": ([attention_memory("3.06")], {(SUSPICIOUS, "saved squares")}),
    "no square": ([attention_memory("0.06")], {(SUSPICIOUS, "saved squares")}),
    "four squares": ([attention_memory("8.06")], {(SUSPICIOUS, "saved squares")}),
    "squares beside larger inputs": ([attention_memory("4.06"), AFTER_INPUTS], {(SUSPICIOUS, "saved squares")}),
    "a peak that shrinks with the context": (
        [memory_row(), memory_row(context="1024", value="60")],
        {(INCONSISTENT, "shrinking peak"), (SUSPICIOUS, "saved tensors")},
    ),
    "a phase by its column and a peak by its heading": (
        [without(memory_row(), "mode", "value", "unit") | {"phase": "Full step", "peak_gb": "2"}],
        {(IMPOSSIBLE, "weights")},
    ),
    "average": ([*PROFILE, PROFILE[1] | {"avg_us": "64.9"}], {(INCONSISTENT, "calls x average"), OVER_100_PERCENT}),
    "share": ([*PROFILE, PROFILE[1] | {"pct_of_gpu_time": "23.1"}], {(INCONSISTENT, "share"), OVER_100_PERCENT}),
    "a copied cell": (
        [*PROFILE, kernel_row("copy", 20, 10.0, 10.0)],
        {(INCONSISTENT, "copied cell"), (INCONSISTENT, "share"), OVER_100_PERCENT},
    ),
    "shares of more than all": ([*PROFILE, kernel_row("twice", 85, 100.0, 85.0)], {OVER_100_PERCENT}),
    "a negative share": ([*PROFILE, PROFILE[1] | {"pct_of_gpu_time": "-10"}], {(IMPOSSIBLE, "amount")}),
    "a total of nothing": ([*PROFILE, kernel_row("idle", 1, 5.0, 0.1, total_ms="0")], {(IMPOSSIBLE, "amount")}),
    "lost products": ([kernel_row("ampere_sgemm", 60, 141.7, 85.0), *PROFILE[1:]], {(SUSPICIOUS, "missing products")}),
    "products faster than the card": ([kernel_row("sgemm", 85, 50.0, 85.0)], {(SUSPICIOUS, "matrix products")}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_memory_or_a_profile_is_found(mistake: str) -> None:
    rows, found = MISTAKES[mistake]
    assert rules(*rows) == found


OF_A_STEP = {"checkpoint": "", "optimizer": ""}
HONEST: dict[str, list[Row]] = {
    "a step": [memory_row()],
    "a shorter context": [memory_row(context="128", value="51.4")],
    "two squares": [attention_memory("4.06")],
    "two squares beside larger inputs": [attention_memory("5.06"), AFTER_INPUTS],
    "a profile": PROFILE,
    "copies beside kernels": [*PROFILE, kernel_row("[memory op] HtoD", 15, 10.0, 1.5)],
    "the largest kernels alone": [PROFILE[0] | {"calls": "60", "total_ms": "6.0"}],  # 25 others fit into the 15 %
    "a peak that another set-up lowers": [memory_row(checkpoint="none"),
                                          memory_row(checkpoint="block", context="1024", value="51.4")],
    "attention computed again": [attention_memory("0.06", checkpoint="attention")],
    "a compiled step": [memory_row(checkpoint="No", compiled="yes", value="51.4")],
    "half weights": [memory_row(precision="bf16", mode="forward_peak", value="8")],
    "an optimizer without moments": [memory_row(optimizer="SGD", value="26", unit="GB"),
                                     memory_row(optimizer="adamw", value="65.5")],
}  # fmt: skip


@pytest.mark.parametrize("what", HONEST)
def test_honest_memory_and_honest_profiles_are_accused_of_nothing(what: str) -> None:
    rows = HONEST[what]
    defaults = {} if "kernel" in rows[0] else OF_A_STEP
    assert audited(*(defaults | row for row in rows)).findings == []


PEAK = {"gpu": "H100", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "unit": "GB"}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "value": "7"},
        {"gpu": "8x H100", "precision": "fp32", "value": "2"},
        {"precision": "int8", "value": "3.5"},
        {"precision": "fp32", "d_ff": "6848", "value": "10"},
        {"size": "a block", "precision": "fp32", "value": "2"},
    ],
)
def test_weights_that_take_fewer_bytes_by_their_labels_are_not_held_to_fp32(changes: Row) -> None:
    assert accuses(PEAK | changes | {"gpu": "H100", "precision": "fp32", "d_ff": "", "size": "2.7B"})
    assert not accuses(PEAK | changes)


@pytest.mark.parametrize("gpu, gigabytes", [("V100 (32GB)", 20), ("Tesla V100", 30), ("H100", 90), ("A100", 70)])
def test_a_name_that_leaves_the_memory_open_allows_the_largest_card(gpu: str, gigabytes: int) -> None:
    row = {"gpu": gpu, "size": "xl", "mode": "peak", "value": str(gigabytes), "unit": "GB"}
    assert rules(row) == set()
    assert accuses(row | {"value": "150"})


def test_a_name_that_leaves_the_form_factor_open_is_judged_by_the_fastest_card() -> None:
    assert rules(TOO_FAST | {"gpu": "NVIDIA A100"}) == {(IMPOSSIBLE, "arithmetic")}
