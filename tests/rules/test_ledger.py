"""The ledger of exact counters: what is written is read, what moved is named, and nothing passes in silence."""

import re
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.predict.ledger import counted_grid
from perf_tests_suite.perf_tests.records import ledger as ledgers
from tests.support.launch import ROOT

KEY: ledgers.LedgerKey = ("forward", "small-ctx128-fp32-naive")
OTHER: ledgers.LedgerKey = ("optimizer", "small-ctx128-fp32-naive")
STRANGER: ledgers.LedgerKey = ("forward", "huge")
LINE: dict[str, int | None] = {name: place * 1000 for place, name in enumerate(ledgers.COUNTERS)}


def book(folder: Path, is_updating: bool = False, ledger: ledgers.Ledger | None = None) -> ledgers.LedgerBook:
    """A run over two cases, and what the ledger has of them."""
    if ledger is not None:
        ledgers.write_ledger(folder / "torch-2.13.csv", ledger)
    return ledgers.LedgerBook.opened(folder, "2.13.0+cpu", is_updating, [KEY, OTHER], " --model a")


def test_what_is_written_is_read_and_each_minor_version_of_torch_has_its_own(tmp_path: Path) -> None:
    ledger = {KEY: LINE, OTHER: {**LINE, "model_flops": None}}
    ledgers.write_ledger(tmp_path / "new" / "torch-2.13.csv", ledger)
    assert ledgers.read_ledger(tmp_path / "new" / "torch-2.13.csv") == ledger
    for version, name in {"2.13.0+cpu": "torch-2.13.csv", "2.9.1": "torch-2.9.csv"}.items():
        assert ledgers.LedgerBook.opened(Path(), version, False, []).path.name == name


HEADER = ",".join(ledgers.COLUMNS)
GOOD = "forward,small," + ",".join("1" for _ in ledgers.COUNTERS)
BROKEN = {
    "": "its columns are ''",
    "a,b\n1,2\n": "its columns are 'a,b'",
    f"{HEADER}\n{GOOD.replace('1', 'many', 1)}\n": "line 2",
    f"{HEADER}\n{GOOD.replace('1', '-1', 1)}\n": "line 2",
    f"{HEADER}\n{GOOD}\nforward,small,1\n": "line 3",
    f"{HEADER}\n{GOOD}\n{GOOD}\n": "line 3: duplicate entry of forward small",
    "\xff\xfe": "cannot be read",
    "a" * 200_000: "cannot be read: field larger than",
}


def test_what_is_no_ledger_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "torch-2.13.csv"
    with pytest.raises(ValueError, match=r"torch-2\.13\.csv cannot be read: No such"):
        ledgers.read_ledger(path)
    for content, words in BROKEN.items():
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{re.escape(words)}") as refusal:
            ledgers.read_ledger(path)
        assert "\n" not in str(refusal.value)


def test_what_moved_is_named_with_both_values() -> None:
    now = {KEY: {**LINE, "kernel_launches": 4001, "model_flops": None}, OTHER: LINE}
    assert ledgers.changed_counters({STRANGER: LINE, KEY: LINE}, now) == [
        "forward small-ctx128-fp32-naive: model_flops 1,000 -> none",
        "forward small-ctx128-fp32-naive: kernel_launches 4,000 -> 4,001 (+1)",
        "optimizer small-ctx128-fp32-naive: new",
        "forward huge: gone",
    ]


def test_each_difference_is_a_finding_with_its_next_step(tmp_path: Path) -> None:
    """A case without a line, and a line without a case; what was not counted this time is no difference."""
    without = book(tmp_path)
    assert (without.compare({KEY: LINE}), without.strangers()) == ([], [])
    said = "\n".join(without.closed(is_complete=True))
    assert re.search("(?s)kernel_launches 4000.*has no ledger.*--update-counters --model a", said)
    comparing = book(tmp_path, ledger={STRANGER: LINE, KEY: LINE})
    found, next_step = comparing.compare({OTHER: LINE})
    assert next_step.endswith("--update-counters --model a` and commit torch-2.13.csv.")
    assert (found, comparing.strangers()) == (
        "optimizer small-ctx128-fp32-naive: new", ["forward huge: in the ledger but not in the grid", next_step]
    )  # fmt: skip
    assert comparing.compare({KEY: LINE}) == comparing.closed(is_complete=True) == []


def test_an_update_drops_the_line_of_no_case_and_keeps_what_was_not_counted(tmp_path: Path) -> None:
    incomplete = book(tmp_path, is_updating=True)
    assert (incomplete.compare({KEY: LINE}), incomplete.strangers()) == ([], [])
    assert "is unchanged, because" in incomplete.closed(is_complete=False)[0]
    assert list(tmp_path.iterdir()) == []
    updating = book(tmp_path, is_updating=True, ledger={STRANGER: LINE, KEY: LINE, OTHER: LINE})
    updating.compare({KEY: {**LINE, "saved_bytes": 5}})
    change, gone, _ = updating.closed(is_complete=True)
    assert ("saved_bytes" in change, gone) == (True, "forward huge: gone")
    assert ledgers.read_ledger(updating.path) == {KEY: {**LINE, "saved_bytes": 5}, OTHER: LINE}


def test_the_committed_ledger_has_a_line_for_every_case_of_the_grid() -> None:
    keys = [(case.phase, case_id) for case_id, cases in counted_grid().items() for case in cases]
    assert len(keys) == 6 * 4 * 2 * 3 * 6 + 4 * 5 * 3 * 2
    folder = ROOT / "perf_tests/predict/exact_counters"
    paths = {*folder.glob("torch-*.csv")} - {*folder.glob("*-compiled.csv")}
    assert {tuple(ledgers.read_ledger(path)) for path in paths} == {tuple(keys)}
