"""The audit of compiled times: what fusion and saved launches can explain, and what they cannot."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import SUSPICIOUS
from perf_tests.audit.tables import audit_file
from tests.support.audited_tables import audited, rules, written_json
from tests.support.foreign_tables import attention_row, model_row
from tests.support.synthetic import record, timed


def test_more_than_fusion_can_save_is_suspicious(tmp_path: Path) -> None:
    """At width 16 the products stay below the peak in TF32's time too: passes through memory tell."""
    eager = attention_row(8192, d_model="16")
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "7"}])) == set()
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "3.5"}])) == {
        (SUSPICIOUS, "more than fusion")
    }
    slow = {**eager, "mean_ms": "90"}
    assert (SUSPICIOUS, "more than fusion") in rules(
        audited(tmp_path, [slow, {**eager, "compiled": "yes", "mean_ms": "7"}])
    )


def test_a_model_compiled_into_another_precision_is_suspicious(tmp_path: Path) -> None:
    """Four times as fast, where what fusion leaves out is a fraction of the time."""
    eager = {**model_row("xl", mean_ms="600"), "precision": "tf32"}
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "500"}])) == set()
    found = rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "150"}]))
    assert found == {(SUSPICIOUS, "more than fusion")}


def test_a_compiled_step_is_held_to_the_eager_one_of_its_optimizer(tmp_path: Path) -> None:
    step = model_row("xl") | {"precision": "tf32", "phase": "full_step"}
    rows = [
        {**step, "optimizer": optimizer, "compiled": compiled, "mean_ms": time}
        for optimizer, compiled, time in (("loop", "no", "3000"), ("fused", "no", "1800"), ("fused", "yes", "1600"))
    ]
    assert rules(audited(tmp_path, rows)) == set()
    assert (SUSPICIOUS, "more than fusion") in rules(audited(tmp_path, [{**row, "optimizer": ""} for row in rows]))


def test_launches_that_compiling_saves_are_not_taken_for_fusion(tmp_path: Path) -> None:
    eager = model_row("small", 128, mean_ms="40")
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "9"}])) == set()


@pytest.mark.parametrize("compiled_peak, is_found", [(1000, True), (700, False)])
def test_a_compiler_that_saved_memory_did_something(compiled_peak: int, is_found: bool, tmp_path: Path) -> None:
    rows = [
        timed(f"test_{phase}[{execution}]", phase=phase, execution=execution, peak_allocated_bytes=peak)
        for execution, peak in (("eager", 1000), ("compiled", compiled_peak))
        for phase in ("forward", "backward")
    ]
    audit = audit_file(written_json(tmp_path, record(rows)))
    assert ((SUSPICIOUS, "compiled did nothing") in rules(audit)) == is_found
