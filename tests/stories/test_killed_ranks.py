"""What the proof on killed ranks calls wrong: a hang, a lost case, a record or a journal too many."""

import json
from pathlib import Path

import pytest

from claims.killed_ranks import CASES, Killed
from tests.support.launch import Launch

ROUNDS = {f"case {number}": [1.0 + number, 2.0] for number in range(CASES)}


def ended(storage: Path, rounds: dict[str, list[float]], seconds: float | None = 9.0, records: int = 1) -> Killed:
    folder = storage / "machine"
    folder.mkdir()
    rows = [{"fullname": case_id, "stats": {"data": data}} for case_id, data in rounds.items()]
    for number in range(records):
        (folder / f"000{number}_run.json").write_text(json.dumps({"benchmarks": rows}))
    kept = {"case 0": ROUNDS["case 0"]}
    return Killed(1.0, 0, was_alive=True, kept_before=kept, seconds=seconds, launch=Launch(0, "", "", storage))


def test_a_whole_record_with_what_was_finished_is_right(tmp_path: Path) -> None:
    assert list(ended(tmp_path, ROUNDS).wrong()) == []


@pytest.mark.parametrize(
    "rounds, seconds, records, words",
    [
        pytest.param(ROUNDS, None, 1, "it hung", id="hang"),
        pytest.param(ROUNDS, 9.0, 0, "it left 0 records", id="no record"),
        pytest.param(ROUNDS, 9.0, 2, "it left 2 records", id="twice"),
        pytest.param(ROUNDS | {"case 0": [7.0, 7.0]}, 9.0, 1, "a finished case was lost", id="measured again"),
        pytest.param({"case 0": ROUNDS["case 0"]}, 9.0, 1, f"1 of {CASES} cases are measured", id="missing"),
    ],
)
def test_what_is_lost_or_doubled_is_wrong(
    rounds: dict[str, list[float]], seconds: float | None, records: int, words: str, tmp_path: Path
) -> None:
    assert list(ended(tmp_path, rounds, seconds, records).wrong()) == [words]


def test_a_journal_that_is_left_is_wrong(tmp_path: Path) -> None:
    one = ended(tmp_path, ROUNDS)
    (tmp_path / "machine" / "journal-1").touch()
    assert list(one.wrong()) == ["a journal is left"]
