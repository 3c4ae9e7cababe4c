"""Which record a run is compared with: the latest that fits, or the one asked for, or a sentence why not."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import SavingOptions
from perf_tests.bench.session import Run
from perf_tests.cases.selected import is_inside
from perf_tests.records import store
from perf_tests.records.record import Json
from perf_tests.records.store import rows_by_id
from perf_tests.run.before import choose_baseline
from tests.support.example_cases import SETTINGS
from tests.support.synthetic import BACKWARD, FORWARD, identity, machine, record, timed, untimed


def stored(storage: Path, data: Json, name: str = "run") -> Path:
    return store.save_record(data, store.own_folder(storage), name)


BOTH, ONE, NONE = record([timed(FORWARD), timed(BACKWARD)]), record([timed(FORWARD)]), record([timed("other")])
ONE_LOST = record([timed(FORWARD)], [untimed(BACKWARD)])
BOTH_OTHERWISE = record([timed(FORWARD, batch_size=2), timed(BACKWARD, batch_size=2)])
ELSEWHERE = record([timed(FORWARD), timed(BACKWARD)], brand_raw="Other CPU")


@pytest.mark.parametrize(
    "by_date, number",
    [
        pytest.param([BOTH, BOTH, ONE], 2, id="the newest that covers the selection"),
        pytest.param([ONE_LOST, ONE], 1, id="a case that ran out of memory is covered"),
        pytest.param([ONE, NONE], 1, id="the newest with any of the selection, where none covers it"),
        pytest.param([BOTH, BOTH_OTHERWISE], 1, id="the newest of the same batch size"),
        pytest.param([BOTH_OTHERWISE], 1, id="one of another batch size where there is no other, to name the field"),
        pytest.param([NONE], None, id="none with nothing of the selection"),
        pytest.param([BOTH, ELSEWHERE], 1, id="none of another machine"),
    ],
)
def test_the_baseline_is(by_date: list[Json], number: int | None, tmp_path: Path) -> None:
    paths = [stored(tmp_path, {**data, "datetime": f"2030-01-0{day}"}) for day, data in enumerate(by_date, 1)]
    found = store.latest_baseline(store.list_records(tmp_path).records, machine(), rows_by_id(BOTH))
    assert (found.path if found else None) == (paths[number - 1] if number else None)


@pytest.mark.parametrize("asked", ["0002", "0002_second", "0002_second*", "0002_s"])
def test_a_baseline_is_found_by_its_number_or_the_beginning_of_its_name(tmp_path: Path, asked: str) -> None:
    for name in ("first", "second", "third"):
        stored(tmp_path, record([timed()]), name)
    assert store.numbered_baseline(tmp_path, asked, machine()).path.stem == "0002_second"


def test_a_baseline_is_found_by_its_path(tmp_path: Path) -> None:
    path = stored(tmp_path, record([timed()]))
    assert store.numbered_baseline(tmp_path / "elsewhere", str(path), machine()).path == path


def test_a_number_means_this_interpreters_folder_and_another_is_named_with_it(tmp_path: Path) -> None:
    committed = store.save_record(record([timed()]), tmp_path / "named-machine", "run")
    assert store.numbered_baseline(tmp_path, "0001", machine()).path == committed, "no other has this number"
    own = stored(tmp_path, record([timed()]))
    assert store.numbered_baseline(tmp_path, "0001", machine()).path == own
    assert store.numbered_baseline(tmp_path, "named-machine/0001", machine()).path == committed


def refusal(storage: Path, asked: str) -> str:
    with pytest.raises(store.BaselineError) as caught:
        store.numbered_baseline(storage, asked, machine())
    return str(caught.value)


def test_a_name_that_fits_several_records_is_refused_with_all_of_them(tmp_path: Path) -> None:
    stored(tmp_path, record([timed()]), "one")
    stored(tmp_path, record([timed()]), "other")
    sentence = refusal(tmp_path, "0*_o")
    assert "0001_one" in sentence
    assert "0002_other" in sentence


@pytest.mark.parametrize("asked", ["/nowhere/0001.json", "**", "a**", "[", "", ".", "..", "a/../..", "*"])
def test_whatever_is_asked_for_ends_in_a_sentence(tmp_path: Path, asked: str) -> None:
    assert refusal(tmp_path, asked)


@pytest.mark.parametrize("named", [None, "0001"])
@pytest.mark.parametrize("earlier, words", [(BOTH_OTHERWISE, "batch_size was 2, is 4"), (NONE, "none of these cases")])
def test_what_should_fail_on_a_slower_case_is_refused_where_none_can_be_compared(
    named: str | None, earlier: Json, words: str, tmp_path: Path
) -> None:
    stored(tmp_path, {**earlier, "benchmarks": [*earlier["benchmarks"], timed("unrelated")]})
    saving = SavingOptions(tmp_path, compare=True, compare_with=named, compare_fail=(Mock(),))
    with pytest.raises(store.BaselineError, match="has nothing to compare with") as caught:
        choose_baseline(Run(gone_counts=True), saving, machine(), rows_by_id(BOTH))
    assert words in str(caught.value) or named is None
    assert choose_baseline(Run(gone_counts=True), saving, machine(), rows_by_id(earlier)) is not None


@pytest.mark.parametrize("run", ["../a", "é" * 300, "\ud800", "\x00", ""])
def test_a_record_of_a_run_that_no_file_can_be_named_after_is_a_baseline(run: str, tmp_path: Path) -> None:
    data = {**BOTH, "suite": {**BOTH["suite"], "run": run}}
    path = stored(tmp_path, data)
    found = choose_baseline(Run(gone_counts=True), SavingOptions(tmp_path, compare=True), machine(), rows_by_id(ONE))
    assert found is not None
    assert found.path == path


def test_a_row_whose_phase_is_no_word_is_outside_of_any_run() -> None:
    assert is_inside(identity(), SETTINGS) is False, "of a batch of 4"
    assert is_inside(identity(batch_size=1), SETTINGS) is True
    assert is_inside(identity(batch_size=1) | {"phase": ["forward"]}, SETTINGS) is False
