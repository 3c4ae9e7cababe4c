"""`python -m perf_tests tables`: which records it takes, what it writes, and its exit codes."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from tests.support.synthetic import record, timed, timed_attention, write_record

EXAMPLE = Path(__file__).parents[2] / ".benchmarks"


def sized(size: str, written: str = "2030") -> Json:
    return record([timed(size=size)], written=written)


def tables(storage: Path, *words: str) -> int:
    return main(["tables", f"--storage={storage}", *words])


@pytest.mark.parametrize("chosen_format", ["markdown", "latex", "typst", "csv", "jsonl"])
def test_every_format_shows_the_committed_run(chosen_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables(EXAMPLE, "0001", "--format", chosen_format) == 0
    assert "sdpa" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["0001", "0001_x", "a/0001", "{storage}/a/0001_x.json", "{storage}/a", ""])
def test_a_record_is_named_by_path_folder_or_beginning_and_without_a_name_is_the_newest(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "a/0001_x.json", sized("asked", "2030"))
    write_record(tmp_path / "b/0002_x.json", sized("other", "2029"))
    assert tables(tmp_path, *words.format(storage=tmp_path).split()) == 0
    assert "asked" in (printed := capsys.readouterr().out)
    assert "other" not in printed


@pytest.mark.parametrize("words", [(), ("0001",), ("x" * 5000,), ("a\0b",)])
def test_no_record_is_one_sentence(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables(tmp_path, *words) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_folder_without_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables(tmp_path, str(tmp_path)) == 3
    assert capsys.readouterr().err == f"{tmp_path} is a folder without records.\n"


BROKEN = {
    "torn": "{",
    "older": json.dumps({**record(), "suite": {"format_version": 0}}),
    "nan": json.dumps(record([timed(seconds=(1.0,))])).replace("1.0", "NaN"),
    "infinite": json.dumps(record([timed(seconds=(1.0,))])).replace("1.0", "Infinity"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_and_left_out(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_record(tmp_path / "a/0001_x.json", BROKEN[kind])
    assert tables(tmp_path) == 3
    assert str(path) in capsys.readouterr().err
    write_record(tmp_path / "a/0002_x.json", sized("sound"))
    assert tables(tmp_path) == 1
    printed = capsys.readouterr()
    assert str(path) in printed.err
    assert "sound" in printed.out


def test_a_folder_gets_one_file_for_each_table(tmp_path: Path) -> None:
    write_record(tmp_path / "a/0001_x.json", record([timed(), timed_attention()]))
    assert tables(tmp_path, f"--output={tmp_path}/out/deep") == 0
    assert sorted(path.name for path in (tmp_path / "out/deep").iterdir()) == ["attention.md", "timing.md"]
    assert tables(tmp_path, "--format=csv", "--only=timing", f"--output={tmp_path}/out") == 0
    with open(tmp_path / "out/timing.csv", newline="") as file:
        assert [row["size"] for row in csv.DictReader(file)] == ["tiny"]


def test_several_records_are_rows_of_one_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        write_record(tmp_path / f"a/000{number}_x.json", sized(f"size{number}"))
    assert tables(tmp_path, "0001", "0002", "--format=csv", "--only=timing") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["source"], row["size"]) for row in rows] == [("a/0001_x", "size1"), ("a/0002_x", "size2")]


def test_a_table_without_figures_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "a/0001_x.json", sized("small"))
    assert tables(tmp_path, "--only=attention") == 1
    assert "no figures" in capsys.readouterr().err


def test_json_has_the_figures_of_each_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "a/0001_x.json", sized("small"))
    assert tables(tmp_path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["record"], found["timing"][0]["size"]) == ("a/0001_x", "small")


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    command = [sys.executable, "-m", "perf_tests", "tables", "--format=latex", "epyc-2core/0001"]
    first, second = (
        subprocess.check_output(command, cwd=EXAMPLE.parent, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2")
    )
    assert first == second
    assert b"tabular" in first
