"""What a run does with its baseline: rows side by side, a user's checks, and a refusal where nothing compares."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import SavingOptions, regressions, show_beside_baseline
from perf_tests.bench.session import Run
from perf_tests.cases.selected import is_inside
from perf_tests.records.record import Json
from perf_tests.records.store import BaselineError, own_folder, rows_by_id, save_record
from perf_tests.run.before import choose_baseline
from tests.support.example_cases import SETTINGS
from tests.support.synthetic import BACKWARD, FORWARD, identity, machine, record, timed

BOTH, ONE, NONE = record([timed(FORWARD), timed(BACKWARD)]), record([timed(FORWARD)]), record([timed("other")])
BOTH_OTHERWISE = record([timed(FORWARD, batch_size=2), timed(BACKWARD, batch_size=2)])


def test_a_users_check_is_applied_to_comparable_cases_only() -> None:
    slower = Mock(fails=lambda current, compared: "slower" if current["median"] > compared["median"] else None)
    before = record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2), timed("c", (3.0,))])
    now = record([timed(case_id, (2.0,)) for case_id in "abcd"])
    assert regressions(now, before, [slower]) == ["a: slower"]


def test_the_table_shows_the_baselines_row_before_each_comparable_row() -> None:
    rows = [timed("a", (2.0,)), timed("b", (2.0,))]
    show_beside_baseline(rows, record([timed("a", (1.0,)), timed("b", (1.0,), batch_size=2)]), "Linux/0007_name")
    assert [(row["fullname"], row.get("source"), row.get("median")) for row in rows] == [
        ("a", "0007", 1.0),
        ("a", "NOW", None),
        ("b", None, None),
    ]


@pytest.mark.parametrize("named", [None, "0001"])
@pytest.mark.parametrize("earlier, words", [(BOTH_OTHERWISE, "batch_size was 2, is 4"), (NONE, "none of these cases")])
def test_what_should_fail_on_a_slower_case_is_refused_where_none_can_be_compared(
    named: str | None, earlier: Json, words: str, tmp_path: Path
) -> None:
    data = {**earlier, "benchmarks": [*earlier["benchmarks"], timed("unrelated")]}
    save_record(data, own_folder(tmp_path), "run")
    saving = SavingOptions(tmp_path, compare=True, compare_with=named, compare_fail=(Mock(),))
    with pytest.raises(BaselineError, match="has nothing to compare with") as caught:
        choose_baseline(Run(gone_counts=True), saving, machine(), rows_by_id(BOTH))
    assert words in str(caught.value) or named is None
    assert choose_baseline(Run(gone_counts=True), saving, machine(), rows_by_id(earlier)) is not None


@pytest.mark.parametrize("run", ["../a", "é" * 300, "\ud800", "\x00", ""])
def test_a_record_of_a_run_that_no_file_can_be_named_after_is_a_baseline(run: str, tmp_path: Path) -> None:
    path = save_record({**BOTH, "suite": {**BOTH["suite"], "run": run}}, own_folder(tmp_path), "run")
    found = choose_baseline(Run(gone_counts=True), SavingOptions(tmp_path, compare=True), machine(), rows_by_id(ONE))
    assert found is not None
    assert found.path == path


def test_a_row_whose_phase_is_no_word_is_outside_of_any_run() -> None:
    assert is_inside(identity(), SETTINGS) is False, "of a batch of 4"
    assert is_inside(identity(batch_size=1), SETTINGS) is True
    assert is_inside(identity(batch_size=1) | {"phase": ["forward"]}, SETTINGS) is False
