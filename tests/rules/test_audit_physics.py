"""Honest figures pass, and what no hardware can do is impossible: times and amounts of memory."""

from tests.support.audited_tables import TOO_FAST, Row, attention_row, audited, model_row, model_table, rules, without

ARITHMETIC, TRAFFIC, UPDATE = "arithmetic", "traffic", "update"


def test_an_honest_table_is_accused_of_nothing() -> None:
    alone = [
        attention_row(n, p, way) for n in (4096, 8192, 16384) for p in ("forward", "backward") for way in ("no", "yes")
    ]
    for table in (model_table(), alone):
        assert (audited(*table).findings, audited(*table).not_judged) == ([], [])


BROKEN: list[tuple[Row, str, str]] = [
    (TOO_FAST, ARITHMETIC, "TF32 could, with up to 156 TFLOP/s"),
    (TOO_FAST | {"mean_ms": "20"}, ARITHMETIC, "nor that of TF32, 156 TFLOP/s"),
    (TOO_FAST | {"precision": "tf32", "mean_ms": "20"}, ARITHMETIC, "exceeds its peak rate;"),
    (model_row(gpu="T4-16GB", mean_ms="350"), ARITHMETIC, "exceeds its peak rate;"),  # which has no TF32
    (model_row(mean_ms="0"), "time", "takes time"),
    (model_row(mean_ms="-3"), "time", "takes time"),
    (model_row("2.7B", phase="fwd_bwd", gpu="L4 24GB", mean_ms="99999"), "memory", "GiB must be resident"),
    (attention_row(mean_ms="0.5", precision="tf32", d_model="16"), TRAFFIC, "do not fit into the cache"),
    # 37.6 TFLOP/s over the whole square, 18.8 over half of it
    (attention_row(8192, compiled="yes", d_model="128", mean_ms="7.317"), ARITHMETIC, "TF32"),
    (TOO_FAST | {"gpu_basis": "inferred"}, ARITHMETIC, "GPU inferred, not stated"),
    (model_row(gpu="RTX 2080 Ti", mean_ms="90"), ARITHMETIC, "for its clock"),
    (TOO_FAST | {"gpu": "NVIDIA A100"}, ARITHMETIC, "on A100"),
    (TOO_FAST | {"mean_ms": "9"}, ARITHMETIC, "9 ms is at least"),
    (TOO_FAST | {"mean_ms": "9.0000"}, ARITHMETIC, "9 ms is 456"),
]


def test_what_breaks_physics_is_impossible_and_says_why() -> None:
    for row, rule, said in BROKEN:
        (finding,) = audited(row).findings
        assert (finding.rule, finding.verdict, finding.places) == (rule, "impossible", ("line 2",)), row
        assert said in f"{finding.figure}; {finding.limit}; {finding.why};", row


def at_19_7(products: float, **changes: str) -> Row:
    """So many products of width 128 over eight whole squares of 16384, 1 % faster than 19.5 TFLOP/s."""
    ms = products * 2 * 8 * 16384**2 * 128 / 19.7 / 1e9
    return attention_row(16384, **{"d_model": "128", "mean_ms": f"{ms:.6g}"} | changes)


def of_the_square(ms: str, phase: str = "fwd_bwd") -> Row:
    """Six products and five passes of softmax over 2 GiB of scores, less a cache of 40 MiB, at 2.039 TB/s: 11.36 ms."""
    return attention_row(8192, d_model="16", precision="tf32", phase=phase, mean_ms=ms)


ADAMW = model_row("2.7B") | {"phase": "optimizer", "optimizer": "AdamW"}

ROWS: list[tuple[Row, set[str]]] = [
    (model_row(mean_ms="210"), {ARITHMETIC}),
    (model_row(mean_ms="223"), set()),
    # No card has twice the 126 TFLOP/s of the fastest in fp32
    (TOO_FAST | {"gpu": "", "mean_ms": "16.0"}, {ARITHMETIC}),
    (TOO_FAST | {"gpu": "Apple M3", "mean_ms": "16.0"}, {ARITHMETIC}),
    (TOO_FAST | {"gpu": "Apple M3", "mean_ms": "17"}, set()),
    # 28 or 12 bytes of 3.4 billion parameters, less twice a cache of 40 MiB, at 2.039 TB/s: 46.74 and 20.01 ms
    (ADAMW | {"mean_ms": "46.6"}, {UPDATE}),
    (ADAMW | {"mean_ms": "46.8"}, set()),
    (ADAMW | {"mean_ms": "20.1", "optimizer": ""}, set()),
    (ADAMW | {"mean_ms": "19.9", "optimizer": ""}, {UPDATE}),
    (ADAMW | {"mean_ms": "19.9", "optimizer": "sgd"}, {UPDATE}),
    (ADAMW | {"mean_ms": "1", "precision": "bf16"}, set()),
    (model_row(mean_ms="231"), set()),
    # torch.compile keeps the whole square, a kernel of blocks half of it, and one product more in its backward pass
    (at_19_7(2, compiled="yes"), {ARITHMETIC}),
    (at_19_7(2, compiled="yes", attention="pytorch"), {ARITHMETIC}),
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
]


