"""The audit of the published tables: every cell that was judged to break physics is found, no right one accused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from claims import audit_score
from claims.published import PUBLISHED, published_rows
from perf_tests_suite.perf_tests.audit.figures import Finding


@pytest.fixture(scope="module")
def findings() -> Mapping[str, Sequence[Finding]]:
    return {name: audit_score.audited(name) for name in (*audit_score.TABLES, *audit_score.HELD_OUT)}


def scored(found: Sequence[Finding], name: str = "e2e_timing") -> audit_score.Score:
    table = audit_score.cells(name)
    if name in audit_score.JUDGED:
        return audit_score.score(found, table, audit_score.cells(f"judged_{name}"))
    return (audit_score.held_out_score if name in audit_score.HELD_OUT else audit_score.whole_score)(found, table)


LEAST = [
    # a table, the fewest cells that break physics and that are right
    ("e2e_timing", 200, 700), ("attention_timing", 10, 800), ("memory", 0, 900), ("flash_attention", 15, 2133),
    ("compiled_attention", 10, 70),
]  # fmt: skip


def test_every_cell_that_breaks_physics_is_found_and_no_right_one_accused(
    findings: Mapping[str, Sequence[Finding]],
) -> None:
    """The last two tables are judged without the audit's code."""
    for name, breaking, right in LEAST:
        result = scored(findings[name], name)
        assert (len(result.breaking) >= breaking, len(result.right) >= right) == (True, True), name
        assert (result.missed, result.accused) == (set(), set()), name


def test_every_known_case_is_found_and_held_out_tables_have_no_hand_in_them(
    findings: Mapping[str, Sequence[Finding]],
) -> None:
    known = audit_score.known_cases_found(findings)
    assert [case for case, is_found in known if not is_found] == []
    assert {case["verdict"] for case, _ in known} == {"impossible"}
    assert not {f"{name}.csv" for name in audit_score.HELD_OUT} & {case["file"] for case, _ in known}
    judged = [cell for name in audit_score.JUDGED for cell in audit_score.cells(f"judged_{name}")]
    assert sum(cell["compiled"] == cell["breaks_physics"] == "yes" for cell in judged) > 40


def test_the_score_counts_what_is_missed_and_accused_and_refuses_judging_no_cell(
    findings: Mapping[str, Sequence[Finding]],
) -> None:
    first, *rest = findings["e2e_timing"]
    assert len(scored(rest).missed) == 1
    right = min(scored([first]).right)
    assert scored([first, *rest, replace(first, places=(right,))]).accused == {right}
    judged = [{**audit_score.cells("judged_e2e_timing")[0], "mean_ms": "1"}]
    with pytest.raises(ValueError, match="1 judged cells are not in the table"):
        audit_score.score(rest, audit_score.cells("e2e_timing"), judged)


def test_each_published_table_is_in_its_readme_and_rectangular() -> None:
    names = [path.name for path in PUBLISHED.glob("*.csv*")]
    assert [name for name in names if f"`{name}`" not in (PUBLISHED / "README.md").read_text()] == []
    assert not any(None in row or None in row.values() for name in names for row in published_rows(name))
