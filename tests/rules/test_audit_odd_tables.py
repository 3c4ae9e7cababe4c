"""`python -m perf_tests audit`: an odd but honest table is accused of nothing, and is read under any usual heading."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import ACCUSING, IMPOSSIBLE, labelled_precision
from perf_tests.audit.tables import Audit, audit_file
from tests.support.audited_tables import audited, rules
from tests.support.foreign_tables import Row, attention_row, model_row, written

TOO_FAST = model_row(mean_ms="90")
"""Of fp32 on one A100: impossible under the labels that `model_row` has."""


def accuses(audit: Audit) -> bool:
    return any(verdict in ACCUSING for verdict, _ in rules(audit))


@pytest.mark.parametrize(
    "label, precision",
    [
        ("fp32", "fp32"),
        ("torch.float32", "fp32"),
        ("fp32, TF32 off", "fp32"),
        ("fp32 (no tf32)", "fp32"),
        ("fp32 allow_tf32=False", "fp32"),
        ("fp32 (highest)", "fp32"),
        ("fp32 (TF32 on)", "tf32"),
        ("fp32/tf32", "tf32"),
        ("float32 (high)", "tf32"),
        ("AMP bf16", "bf16"),
        ("bf16 weights, fp32 sums", "bf16"),
        ("fp8", None),
        ("bf16 (fp8 products)", None),
        ("fp16, fp16 accumulate", None),
        ("int8", None),
        ("bf16?", None),
    ],
)
def test_a_label_of_several_precisions_counts_as_the_fastest(label: str, precision: str | None) -> None:
    assert labelled_precision(label) == precision


@pytest.mark.parametrize(
    "changes, reason",
    [
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
def test_a_label_under_which_less_is_computed_leaves_a_row_unjudged(changes: Row, reason: str, tmp_path: Path) -> None:
    assert accuses(audited(tmp_path, [TOO_FAST]))
    audit = audited(tmp_path, [TOO_FAST | changes])
    assert not audit.findings
    assert reason in next(iter(audit.reasons()))


@pytest.mark.parametrize("changes", [{"world_size": "1"}, {"window": "none"}, {"tf32": "no"}, {"gpu": "A100 (8x box)"}])
def test_a_label_that_takes_nothing_away_leaves_a_row_judged(changes: Row, tmp_path: Path) -> None:
    assert accuses(audited(tmp_path, [TOO_FAST | changes]))


@pytest.mark.parametrize("attention", ["linear attention", "block-sparse", "mamba"])
def test_attention_to_a_part_of_the_keys_is_not_held_to_the_square(attention: str, tmp_path: Path) -> None:
    row = attention_row(16384, mean_ms="1", attention=attention)
    assert not audited(tmp_path, [row]).findings


@pytest.mark.parametrize("column", ["tf32", "allow_tf32", "matmul_precision"])
def test_tf32_in_a_column_of_its_own_is_a_label(column: str, tmp_path: Path) -> None:
    assert not audited(tmp_path, [{**TOO_FAST, column: "high" if column == "matmul_precision" else "True"}]).findings


def test_a_time_is_held_to_what_its_digits_may_stand_for(tmp_path: Path) -> None:
    """2.4 ms at the peak; printed as whole milliseconds, 2 may be 2.4, and 2.0 may not."""
    seconds = 4 * 8 * 4096**2 * 64 / 2 / 19.5e12
    printed = f"{seconds * 1e3:.1f}"
    below = f"{float(printed) - 0.3:.1f}"
    exact, whole = (attention_row(4096, attention="a new idea", mean_ms=ms) for ms in (below, f"{float(below):.0f}"))
    assert rules(audited(tmp_path, [exact])) == {(IMPOSSIBLE, "arithmetic")}
    assert not accuses(audited(tmp_path, [whole]))


@pytest.mark.parametrize("gpu, gigabytes", [("V100 (32GB)", 20), ("Tesla V100", 30), ("H100", 90), ("A100", 70)])
def test_a_name_that_leaves_the_memory_open_allows_the_largest_card(gpu: str, gigabytes: int, tmp_path: Path) -> None:
    row = {"gpu": gpu, "size": "xl", "mode": "peak", "value": str(gigabytes), "unit": "GB"}
    assert not audited(tmp_path, [row]).findings
    assert accuses(audited(tmp_path, [{**row, "value": "150"}]))


def test_a_name_that_leaves_the_form_factor_open_is_judged_by_the_fastest_card(tmp_path: Path) -> None:
    assert rules(audited(tmp_path, [TOO_FAST | {"gpu": "NVIDIA A100"}])) == {(IMPOSSIBLE, "arithmetic")}


PEAK = {"gpu": "H100", "size": "2.7B", "d_model": "2560", "n_layers": "32", "mode": "peak", "unit": "GB"}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "value": "7"},
        {"gpu": "8x H100", "precision": "fp32", "value": "2"},
        {"precision": "int8", "value": "3.5"},
        {"precision": "fp32", "d_ff": "6848", "value": "10"},
    ],
)
def test_weights_that_take_fewer_bytes_by_their_labels_are_not_held_to_fp32(changes: Row, tmp_path: Path) -> None:
    assert accuses(audited(tmp_path, [PEAK | changes | {"gpu": "H100", "precision": "fp32", "d_ff": ""}]))
    assert not accuses(audited(tmp_path, [PEAK | changes]))


def test_phases_with_columns_of_their_own_are_read_as_rows(tmp_path: Path) -> None:
    narrow = [model_row(phase=phase, mean_ms=ms) for phase, ms in (("forward", "90"), ("backward", "800"))]
    labels = {name: text for name, text in narrow[0].items() if name not in ("phase", "mean_ms", "std_ms")}
    wide = labels | {"Forward (ms)": "90", "fwd_std_ms": "0.1", "mean_backward_ms": "800", "bwd_std_ms": "0.1"}
    path = written(tmp_path, [wide], "wide.csv")
    audit = audit_file(path)
    assert rules(audit) == rules(audited(tmp_path, narrow))
    assert audit.places == ["line 2 Forward (ms)", "line 2 mean_backward_ms"]
    assert audit.findings_of(IMPOSSIBLE)[0].places == ("line 2 Forward (ms)",)


@pytest.mark.parametrize(
    "labels",
    [
        {"B": "8", "N": "16384", "d": "128"},
        {"BATCH": "2", "H": "4", "N_CTX": "16384", "HEAD_DIM": "128"},
        {"batch": "8", "seq_len": "16k", "head_dim": "128"},
        {"batch": "8", "seqlen": "16,384", "headdim": "128"},
    ],
)
def test_attention_is_read_under_the_letters_in_use(labels: Row, tmp_path: Path) -> None:
    """112.8 ms are the products of its forward pass over the whole square at the peak of an A100."""
    row = {"gpu": "A100", "dtype": "fp32", "impl": "naive", "pass": "forward", **labels}
    finding, *_ = audited(tmp_path, [{**row, "ms": "50.0"}]).findings_of(IMPOSSIBLE)
    assert "d 128 seq 16384 batch 8" in finding.cell
    assert not accuses(audited(tmp_path, [{**row, "ms": "150.0"}]))


def test_a_table_of_times_beside_amounts_is_one_of_times(tmp_path: Path) -> None:
    labels = {"gpu": "A100", "batch": "8", "d_model": "128", "seq_len": "16384", "precision": "fp32", "impl": "naive"}
    amounts = {"peak_memory_mib": "26000"}
    narrow = labels | amounts | {"phase": "forward", "mean_ms": "9.0"}
    for row in (narrow, labels | amounts | {"forward_ms": "9.0", "backward_ms": "\N{EM DASH}"}):
        audit = audited(tmp_path, [row])
        assert audit.kind == "attention timing"
        assert (IMPOSSIBLE, "arithmetic") in rules(audit)


def test_a_rate_beyond_what_the_digits_allow_is_a_lowest_one(tmp_path: Path) -> None:
    exact, whole = (audited(tmp_path, [TOO_FAST | {"mean_ms": ms}]).findings[0].figure for ms in ("9.0000", "9"))
    assert exact.startswith("9 ms is ")
    assert whole.startswith("9 ms is at least ")
