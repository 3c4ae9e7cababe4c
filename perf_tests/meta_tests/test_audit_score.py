"""The audit of the published tables: every cell that was judged to break physics is found, no right one accused."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from perf_tests.proofs.audit_score import PUBLISHED, TABLES, Score, cells, known_cases_found, score
from perf_tests.records.audit import Audit, audit_file
from perf_tests.records.finding import IMPOSSIBLE


@pytest.fixture(scope="module")
def audit() -> Audit:
    return audit_file(PUBLISHED / "e2e_timing.csv")


def scored(audit: Audit) -> Score:
    return score(audit, cells("e2e_timing"), cells("judged_e2e_timing"))


def test_every_cell_that_breaks_physics_is_found_and_no_right_one_accused(audit: Audit) -> None:
    result = scored(audit)
    assert len(result.breaking) > 200
    assert len(result.right) > 700
    assert result.missed == set()
    assert result.accused == set()
    assert len(result.cause_named) >= 0.95 * len(result.breaking)


def test_a_finding_less_is_a_cell_missed(audit: Audit) -> None:
    fewer = replace(audit, findings=audit.findings_of(IMPOSSIBLE)[1:])
    assert len(scored(fewer).missed) == 1


def test_a_right_cell_that_is_accused_counts(audit: Audit) -> None:
    right = min(scored(audit).right)
    wrongly = replace(audit.findings_of(IMPOSSIBLE)[0], places=(right,))
    assert scored(replace(audit, findings=[*audit.findings, wrongly])).accused == {right}


def test_a_judgement_on_no_cell_is_refused(audit: Audit) -> None:
    judged = [{**cells("judged_e2e_timing")[0], "mean_ms": "1"}]
    with pytest.raises(ValueError, match="1 judged cells are not in the table"):
        score(audit, cells("e2e_timing"), judged)


def test_every_known_case_is_found() -> None:
    audits = {f"{name}.csv": audit_file(PUBLISHED / f"{name}.csv") for name in TABLES}
    assert [case for case, is_found in known_cases_found(audits) if not is_found] == []


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.name)
def test_each_published_table_is_in_its_readme(path: Path) -> None:
    assert f"`{path.name}`" in (PUBLISHED / "README.md").read_text()
    with open(path, newline="") as file:
        assert all(None not in row and None not in row.values() for row in csv.DictReader(file))
