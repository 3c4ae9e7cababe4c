"""The ledger of exact counters: what is written is read, what moved is named, and nothing passes in silence."""

import re
from pathlib import Path

import pytest

from perf_tests.predict.ledger import counted_grid
from perf_tests.records.ledger import (
    COLUMNS,
    COUNTERS,
    LedgerBook,
    LedgerKey,
    ledger_file,
    moved,
    read_ledger,
    write_ledger,
)
from tests.support.launch import ROOT

KEY: LedgerKey = ("forward", "small-ctx128-fp32-naive")
OTHER: LedgerKey = ("optimizer", "small-ctx128-fp32-naive")
LINE: dict[str, int | None] = {name: place * 1000 for place, name in enumerate(COUNTERS)}
COUNTERS_FOLDER = "perf_tests/predict/exact_counters"


def book(folder: Path, is_updating: bool = False) -> LedgerBook:
    return LedgerBook.opened(folder, "2.13.0+cpu", is_updating, [KEY, OTHER])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ledger = {KEY: LINE, OTHER: {**LINE, "model_flops": None}}
    write_ledger(tmp_path / "new" / "torch-2.13.csv", ledger)
    assert read_ledger(tmp_path / "new" / "torch-2.13.csv") == ledger


@pytest.mark.parametrize("version, name", [("2.13.0+cpu", "torch-2.13.csv"), ("2.9.1", "torch-2.9.csv")])
def test_each_minor_version_of_torch_has_a_ledger(version: str, name: str) -> None:
    assert ledger_file(Path("counters"), version) == Path("counters", name)


HEADER = ",".join(COLUMNS)
GOOD = "forward,small," + ",".join("1" for _ in COUNTERS)

BROKEN = {
    "nothing": ("", "its columns are ''"),
    "other columns": ("a,b\n1,2\n", "its columns are 'a,b'"),
    "a value that is no number": (f"{HEADER}\n{GOOD.replace('1', 'many', 1)}\n", "line 2"),
    "a negative value": (f"{HEADER}\n{GOOD.replace('1', '-1', 1)}\n", "line 2"),
    "a number with a unit": (f"{HEADER}\n{GOOD.replace('1', '1 GiB', 1)}\n", "line 2"),
    "too few values": (f"{HEADER}\n{GOOD}\nforward,small,1\n", "line 3"),
    "a case twice": (f"{HEADER}\n{GOOD}\n{GOOD}\n", "duplicate entry of"),
    "bytes that are no text": ("\xff\xfe", "cannot be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_ledger_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "torch-2.13.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        read_ledger(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_ledger(tmp_path / "missing.csv")


def test_a_counter_that_moved_is_named_with_both_values() -> None:
    found = moved({KEY: LINE}, {KEY: {**LINE, "kernel_launches": 4001}})
    assert found == ["forward small-ctx128-fp32-naive: kernel_launches 4,000 -> 4,001 (+1)"]


def test_a_case_without_a_line_and_a_line_without_a_case_are_findings(tmp_path: Path) -> None:
    write_ledger(ledger_file(tmp_path, "2.13"), {("forward", "huge"): LINE})
    assert book(tmp_path).compare({OTHER: LINE})[0] == "optimizer small-ctx128-fp32-naive: new"
    assert "forward huge" in book(tmp_path).strangers()[0]


def test_an_update_drops_the_line_of_no_case_and_keeps_what_was_not_counted(tmp_path: Path) -> None:
    write_ledger(ledger_file(tmp_path, "2.13"), {("forward", "huge"): LINE, KEY: LINE, OTHER: LINE})
    updating = book(tmp_path, is_updating=True)
    updating.compare({KEY: {**LINE, "saved_bytes": 5}})
    assert "forward huge: gone" in updating.closed(is_complete=True)
    assert read_ledger(ledger_file(tmp_path, "2.13")) == {KEY: {**LINE, "saved_bytes": 5}, OTHER: LINE}


def test_an_update_that_could_not_count_everything_writes_nothing(tmp_path: Path) -> None:
    updating = book(tmp_path, is_updating=True)
    updating.compare({KEY: LINE})
    assert "is unchanged, because" in updating.closed(is_complete=False)[0]
    assert list(tmp_path.iterdir()) == []


def test_the_committed_ledger_has_a_line_for_every_case_of_the_grid() -> None:
    keys = [(case.phase, case_id) for case_id, cases in counted_grid().items() for case in cases]
    assert len(keys) == 6 * 4 * 2 * 2 * 6 + 4 * 5 * 2 * 2
    ledgers = list((ROOT / COUNTERS_FOLDER).glob("torch-*.csv"))
    assert ledgers
    for path in ledgers:
        assert list(read_ledger(path)) == keys
