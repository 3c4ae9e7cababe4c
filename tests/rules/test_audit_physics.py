"""`python -m perf_tests audit`: honest times pass, and what no hardware can do is impossible."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import IMPOSSIBLE, NOTICE
from tests.support.audited_tables import audited, rules
from tests.support.foreign_tables import Row, attention_row, attention_table, model_row, model_table


@pytest.mark.parametrize("table", [model_table, attention_table])
def test_an_honest_table_is_accused_of_nothing(table: object, tmp_path: Path) -> None:
    audit = audited(tmp_path, table())  # type: ignore[operator]
    assert rules(audit) <= {(NOTICE, "launch-bound")}
    assert audit.not_judged == []


@pytest.mark.parametrize(
    "row, rule, cause",
    [
        (model_row(mean_ms="90"), "arithmetic", "TF32"),
        (model_row("2.7B", precision="fp32", mean_ms="90"), "arithmetic", "another precision"),
        (model_row(gpu="T4-16GB", mean_ms="350"), "arithmetic", "half the batch"),
        (model_row(mean_ms="0.28"), "arithmetic", "wrong unit"),
        (model_row(mean_ms="0"), "time", "unit"),
        (model_row(mean_ms="-3"), "time", "sign"),
        (model_row("2.7B", phase="fwd_bwd", gpu="L4 24GB", mean_ms="99999"), "memory", "paging"),
        (attention_row(mean_ms="0.5", precision="tf32", d_model="16"), "traffic", "kept no gradient"),
    ],
)
def test_what_breaks_physics_is_impossible(row: Row, rule: str, cause: str, tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [row]).findings_of(IMPOSSIBLE)
    assert finding.rule == rule
    assert cause in finding.likely_cause
    assert finding.places == ("line 2",)


def test_a_forward_pass_that_was_not_waited_for_is_told_by_the_time_that_the_step_has_more(tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [model_row(mean_ms="180"), model_row(phase="fwd_bwd")]).findings_of(IMPOSSIBLE)
    assert "line 3" not in finding.places
    forward_alone = audited(tmp_path, [model_row("2.7B", mean_ms="500"), model_row("2.7B", phase="fwd_bwd")])
    (finding,) = forward_alone.findings_of(IMPOSSIBLE)
    assert "without waiting for the device; the missing time is in line 3" in finding.likely_cause


def attention_ms(products: float, tera_flops_per_second: float, length: int = 16384, width: int = 128) -> str:
    """The time of so many products over eight whole squares."""
    return f"{products * 2 * 8 * length**2 * width / tera_flops_per_second / 1e9:.6g}"


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
    changes: Row, products: float, is_impossible: bool, tmp_path: Path
) -> None:
    """At 1 % above 19.5 TFLOP/s: torch.compile keeps the whole square, a kernel of blocks half of it, and one product
    more in its backward pass."""
    row = attention_row(16384, **{"d_model": "128", "mean_ms": attention_ms(products, 19.7)} | changes)
    found = rules(audited(tmp_path, [row]))
    assert ((IMPOSSIBLE, "arithmetic") in found) == is_impossible


def test_a_compiled_pass_in_tf32_is_impossible_where_its_products_exceed_the_peak(tmp_path: Path) -> None:
    """A100: 37.6 TFLOP/s over the whole square, 18.8 over half of it."""
    row = attention_row(8192, compiled="yes", d_model="128", mean_ms="7.317")
    (finding,) = audited(tmp_path, [row]).findings_of(IMPOSSIBLE)
    assert "TF32" in finding.likely_cause


def test_the_label_is_judged_and_comments_are_not_read(tmp_path: Path) -> None:
    row = model_row(precision="fp32", mean_ms="90")
    plain = audited(tmp_path, [row])
    commented = audited(tmp_path, [{**row, "precision": "tf32(labelled fp32)", "note": "TF32", "status": "wrong"}])
    assert rules(plain) == rules(commented) == {(IMPOSSIBLE, "arithmetic")}


def test_an_inferred_gpu_is_said_to_be_one(tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [model_row(mean_ms="90", gpu_basis="inferred")]).findings_of(IMPOSSIBLE)
    assert "GPU inferred, not stated" in finding.limit


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"gpu": ""}, "no GPU stated"),
        ({"gpu": "Apple M3"}, "no datasheet"),
        ({"context": ""}, "no context"),
        ({"precision": "half?"}, "not certain"),
        ({"gpu": "T4", "precision": "bf16_amp"}, "no bf16 path"),
        ({"phase": "optimizer"}, "no known arithmetic"),
        ({"mean_ms": ""}, "no figure"),
        ({"d_model": "0"}, "d_model is 0"),
    ],
)
def test_what_cannot_be_judged_is_counted_with_its_reason(changes: Row, reason: str, tmp_path: Path) -> None:
    audit = audited(tmp_path, [{**model_row(), **changes}])
    assert audit.counts()["not judged"] == 1
    assert reason in next(iter(audit.reasons()))
