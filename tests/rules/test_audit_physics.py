"""Honest figures pass, and what no hardware can do is impossible: times, peaks of memory, profiles."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import ACCUSING
from perf_tests.audit.physics import slow_round
from perf_tests.audit.tables import audit_file
from tests.support.audited_tables import TOO_FAST, Row, attention_row, audited, model_row, model_table, rules, without
from tests.support.synthetic import record, timed, write_record

ARITHMETIC, TRAFFIC = "impossible: arithmetic", "impossible: traffic"
FUSION, OUTLIER = "suspicious: more than fusion", "suspicious: outlier"


def test_an_honest_table_is_accused_of_nothing() -> None:
    alone = [
        attention_row(n, p, way) for n in (4096, 8192, 16384) for p in ("forward", "backward") for way in ("no", "yes")
    ]
    for table, found in ((model_table(), {"notice: launch-bound"}), (alone, set())):
        assert (rules(*table), audited(*table).not_judged) == (found, [])


BROKEN: list[tuple[Row, str, str]] = [
    (TOO_FAST, "arithmetic", "TF32"),
    (model_row("2.7B", mean_ms="90"), "arithmetic", "another precision"),
    (model_row(gpu="T4-16GB", mean_ms="350"), "arithmetic", "half the batch"),
    (model_row(gpu="T4-16GB", mean_ms="100"), "arithmetic", "smaller batch or model"),
    (model_row(mean_ms="0.28"), "arithmetic", "wrong unit"),
    (model_row(mean_ms="0"), "time", "unit"),
    (model_row(mean_ms="-3"), "time", "sign"),
    (model_row("2.7B", phase="fwd_bwd", gpu="L4 24GB", mean_ms="99999"), "memory", "paging"),
    (attention_row(mean_ms="0.5", precision="tf32", d_model="16"), "traffic", "kept no gradient"),
    # 37.6 TFLOP/s over the whole square, 18.8 over half of it
    (attention_row(8192, compiled="yes", d_model="128", mean_ms="7.317"), "arithmetic", "TF32"),
    (TOO_FAST | {"gpu_basis": "inferred"}, "arithmetic", "GPU inferred, not stated"),
    (model_row(gpu="RTX 2080 Ti", mean_ms="90"), "arithmetic", "for its clock"),
    (TOO_FAST | {"gpu": "NVIDIA A100"}, "arithmetic", "on A100"),
    (TOO_FAST | {"mean_ms": "9"}, "arithmetic", "9 ms is at least"),
    (TOO_FAST | {"mean_ms": "9.0000"}, "arithmetic", "9 ms is 456"),
]


def test_what_breaks_physics_is_impossible_and_says_why() -> None:
    for row, rule, said in BROKEN:
        (finding,) = audited(row).findings_of("impossible")
        assert (finding.rule, finding.places) == (rule, ("line 2",)), row
        assert said in f"{finding.figure}; {finding.limit}; {finding.likely_cause}"


def at_19_7(products: float, **changes: str) -> Row:
    """So many products of width 128 over eight whole squares of 16384, 1 % faster than 19.5 TFLOP/s."""
    ms = products * 2 * 8 * 16384**2 * 128 / 19.7 / 1e9
    return attention_row(16384, **{"d_model": "128", "mean_ms": f"{ms:.6g}"} | changes)


def of_the_square(ms: str, phase: str = "fwd_bwd") -> Row:
    """Six products and five passes of softmax over 2 GiB of scores, less a cache of 40 MiB, at 2.039 TB/s: 11.36 ms."""
    return attention_row(8192, d_model="16", precision="tf32", phase=phase, mean_ms=ms)


NAMED = without(TOO_FAST, "d_model", "d_ff", "n_layers", "batch")
ADAMW = model_row("2.7B") | {"phase": "optimizer", "optimizer": "AdamW"}

ROWS: list[tuple[Row, set[str]]] = [
    (model_row(mean_ms="210"), {ARITHMETIC}),
    (model_row(mean_ms="223"), {"suspicious: near peak"}),
    # No card has twice the 126 TFLOP/s of the fastest in fp32, and a name may mean another shape
    (TOO_FAST | {"gpu": "", "mean_ms": "16.0"}, {ARITHMETIC}),
    (TOO_FAST | {"gpu": "Apple M3", "mean_ms": "16.0"}, {ARITHMETIC}),
    (TOO_FAST | {"gpu": "Apple M3", "mean_ms": "17"}, set()),
    (NAMED, {"suspicious: arithmetic"}),
    (without(NAMED, "phase", "mean_ms", "std_ms") | {"forward_ms": "90"}, {"suspicious: arithmetic"}),
    (NAMED | {"size": "a large one"}, set()),
    # 28 bytes of 3.4 billion parameters, less twice a cache of 40 MiB, at 2.039 TB/s: 46.74 ms
    (ADAMW | {"mean_ms": "46.6"}, {"impossible: update"}),
    (ADAMW | {"mean_ms": "46.8"}, set()),
    (ADAMW | {"mean_ms": "46.6", "optimizer": ""}, {"suspicious: update"}),
    (ADAMW | {"mean_ms": "1", "optimizer": "sgd"}, set()),
    (ADAMW | {"mean_ms": "1", "precision": "bf16"}, set()),
    (model_row(mean_ms="231"), set()),
    # torch.compile keeps the whole square, a kernel of blocks half of it, and one product more in its backward pass
    (at_19_7(2, compiled="yes"), {ARITHMETIC, FUSION}),
    (at_19_7(2, compiled="yes", attention="pytorch"), {ARITHMETIC, FUSION}),
    (at_19_7(2, attention="flash"), set()),
    (at_19_7(2, attention="flash", causal_mask="no"), {ARITHMETIC}),
    (at_19_7(2, attention="a new idea"), set()),
    (at_19_7(2.5, phase="backward", attention="triton_fa2"), {ARITHMETIC}),
    (at_19_7(2.5, phase="backward", attention="a new idea"), set()),
    (at_19_7(3.5, phase="fwd_bwd", attention="flash"), {ARITHMETIC}),
    (attention_row(16384, mean_ms="1", attention="mamba"), set()),
    (of_the_square("11.2"), {TRAFFIC}),
    (of_the_square("11.5"), set()),
    # 3.19 ms at the peak: of whole milliseconds 3 may be 3.5, and 3.0 may not
    (attention_row(8192, attention="a new idea", d_model="58", mean_ms="3.0"), {ARITHMETIC}),
    (attention_row(8192, attention="a new idea", d_model="58", mean_ms="3"), set()),
    (model_row(std_ms="270"), {OUTLIER}),
    (model_row(std_ms="900"), {OUTLIER}),
    (model_row(std_ms="270", warmup="0"), {"notice: no warm-up"}),
    (model_row(std_ms="110", n_measured="100"), {"notice: scatter"}),
    (model_row(std_ms="60"), set()),
    (model_row(std_ms="270", n_measured=""), set()),
]


def test_a_time_is_held_to_what_its_labels_leave_open() -> None:
    for row, found in ROWS:
        assert rules(row) == found, row


NOT_JUDGED: list[tuple[Row, str]] = [
    ({"gpu": ""}, "no GPU stated"), ({"gpu": "Apple M3"}, "no datasheet"), ({"context": ""}, "no context"),
    ({"batch": ""}, "no batch"), ({"precision": "half?"}, "not certain"), ({"precision": "fp8"}, "not certain"),
    ({"precision": ""}, "precision not stated"), ({"gpu": "T4", "precision": "bf16_amp"}, "no bf16 path"),
    ({"phase": "optimizer", "optimizer": "sgd"}, "no known arithmetic"),
    ({"mean_ms": ""}, "no figure"), ({"d_model": "0"}, "is 0"),
    ({"gpu": "8x A100-80GB"}, "several cards"), ({"gpu": "A100-80GB (8 GPUs)"}, "several cards"),
    ({"world_size": "8"}, "several cards"), ({"gpu": "4 x M3", "mean_ms": "1"}, "several cards"),
    ({"gpu": "M3 node", "mean_ms": "1"}, "datasheet"), ({"gpu": "M3", "precision": "int8", "mean_ms": "1"}, "M3"),
    ({"size": "gpt2-large"}, "another architecture"),
    ({"attention": "sliding window"}, "a part of the square"), ({"window_size": "256"}, "a part of the square"),
    ({"world_size": "1"}, ""), ({"window": "none"}, ""), ({"tf32": "no"}, ""), ({"gpu": "A100 (8x box)"}, ""),
]  # fmt: skip


def test_what_cannot_be_judged_is_no_finding_and_counted_with_its_reason() -> None:
    """The last take nothing away, and leave the row judged."""
    for changes, reason in NOT_JUDGED:
        audit = audited(TOO_FAST | changes)
        assert (bool(audit.findings), audit.counts()["not judged"]) == ((False, 1) if reason else (True, 0)), changes
        assert all(reason in one.sentence() for one in audit.not_judged), changes


def test_one_slow_round_gives_mean_and_spread() -> None:
    assert slow_round(1.9, 2.7, 10) == pytest.approx((1.0, 10.0))
    assert slow_round(34.2, 34.4, 10) == pytest.approx((22.7, 137), rel=0.01)
    assert [slow_round(1.0, 3.0, 10), slow_round(1.0, 0.5, 2), slow_round(1.0, 0.0, 10)] == [None] * 3


def test_a_slow_round_is_told_of_a_record_by_its_mean_and_of_a_table_by_either_deviation(tmp_path: Path) -> None:
    """The median, taken for the mean, would rule it out, as would the population's deviation where it is a sample's."""
    of_record = audit_file(write_record(tmp_path / "run.json", record([timed(seconds=(1.0, 1.0, 13.0))]))).findings
    of_table = audited(model_row(mean_ms="4800", std_ms="6928.2", n_measured="3")).findings
    (outlier,) = (one for one in of_table if one.rule == "outlier")
    assert [one.figure for one in of_record] == ["5000 +- 5657 ms"]
    assert [one.why for one in (*of_record, outlier)] == [
        "one round of 1.3e+04 ms among 2 rounds of 1000 ms gives the same mean and spread",
        "one round of 1.28e+04 ms among 2 rounds of 800 ms gives the same mean and spread",
    ]


def memory_row(**changes: str) -> Row:
    return {
        "source": "somebody/repository:memory.md", "gpu": "A100-80GB", "object": "model(2025)", "size": "2.7B",
        "d_model": "2560", "n_layers": "32", "batch": "4", "context": "512", "precision": "fp32", "compiled": "no",
        "mode": "full_step_peak", "value": "65.5", "unit": "GiB", "checkpoint": "", "optimizer": "", **changes,
    }  # fmt: skip


def held(gib: str, **changes: str) -> Row:
    """What attention alone holds before its backward pass."""
    labels = {"object": "attention", "d_model": "64", "batch": "8", "context": "8192", "mode": "before_backward"}
    return memory_row(**labels | {"value": gib} | changes)


def peak(gib: str, **changes: str) -> Row:
    return memory_row(mode="forward_peak", value=gib, **changes)


def kernel_row(name: str, calls: int, average: float, percent: float, **changes: str) -> Row:
    return {
        "source": "somebody/repository:profile.md", "gpu": "A100-80GB", "size": "small", "context": "128",
        "scope": "forward", "kernel": name, "calls": str(calls), "total_ms": f"{calls * average / 1e3:.6g}",
        "avg_us": str(average), "std_us": "", "pct_of_gpu_time": str(percent), **changes,
    }  # fmt: skip


PROFILE = [
    kernel_row("ampere_sgemm", 85, 100.0, 85.0),
    kernel_row("elementwise", 100, 10.0, 10.0),
    kernel_row("reduce", 50, 10.0, 5.0),
]
INPUTS = held("1.06", mode="after_inputs")
AMOUNT, WEIGHTS, OVER_100 = "impossible: amount", "impossible: weights", "inconsistent: sum of shares"
SAVED, SQUARES = "suspicious: saved tensors", "suspicious: saved squares"

TABLES: dict[str, tuple[list[Row], set[str]]] = {
    "a step": ([memory_row()], set()),
    "more than the card holds": ([memory_row(value="90")], {"impossible: card memory"}),
    "a negative amount": ([memory_row(value="-1")], {AMOUNT}),
    "less than the weights": ([peak("9")], {WEIGHTS}),
    "less than the weights of a size by its name": (
        [without(peak("9"), "d_model", "n_layers")], {"suspicious: weights"},
    ),
    "half weights under autocast": ([peak("8", precision="bf16 autocast")], {WEIGHTS}),
    "half weights": ([peak("8", precision="bf16")], set()),
    "no optimizer state": ([memory_row(value="26", unit="GB")], {"suspicious: optimizer state"}),
    "an optimizer without moments": ([memory_row(optimizer="SGD", value="26"), memory_row(optimizer="adamw")], set()),
    "too little saved": ([memory_row(value="51.4")], {SAVED}),
    "a shorter context": ([memory_row(context="128", value="51.4")], set()),
    "a compiled step": ([memory_row(checkpoint="No", compiled="yes", value="51.4")], set()),
    "two squares": ([held("4.06")], set()),
    "more than two squares": ([held("3.06")], {SQUARES}),
    "no square": ([held("0.06")], {SQUARES}),
    "four squares": ([held("8.06")], {SQUARES}),
    "squares beside larger inputs": ([held("4.06"), INPUTS], {SQUARES}),
    "two squares beside larger inputs": ([held("5.06"), INPUTS], set()),
    "attention computed again": ([held("0.06", checkpoint="attention")], set()),
    "a peak that shrinks": (
        [memory_row(), memory_row(context="1024", value="60")], {"inconsistent: shrinking peak", SAVED},
    ),
    "one that another set-up lowers": (
        [memory_row(checkpoint="none"), memory_row(checkpoint="block", context="1024", value="51.4")], set(),
    ),
    "a phase by its column and a peak by its heading": (
        [without(memory_row(), "mode", "value", "unit") | {"phase": "Full step", "peak_gb": "2"}], {WEIGHTS},
    ),
    "a profile": (PROFILE, set()),
    "copies beside kernels": ([*PROFILE, kernel_row("[memory op] HtoD", 15, 10.0, 1.5)], set()),
    "the largest alone": ([PROFILE[0] | {"calls": "60", "total_ms": "6.0"}], set()),  # 25 others fit into 15 %
    "average": ([*PROFILE, PROFILE[1] | {"avg_us": "64.9"}], {"inconsistent: calls x average", OVER_100}),
    "share": ([*PROFILE, PROFILE[1] | {"pct_of_gpu_time": "23.1"}], {"inconsistent: share", OVER_100}),
    "a copied cell": (
        [*PROFILE, kernel_row("copy", 20, 10.0, 10.0)], {"inconsistent: copied cell", "inconsistent: share", OVER_100},
    ),
    "shares of more than all": ([*PROFILE, kernel_row("twice", 85, 100.0, 85.0)], {OVER_100}),
    "a negative share": ([*PROFILE, PROFILE[1] | {"pct_of_gpu_time": "-10"}], {AMOUNT}),
    "a total of nothing": ([*PROFILE, kernel_row("idle", 1, 5.0, 0.1, total_ms="0")], {AMOUNT}),
    "lost products": ([kernel_row("ampere_sgemm", 60, 141.7, 85.0), *PROFILE[1:]], {"suspicious: missing products"}),
    "products beyond the card": ([kernel_row("sgemm", 85, 50.0, 85.0)], {"suspicious: matrix products"}),
}  # fmt: skip


def test_mistakes_in_memory_and_profiles_are_found_and_honest_ones_accused_of_nothing() -> None:
    assert {what: rules(*rows) for what, (rows, _) in TABLES.items()} == {
        what: found for what, (_, found) in TABLES.items()
    }


OPEN: list[Row] = [
    {"precision": "bf16", "value": "7"}, {"gpu": "8x H100", "value": "2"}, {"precision": "int8", "value": "3.5"},
    {"d_ff": "6848", "value": "10"}, {"size": "a block", "value": "2"}, {"value": "90"},
    {"gpu": "V100 (32GB)", "value": "20"}, {"gpu": "Tesla V100", "value": "30"}, {"gpu": "A100", "value": "70"},
]  # fmt: skip


def test_labels_that_leave_fewer_bytes_or_a_larger_card_open_are_given_the_benefit_of_the_doubt() -> None:
    row = {"gpu": "H100", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "unit": "GB"}
    row |= {"precision": "fp32", "d_ff": ""}
    for changes in OPEN:
        other = {"value": "200"} if float(changes["value"]) > 15 else {"value": changes["value"]}
        accused = [{one.verdict for one in audited(row | labels).findings} & {*ACCUSING} for labels in (changes, other)]
        assert list(map(bool, accused)) == [False, True], changes
