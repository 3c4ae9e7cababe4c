"""The audit of the published tables: every cell that was judged to break physics is found, no right one accused."""

from dataclasses import replace

import pytest

from claims import audit_score
from perf_tests.audit.tables import Audit, audit_file
from perf_tests.records.published import PUBLISHED, published_rows


@pytest.fixture(scope="module")
def audits() -> dict[str, Audit]:
    return {name: audit_file(audit_score.table_path(name)) for name in (*audit_score.TABLES, *audit_score.HELD_OUT)}


def scored(audit: Audit, name: str = "e2e_timing") -> audit_score.Score:
    if name not in audit_score.JUDGED:
        of_table = audit_score.held_out_score if name in audit_score.HELD_OUT else audit_score.whole_score
        return of_table(name, audit, audit_score.cells(name))
    return audit_score.score(name, audit, audit_score.cells(name), audit_score.cells(f"judged_{name}"))


LEAST = [
    # a table, the fewest cells that break physics and that are right, and the largest share suspected of these
    ("e2e_timing", 200, 700, 0.02), ("attention_timing", 10, 800, 0.02), ("memory", 0, 200, 0), ("kernels", 0, 200, 0),
    ("flash_attention", 15, 2133, 0.02), ("compiled_attention", 10, 70, 0.02),
]  # fmt: skip


def test_every_cell_that_breaks_physics_is_found_and_no_right_one_accused(audits: dict[str, Audit]) -> None:
    """The last two tables are judged without the audit's code."""
    for name, breaking, right, most_suspected in LEAST:
        result = scored(audits[name], name)
        assert (len(result.breaking) >= breaking, len(result.right) >= right) == (True, True), name
        assert (result.missed, result.accused) == (set(), set())
        assert len(result.suspected) <= most_suspected * len(result.right)
        assert len(result.cause_named) >= 0.9 * len(result.breaking)


def test_every_known_case_is_found_and_held_out_tables_have_no_hand_in_them(audits: dict[str, Audit]) -> None:
    of_files = {f"{name}.csv": audits[name] for name in audit_score.TABLES}
    assert [case for case, is_found in audit_score.known_cases_found(of_files) if not is_found] == []
    known = {cell["file"] for cell in audit_score.cells("known_cases")}
    assert not {f"{name}.csv" for name in audit_score.HELD_OUT} & known
    judged = [cell for name in audit_score.JUDGED for cell in audit_score.cells(f"judged_{name}")]
    assert sum(cell["compiled"] == cell["breaks_physics"] == "yes" for cell in judged) > 40


def test_the_score_counts_what_is_missed_and_accused_and_refuses_judging_no_cell(audits: dict[str, Audit]) -> None:
    audit = audits["e2e_timing"]
    first, *rest = audit.findings_of("impossible")
    assert len(scored(replace(audit, findings=rest)).missed) == 1
    right = min(scored(audit).right)
    assert scored(replace(audit, findings=[*audit.findings, replace(first, places=(right,))])).accused == {right}
    judged = [{**audit_score.cells("judged_e2e_timing")[0], "mean_ms": "1"}]
    with pytest.raises(ValueError, match="1 judged cells are not in the table"):
        audit_score.score("e2e_timing", audit, audit_score.cells("e2e_timing"), judged)


def test_each_published_table_is_in_its_readme_and_rectangular() -> None:
    names = [path.name for path in PUBLISHED.glob("*.csv*")]
    assert [name for name in names if f"`{name}`" not in (PUBLISHED / "README.md").read_text()] == []
    assert not any(None in row or None in row.values() for name in names for row in published_rows(name))