def test_a_time_is_held_to_what_its_labels_leave_open() -> None:
    for row, found in ROWS:
        assert rules(row) == found, row


NOT_JUDGED: list[tuple[Row, str]] = [
    ({"gpu": ""}, "no GPU stated"), ({"gpu": "Apple M3"}, "no datasheet"), ({"context": ""}, "no context"),
    ({"batch": ""}, "no batch"), ({"precision": "half?"}, "not certain"), ({"precision": "fp8"}, "not certain"),
    ({"precision": ""}, "precision not stated"), ({"gpu": "T4", "precision": "bf16_amp"}, "no bf16 path"),
    ({"phase": "optimizer", "precision": "bf16"}, "no known arithmetic"),
    ({"mean_ms": ""}, "no figure"), ({"d_model": "0"}, "is 0"),
    ({"gpu": "8x A100-80GB"}, "several cards"), ({"gpu": "A100-80GB (8 GPUs)"}, "several cards"),
    ({"world_size": "8"}, "several cards"), ({"gpu": "4 x M3", "mean_ms": "1"}, "several cards"),
    ({"gpu": "M3 node", "mean_ms": "1"}, "datasheet"), ({"gpu": "M3", "precision": "int8"}, "not certain"),
    ({"size": "gpt2-large"}, "another architecture"),
    ({"attention": "sliding window"}, "a part of the square"), ({"window_size": "256"}, "a part of the square"),
    ({"world_size": "1"}, ""), ({"window": "none"}, ""), ({"tf32": "no"}, ""), ({"gpu": "A100 (8x box)"}, ""),
]  # fmt: skip


def test_what_cannot_be_judged_is_no_finding_and_said_with_its_reason() -> None:
    """The last take nothing away, and leave the row judged."""
    for changes, reason in NOT_JUDGED:
        audit = audited(TOO_FAST | changes)
        assert (bool(audit.findings), len(audit.not_judged)) == ((False, 1) if reason else (True, 0)), changes
        assert all(reason in one.sentence() for one in audit.not_judged), changes


def memory_row(**changes: str) -> Row:
    return {
        "source": "somebody/repository:memory.md", "gpu": "A100-80GB", "object": "model(2025)", "size": "2.7B",
        "d_model": "2560", "d_ff": "10240", "n_layers": "32", "batch": "4", "context": "512", "precision": "fp32",
        "compiled": "no", "mode": "full_step_peak", "value": "65.5", "unit": "GiB", "checkpoint": "", **changes,
    }  # fmt: skip


def peak(gib: str, **changes: str) -> Row:
    return memory_row(mode="forward_peak", value=gib, **changes)


AMOUNT, WEIGHTS = "amount", "weights"

AMOUNTS: dict[str, tuple[Row, set[str]]] = {
    "a step": (memory_row(), set()),
    "more than the card holds": (memory_row(value="90"), {"card memory"}),
    "more than a GB of 1000 allows": (memory_row(value="85.8", unit="GB"), set()),
    "a negative amount": (memory_row(value="-1"), {AMOUNT}),
    "less than the weights": (peak("9"), {WEIGHTS}),
    "less than the weights on a card that is not known": (peak("9", gpu="Z9"), {WEIGHTS}),
    "less than the weights of a size by its name alone": (without(peak("9"), "d_model", "d_ff", "n_layers"), set()),
    "without a feed-forward": (without(peak("9"), "d_ff"), set()),
    "one allocation": (memory_row(value="9", mode="saved"), set()),
    "half weights under autocast": (peak("8", precision="bf16 autocast"), {WEIGHTS}),
    "half weights": (peak("8", precision="bf16"), set()),
    "a phase by its column and a peak by its heading": (
        without(memory_row(), "mode", "value", "unit") | {"phase": "Full step", "peak_gb": "2"}, {WEIGHTS},
    ),
}  # fmt: skip


def test_an_amount_is_held_to_its_card_and_a_peak_to_the_weights() -> None:
    assert {what: rules(row) for what, (row, _) in AMOUNTS.items()} == {
        what: found for what, (_, found) in AMOUNTS.items()
    }
    (unknown,) = audited(memory_row(gpu="Z9", mode="saved")).not_judged
    assert unknown.reason == "GPU 'Z9' has no datasheet here"


OPEN: list[Row] = [
    {"precision": "bf16", "value": "7"}, {"gpu": "8x H100", "value": "2"}, {"precision": "int8", "value": "3.5"},
    {"d_ff": "5000", "value": "10"}, {"size": "a block", "value": "2"}, {"value": "90"},
    {"gpu": "V100 (32GB)", "value": "20"}, {"gpu": "Tesla V100", "value": "30"}, {"gpu": "A100", "value": "70"},
]  # fmt: skip


def test_labels_that_leave_fewer_bytes_or_a_larger_card_open_are_given_the_benefit_of_the_doubt() -> None:
    row = {"gpu": "H100", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "unit": "GB"}
    row |= {"precision": "fp32", "d_ff": "10240"}
    for changes in OPEN:
        other = {"value": "200"} if float(changes["value"]) > 15 else {"value": changes["value"]}
        assert [bool(rules(row | labels)) for labels in (changes, other)] == [False, True], changes
