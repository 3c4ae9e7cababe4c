"""Records on disk: written whole or not at all, never over another, and the right one found to compare with."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perf_tests.passes.memory import MOST_MOMENTS
from perf_tests.records.store import (
    UNFINISHED,
    encoded,
    list_records,
    read_record,
    remove_unfinished,
    save_record,
    write_whole,
)
from tests.support.launch import ROOT
from tests.support.synthetic import BACKWARD, record, timed, untimed


def refuse(number: int) -> object:
    def refusal(*arguments: object, **names: object) -> None:
        raise OSError(number, os.strerror(number))

    return refusal


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_records_are_numbered_one_after_the_other_and_no_number_is_given_again(tmp_path: Path) -> None:
    """A comparison by number must not silently mean another run."""
    for name in ("first", "second", "third"):
        save_record(record([timed()]), tmp_path, name)
    assert files(tmp_path) == ["0001_first.json", "0002_second.json", "0003_third.json"]
    (tmp_path / "0002_second.json").unlink()
    assert save_record(record([timed()]), tmp_path, "fourth").name == "0004_fourth.json"


@pytest.mark.parametrize("has_links", [True, False])
def test_what_was_saved_is_read_back_with_and_without_links(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    data = record([timed()], [untimed(BACKWARD)])
    paths = [save_record(data, tmp_path, "name") for _ in range(2)]
    assert files(tmp_path) == ["0001_name.json", "0002_name.json"]
    assert [read_record(path).data for path in paths] == [data, data]


def test_each_row_of_a_record_has_a_line_of_its_own() -> None:
    data = record([timed(), timed(BACKWARD)], [untimed()])
    lines = encoded(data).decode().splitlines()
    rows = [json.loads(line.removesuffix(",")) for line in lines if line.startswith("{") and line != "{"]
    assert rows == [*data["benchmarks"], *data["outcomes"]]
    assert len(lines) == 2 + len(data) + len(rows) + 2, "braces, parts, rows, and the ends of two lists"
    assert json.loads(encoded(data)) == data


def test_committed_records_are_as_they_would_be_written_now() -> None:
    for path in sorted((ROOT / ".benchmarks").glob("epyc-2core/*.json")):
        data = json.loads(path.read_bytes())
        assert path.read_bytes() == encoded(data), path
        timelines = [row["values"].get("timeline") or {} for row in data["passes"]]
        moments = [len(held) for timeline in timelines for held in timeline.get("category_bytes", {}).values()]
        assert max(moments, default=0) <= MOST_MOMENTS, path


def test_each_folder_counts_for_itself_and_a_name_stays_inside(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        save_record(record([timed()]), tmp_path / folder, "../a b/c")
    assert files(tmp_path) == ["one", "other"]
    assert files(tmp_path / "one") == files(tmp_path / "other") == ["0001_..-a-b-c.json"]


def test_runs_that_save_at_once_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs = [record([timed()], written=f"2030-01-{day:02}") for day in range(1, 17)]
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda data: save_record(data, tmp_path, "same"), runs))
    assert len(set(paths)) == len(runs)
    assert [read_record(path).data for path in paths] == runs


def test_a_run_that_takes_the_number_first_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between choosing a number and taking it, another process takes it."""
    link = os.link
    rival = tmp_path / "0001_name.json"

    def link_after_rival(source: Path, target: Path) -> None:
        if target == rival:
            rival.write_text("rival")
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_rival)
    path = save_record(record([timed()]), tmp_path, "name")
    assert rival.read_text() == "rival"
    assert path.name == "0002_name.json"


@pytest.mark.parametrize("call", ["fsync", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_refusing_disk_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    save_record(record([timed()]), tmp_path, "before")
    content = (tmp_path / "0001_before.json").read_bytes()
    monkeypatch.setattr(os, call, refuse(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        save_record(record([timed()]), tmp_path, "after")
    assert files(tmp_path) == ["0001_before.json"]
    assert (tmp_path / "0001_before.json").read_bytes() == content


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "out.json").write_text("old")
    monkeypatch.setattr(os, call, refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "out.json", b"new")
    assert files(tmp_path) == ["out.json"]
    assert (tmp_path / "out.json").read_text() == "old"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/null must, which root may replace."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", b"page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/page").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/page")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert [path.read_text() for path in (tmp_path / "elsewhere").iterdir()] == ["new"]


def test_what_a_killed_writer_left_goes_at_the_next_start(tmp_path: Path) -> None:
    """Process ids end below 2**22 on Linux; what another process is writing stays."""
    of_dead, of_living = tmp_path / f"{UNFINISHED}{2**22 + 1}-x", tmp_path / f"{UNFINISHED}{os.getppid()}-x"
    of_dead.touch()
    of_living.touch()
    remove_unfinished(tmp_path)
    assert files(tmp_path) == [of_living.name]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no/page\.html'$"):
        write_whole(tmp_path / "no/page.html", b"")


def test_a_pipe_among_the_records_is_left_out(tmp_path: Path) -> None:
    save_record(record([timed()]), tmp_path / "machine", "name")
    os.mkfifo(tmp_path / "machine/0002_pipe.json")
    listing = list_records(tmp_path)
    assert [found.name for found in listing.records] == ["machine/0001_name"]
    assert len(listing.left_out) == 1
    assert "machine/0002_pipe.json cannot be read: it is a pipe, " in listing.left_out[0]


def test_a_record_has_the_name_of_its_folder_also_where_none_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "machine"
    save_record(record([timed()]), folder, "run")
    monkeypatch.chdir(folder)
    assert read_record(Path("0001_run.json")).name == "machine/0001_run"


def test_a_table_given_for_a_record_is_named_as_no_json(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("size,mean_ms\nsmall,12\n")
    with pytest.raises(ValueError, match=r"it is no JSON, as records are \(.*\); `audit` reads tables of timings\.$"):
        read_record(path)


def test_files_that_are_no_records_are_named_and_left_alone(tmp_path: Path) -> None:
    whole = encoded(record([timed()]))
    foreign = {
        "0001_truncated.json": whole[: len(whole) // 2],
        "0002_empty.json": b"",
        "0003_list.json": b"[]",
        "0004_other-tool.json": b'{"benchmarks": []}',
        "0005_no-text.json": b"\xff\xfe\x00",
        "0006_deep.json": b"[" * 100_000,
    }
    (tmp_path / "machine/0007_folder.json").mkdir(parents=True)
    for name, content in foreign.items():
        (tmp_path / "machine" / name).write_bytes(content)
    save_record(record([timed()]), tmp_path / "machine", "good")
    listing = list_records(tmp_path)
    assert [stored.path.name for stored in listing.records] == ["0008_good.json"]
    for name, sentence in zip([*foreign, "0007_folder.json"], listing.left_out, strict=True):
        assert name in sentence
        assert "cannot be" in sentence
    assert {name: (tmp_path / "machine" / name).read_bytes() for name in foreign} == foreign


def test_records_of_several_folders_are_listed_by_date(tmp_path: Path) -> None:
    for folder, date in (("a", "2030-01-02"), ("b", "2030-01-03"), ("c", "2030-01-01")):
        save_record(record([timed()], written=date), tmp_path / folder, "name")
    assert [found.path.parent.name for found in list_records(tmp_path).records] == ["c", "a", "b"]
    assert list_records(tmp_path / "nowhere").records == []
