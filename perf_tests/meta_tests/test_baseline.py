"""Which record a run is compared with: the latest that fits, or the one asked for, or a sentence why not."""

from pathlib import Path

import pytest

from perf_tests.proofs.synthetic import BACKWARD, FORWARD, machine, record, timed, untimed
from perf_tests.records.record import Json
from perf_tests.records.store import (
    BaselineError,
    latest_baseline,
    list_records,
    numbered_baseline,
    own_folder,
    save_record,
)


def stored(storage: Path, data: Json, name: str = "run") -> Path:
    return save_record(data, own_folder(storage), name)


def latest(storage: Path, *selection: str) -> str | None:
    found = latest_baseline(list_records(storage), machine(), set(selection))
    return None if found is None else found.path.stem


def test_the_baseline_is_the_newest_record_that_covers_the_selection(tmp_path: Path) -> None:
    both = record([timed(FORWARD), timed(BACKWARD)])
    stored(tmp_path, {**both, "datetime": "2030-01-01"}, "old")
    stored(tmp_path, {**both, "datetime": "2030-01-02"}, "covers")
    stored(tmp_path, record([timed(FORWARD)], written="2030-01-03"), "newer-without-one-case")

    assert latest(tmp_path, FORWARD, BACKWARD) == "0002_covers"


def test_a_case_that_ran_out_of_memory_is_covered(tmp_path: Path) -> None:
    stored(tmp_path, record([timed(FORWARD)], [untimed(BACKWARD)], written="2030-01-01"), "covers")
    stored(tmp_path, record([timed(FORWARD)], written="2030-01-02"), "newer")

    assert latest(tmp_path, FORWARD, BACKWARD) == "0001_covers"


def test_where_none_covers_the_selection_the_newest_with_any_of_it_will_do(tmp_path: Path) -> None:
    stored(tmp_path, record([timed(FORWARD)], written="2030-01-01"), "part")
    stored(tmp_path, record([timed("other")], written="2030-01-02"), "nothing-of-it")

    assert latest(tmp_path, FORWARD, BACKWARD) == "0001_part"


def test_a_record_with_nothing_of_the_selection_is_no_baseline(tmp_path: Path) -> None:
    stored(tmp_path, record([timed("other")]))

    assert latest(tmp_path, FORWARD) is None


def test_a_record_of_another_machine_is_no_baseline(tmp_path: Path) -> None:
    stored(tmp_path, record([timed(FORWARD)], written="2030-01-01"), "here")
    stored(tmp_path, record([timed(FORWARD)], written="2030-01-02", brand_raw="Other CPU"), "there")

    assert latest(tmp_path, FORWARD) == "0001_here"


@pytest.mark.parametrize("asked", ["0002", "0002_second", "0002_second*", "0002_s"])
def test_a_baseline_is_found_by_its_number_or_the_beginning_of_its_name(tmp_path: Path, asked: str) -> None:
    for name in ("first", "second", "third"):
        stored(tmp_path, record([timed()]), name)

    assert numbered_baseline(tmp_path, asked, machine()).path.stem == "0002_second"


def test_a_baseline_is_found_by_its_path(tmp_path: Path) -> None:
    path = stored(tmp_path, record([timed()]))

    assert numbered_baseline(tmp_path / "elsewhere", str(path), machine()).path == path


def test_a_number_means_this_interpreters_folder_and_another_is_named_with_it(tmp_path: Path) -> None:
    own = stored(tmp_path, record([timed()]))
    committed = save_record(record([timed()]), tmp_path / "named-machine", "run")

    assert numbered_baseline(tmp_path, "0001", machine()).path == own
    assert numbered_baseline(tmp_path, "named-machine/0001", machine()).path == committed


def test_a_number_that_exists_only_in_another_folder_is_found_there(tmp_path: Path) -> None:
    committed = save_record(record([timed()]), tmp_path / "named-machine", "run")

    assert numbered_baseline(tmp_path, "0001", machine()).path == committed


def refusal(storage: Path, asked: str) -> str:
    with pytest.raises(BaselineError) as caught:
        numbered_baseline(storage, asked, machine())
    return str(caught.value)


def test_a_number_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    stored(tmp_path, record([timed()]), "first")

    sentence = refusal(tmp_path, "0077")

    assert "0077 matches no record" in sentence
    assert "0001_first" in sentence


def test_a_name_that_fits_several_records_is_refused_with_all_of_them(tmp_path: Path) -> None:
    stored(tmp_path, record([timed()]), "one")
    stored(tmp_path, record([timed()]), "other")

    sentence = refusal(tmp_path, "0*_o")

    assert "0001_one" in sentence
    assert "0002_other" in sentence


def test_a_corrupt_baseline_is_refused_by_name(tmp_path: Path) -> None:
    path = stored(tmp_path, record([timed()]))
    path.write_bytes(path.read_bytes()[:100])

    assert f"{path} cannot be read" in refusal(tmp_path, "0001")


def test_a_baseline_of_another_machine_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    stored(tmp_path, record([timed()], brand_raw="Other CPU", threads=1))

    sentence = refusal(tmp_path, "0001")

    assert "cpu.brand_raw: 'Some CPU' here, 'Other CPU' there" in sentence
    assert "threads: 4 here, 1 there" in sentence


@pytest.mark.parametrize("asked", ["/nowhere/0001.json", "**", "a**", "[", "", ".", "..", "a/../..", "*"])
def test_whatever_is_asked_for_ends_in_a_sentence(tmp_path: Path, asked: str) -> None:
    assert refusal(tmp_path, asked)
