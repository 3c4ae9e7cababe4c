"""`tables`: which records it takes, what it writes; the table of cases: numbers as numbers, rows and columns chosen."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.columns import COLUMNS
from perf_tests.records.record import Json
from tests.support.synthetic import (
    BACKWARD,
    record,
    remembered,
    timed,
    timed_attention,
    timed_collective,
    traced,
    untimed,
    warmed,
    with_passes,
    write_record,
)

EXAMPLE = Path(__file__).parents[2] / ".benchmarks"


def sized(size: str, written: str = "2030") -> Json:
    return record([timed(size=size)], written=written)


def tables(storage: Path, *words: str) -> int:
    return main(["tables", f"--storage={storage}", *words])


@pytest.mark.parametrize("chosen_format", ["markdown", "latex", "typst", "csv", "jsonl"])
def test_every_format_shows_the_committed_run(chosen_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables(EXAMPLE, "0001", "--format", chosen_format) == 0
    assert "sdpa" in capsys.readouterr().out


def test_without_a_name_the_newest_record_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "a/0001_x.json", sized("asked", "2030"))
    write_record(tmp_path / "b/0002_x.json", sized("other", "2029"))
    for words in ((), ("a/0001",)):
        assert tables(tmp_path, *words) == 0
        assert "asked" in (printed := capsys.readouterr().out)
        assert "other" not in printed


def test_a_record_that_cannot_be_read_is_left_out_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = write_record(tmp_path / "a/0001_x.json", json.dumps(sized("torn"))[:-1])
    assert tables(tmp_path) == 3
    write_record(tmp_path / "a/0002_x.json", sized("sound"))
    assert tables(tmp_path) == 1
    printed = capsys.readouterr()
    assert [line.startswith(f"Left out: {broken} cannot be read") for line in printed.err.splitlines()] == [True, True]
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


# The table of cases.


def stored(folder: Path, data: Json) -> Path:
    write_record(folder / "machine/0001_x.json", data)
    return folder


def rows_of(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[Json]:
    assert tables(folder, "--format=jsonl", *words) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def two_attentions() -> Json:
    slow, fast = timed("a", (0.2, 0.2)), timed("b", (0.1, 0.1), attention="sdpa")
    return record([slow, fast, timed("c", (0.3, 0.3), size="small", attention="sdpa")])


def test_numbers_are_numbers_and_what_is_not_known_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = record([timed(seconds=(0.010, 0.012), kernel_launches=100, peak_allocated_bytes=None, mfu=float("nan"))])
    (row,) = rows_of(stored(tmp_path, data), capsys)
    assert list(row) == list(COLUMNS)
    assert (row["batch_size"], row["d_ff"], row["kernel_launches"], row["rounds"]) == (4, 512, 100, 2)
    assert row["median_seconds"] == pytest.approx(0.011)
    assert (row["outcome"], row["commit"], row["torch"]) == ("measured", "0123456789abcdef", "2.13.0+cpu")
    assert row["commit_has_changes"] is False
    assert (row["peak_allocated_bytes"], row["mfu"], row["head_dim"]) == (None, None, None)


def test_both_families_and_cases_without_a_timing_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = untimed(BACKWARD, "would_not_fit", "6 GiB asked", phase="backward")
    rows = rows_of(stored(tmp_path, record([timed(), timed_attention()], [lost])), capsys)
    assert [row["outcome"] for row in rows] == ["measured", "would_not_fit", "measured"]
    assert (rows[1]["reason"], rows[1]["needed_bytes"], rows[1]["median_seconds"]) == ("6 GiB asked", 2**30, None)
    assert (rows[2]["head_dim"], rows[2]["size"]) == (16, None)


def test_a_collective_alone_is_a_row_with_its_message_and_bandwidths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([timed_collective(40_000, (0.1, 0.1)), timed()])
    computing, alone = rows_of(stored(tmp_path, data), capsys)
    assert (computing["collective"], computing["world"], computing["bus_bytes_per_second"]) == (None, None, None)
    names = ("collective", "message_bytes", "exchanged_bytes", "world", "backend", "dtype", "size", "outcome")
    assert [alone[name] for name in names] == ["all_gather", 40_000, 40_000, 2, "gloo", "float32", None, "measured"]
    assert alone["algorithm_bytes_per_second"] == pytest.approx(400_000)
    assert alone["bus_bytes_per_second"] == pytest.approx(200_000)


def test_what_passes_found_stands_in_the_row_of_their_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = with_passes(record([timed(), timed("other", size="small")]), traced(), remembered(), warmed())
    first, other = rows_of(stored(tmp_path, data), capsys, "--sort=record,size,id")[::-1]
    assert first["traced_launches"] == 60
    assert (first["memory_pass_peak_bytes"], first["recommended_warmup_rounds"]) == (2**30, 1)
    assert (other["traced_launches"], other["memory_pass_peak_bytes"]) == (None, None)


def test_a_case_that_only_passes_looked_at_is_a_row_without_a_timing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = rows_of(stored(tmp_path, with_passes(record(), traced(), remembered())), capsys)
    assert (row["outcome"], row["median_seconds"], row["traced_launches"]) == ("not_timed", None, 60)


@pytest.mark.parametrize("name", COLUMNS)
def test_no_value_of_a_strange_kind_gets_into_a_column_of_numbers(name: str, tmp_path: Path) -> None:
    for strange in (10**400, "many", [1], {"a": 1}, True, float("inf"), 0.5, -(2**63)):
        data = record([timed()])
        data["benchmarks"][0]["extra_info"][name] = strange
        write_record(tmp_path / "machine/0001_x.json", data)
        assert tables(tmp_path, "--format=jsonl", "-o", str(tmp_path / "out")) == 0
        found = json.loads((tmp_path / "out/cases.jsonl").read_text())[name]
        kind = COLUMNS[name].kind
        assert found is None or type(found) is kind
        assert kind is not int or found is None or -(2**63) < int(str(found)) < 2**63


def test_a_speedup_is_over_the_case_that_differs_only_along_the_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(stored(tmp_path, two_attentions()), capsys, "--against-axis=attention=naive")
    found = {row["id"]: row["speedup"] for row in rows}
    assert found == {"a": 1.0, "b": pytest.approx(2.0), "c": None}


def test_rows_and_columns_are_chosen_and_sorted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path, two_attentions())
    words = ("--columns=id,median_seconds", "--sort=-median_seconds")
    assert rows_of(folder, capsys, *words) == [
        {"id": "c", "median_seconds": 0.3}, {"id": "a", "median_seconds": 0.2}, {"id": "b", "median_seconds": 0.1},
    ]  # fmt: skip
    kept = rows_of(folder, capsys, "--columns=id", "--where=size=tiny,small", "--where=attention=sdpa", "--sort=size")
    assert [row["id"] for row in kept] == ["c", "b"]
    assert len(rows_of(folder, capsys, "--where=batch_size=4.0", "--where=head_dim=")) == 3


def test_what_is_not_known_sorts_last_either_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path, record([timed("a", mfu=0.5), timed("b"), timed("c", mfu=0.25)]))
    for word, order in (("--sort=mfu", "cab"), ("--sort=-mfu", "acb")):
        assert "".join(row["id"] for row in rows_of(folder, capsys, word)) == order


@pytest.mark.parametrize("chosen_format", ["markdown", "latex", "typst"])
def test_a_choice_is_a_table_for_people_too(
    chosen_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--format={chosen_format}", "--where=attention=sdpa", "--against-axis=attention=naive")
    assert tables(stored(tmp_path, two_attentions()), *words) == 0
    shown = capsys.readouterr().out
    assert "speedup" in shown
    assert "head_dim" not in shown.replace("\\", "")  # empty in every row


BAD = {
    "--where=size=smal": "there are small, tiny",
    "--where=sise=small": "did you mean size?",
    "--where=size": "is not NAME=VALUE",
    "--columns=median": "did you mean median_seconds",
    "--columns=id,id": "names id twice",
    "--columns=id,,size": "empty entry",
    "--columns=a\nb": "is no column",
    "--sort=speedup": "it needs --against-axis",
    "--against-axis=size=small": "the axes are phase",
    "--against-axis=attention": "the axes are phase",
    "--against-axis=attention=flex": "there are sdpa, naive",
    "--only=timing --sort=id": "drop --only timing",
    "--format=parquet": "-o FOLDER",
    "--format=parquet --only=kernels": "choose csv or jsonl",
}


@pytest.mark.parametrize("words", BAD)
def test_a_choice_that_cannot_be_met_is_one_sentence(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables(stored(tmp_path, two_attentions()), *words.split(" ")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert BAD[words] in said.err


def test_parquet_without_pyarrow_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert tables(stored(tmp_path, two_attentions()), "--format=parquet", f"-o{tmp_path}/out") == 2
    assert "pip install pyarrow" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
