"""The audit of the published tables: every cell that was judged to break physics is found, no right one accused."""

from dataclasses import replace
from pathlib import Path

import pytest

from claims import audit_score
from claims.held_out_attention import breaks_physics, least_bytes, least_flops
from perf_tests.audit.figures import IMPOSSIBLE, SUSPICIOUS
from perf_tests.audit.tables import Audit, audit_file
from perf_tests.records.published import PUBLISHED, published_rows


@pytest.fixture(scope="module")
def audit() -> Audit:
    return audit_file(audit_score.table_path("e2e_timing"))


def scored(audit: Audit, name: str = "e2e_timing") -> audit_score.Score:
    return audit_score.score(name, audit, audit_score.cells(name), audit_score.cells(f"judged_{name}"))


@pytest.mark.parametrize("name, breaking, right", [("e2e_timing", 200, 700), ("attention_timing", 10, 800)])
def test_every_cell_that_breaks_physics_is_found_and_no_right_one_accused(name: str, breaking: int, right: int) -> None:
    result = scored(audit_file(audit_score.table_path(name)), name)
    assert len(result.breaking) >= breaking
    assert len(result.right) > right
    assert result.missed == set()
    assert result.accused == set()
    assert len(result.suspected) <= 0.02 * len(result.right)
    assert len(result.cause_named) >= 0.9 * len(result.breaking)


@pytest.mark.parametrize("name", ["memory", "kernels"])
def test_no_right_row_of_memory_or_kernels_is_accused(name: str) -> None:
    audit, table = audit_file(audit_score.table_path(name)), audit_score.cells(name)
    result = audit_score.whole_score(name, audit, table)
    assert len(result.right) > 200
    assert (result.accused, result.suspected) == (set(), set())


def test_compiled_cells_that_break_physics_are_among_those_judged() -> None:
    judged = [cell for name in audit_score.JUDGED for cell in audit_score.cells(f"judged_{name}")]
    compiled = [cell for cell in judged if cell["compiled"] == "yes" and cell["breaks_physics"] == "yes"]
    assert len(compiled) > 40


def test_a_suspicion_that_was_judged_right_does_not_count(audit: Audit) -> None:
    (first, *_) = (finding for finding in audit.findings_of(SUSPICIOUS) if finding.rule == "compiled did nothing")
    assert not scored(audit).suspected.intersection(first.places)
    assert scored(replace(audit, findings=[replace(first, rule="another")])).suspected == set(first.places)


def test_a_finding_less_is_a_cell_missed(audit: Audit) -> None:
    fewer = replace(audit, findings=audit.findings_of(IMPOSSIBLE)[1:])
    assert len(scored(fewer).missed) == 1


def test_a_right_cell_that_is_accused_counts(audit: Audit) -> None:
    right = min(scored(audit).right)
    wrongly = replace(audit.findings_of(IMPOSSIBLE)[0], places=(right,))
    assert scored(replace(audit, findings=[*audit.findings, wrongly])).accused == {right}


def test_a_judgement_on_no_cell_is_refused(audit: Audit) -> None:
    judged = [{**audit_score.cells("judged_e2e_timing")[0], "mean_ms": "1"}]
    with pytest.raises(ValueError, match="1 judged cells are not in the table"):
        audit_score.score("e2e_timing", audit, audit_score.cells("e2e_timing"), judged)


def test_every_known_case_is_found() -> None:
    audits = {f"{name}.csv": audit_file(audit_score.table_path(name)) for name in audit_score.TABLES}
    assert [case for case, is_found in audit_score.known_cases_found(audits) if not is_found] == []


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv*")), ids=lambda path: path.name)
def test_each_published_table_is_in_its_readme(path: Path) -> None:
    assert f"`{path.name}`" in (PUBLISHED / "README.md").read_text()
    assert all(None not in row and None not in row.values() for row in published_rows(path.name))


def held_out_cell(**changes: str) -> dict[str, str]:
    cell = {
        "source": "somebody", "gpu": "A100-40GB", "gpu_basis": "stated", "batch": "1", "d_model": "64",
        "seq_len": "16384", "causal_mask": "yes", "precision": "fp32", "compiled": "no", "attention": "naive",
        "phase": "forward", "mean_ms": "10",
    }  # fmt: skip
    return {**cell, **changes}


def test_a_held_out_cell_is_judged_by_its_products() -> None:
    """Two products of 2 x 16384 x 16384 x 64: 68.7 GFLOP, 3.52 ms at 19.5 TFLOP/s."""
    assert least_flops(held_out_cell()) == 2 * 2 * 16384**2 * 64
    assert least_flops(held_out_cell(attention="triton_fa2", phase="backward")) == 5 * 16384**2 * 64
    assert breaks_physics(held_out_cell(mean_ms="3.5"))
    assert not breaks_physics(held_out_cell(mean_ms="3.6"))


def test_a_held_out_cell_is_judged_by_its_traffic() -> None:
    """Scores of 1 GiB, written and read: 1.05 ms at 2.039 TB/s, where the products take 0.22 ms in bf16."""
    long = held_out_cell(seq_len="23170", precision="bf16")
    assert least_bytes(long, 40 * 2**20) == pytest.approx(2 * 2**30, rel=1e-3)
    assert breaks_physics({**long, "mean_ms": "1.0"})
    assert not breaks_physics({**long, "mean_ms": "1.1"})
    assert not breaks_physics({**long, "mean_ms": "1.0", "attention": "triton_fa2"})
    assert not breaks_physics({**long, "mean_ms": "1.0", "compiled": "yes"})


def test_the_held_out_table_has_no_hand_in_the_rest() -> None:
    assert not {*audit_score.HELD_OUT} & {*audit_score.TABLES}
    held_out = {f"{name}.csv" for name in audit_score.HELD_OUT}
    assert not held_out & {cell["file"] for cell in audit_score.cells("known_cases")}


@pytest.mark.parametrize("name, breaking", [("flash_attention", 15), ("compiled_attention", 10)])
def test_the_score_of_the_tables_that_are_judged_without_the_audits_code(name: str, breaking: int) -> None:
    table = audit_score.cells(name)
    result = audit_score.held_out_score(name, audit_file(audit_score.table_path(name)), table)
    assert len(result.breaking) + len(result.right) == sum(bool(cell["mean_ms"]) for cell in table)
    assert len(result.found) == breaking
    assert (result.missed, result.accused) == (set(), set())
    assert len(result.suspected) <= 0.02 * len(result.right)
