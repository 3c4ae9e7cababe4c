"""Records on disk: whole or not at all, never over another; found by what is typed, and the right one compared with."""

import errno
import fcntl
import json
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.history.commits import machines_of
from perf_tests_suite.perf_tests.passes.memory import MOST_MOMENTS
from perf_tests_suite.perf_tests.phases import UsageError
from perf_tests_suite.perf_tests.records import store
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, Times, is_shard
from tests.support.documents import ROOT
from tests.support.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, machine, record, timed, untimed, write_record

Status = store.Status


def refuse(number: int) -> Callable[..., None]:
    def refusal(*arguments: object, **names: object) -> None:
        raise OSError(number, os.strerror(number))

    return refusal


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


RUNS: dict[str, tuple[str | None, str | None]] = {
    "older records": (None, None),
    "with their runs": ("journal-1", "journal-2"),
}


def part(name: str, run: str | None, **settings: object) -> Json:
    """A record of one case."""
    data = record([timed(name)])
    return {**data, "suite": {**data["suite"], "run": run, "settings": settings}}


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_of_a_record_that_an_older_version_merged_the_parts_are_not_read_again(
    runs: tuple[str | None, str | None], tmp_path: Path
) -> None:
    """Else launches of a commit would count twice; the same parts merged twice, or a run saved twice, are one run."""
    parts = [
        part(name, run, shard=[n, 2]) for n, (name, run) in enumerate(zip((FORWARD, BACKWARD), runs, strict=True), 1)
    ]
    names = ["machine/0001_abc", "machine/0002_abc"]
    whole = record([timed(FORWARD), timed(BACKWARD)])
    whole["suite"] |= {"run": None, "merged_from": names, "merged_runs": [*runs]}
    stored = [*parts, whole, *([parts[0], whole] if runs[0] else [])]
    for number, data in enumerate([*stored, part(FORWARD, "other")], 1):
        write_record(tmp_path / f"machine/000{number}_abc.json", data)
    left = ["machine/0003_abc", f"machine/000{len(stored) + 1}_abc"]
    assert [one.name for one in store.list_records(tmp_path).records] == left
    launches = [one.name for machine in machines_of(store.list_records(tmp_path).records) for one in machine.launches]
    assert launches == left
    compared = store.compare(whole, parts[0], gone_counts=not is_shard(parts[0]))
    assert not any(row.is_failure for row in compared), "cases of other parts are not gone"


# Writing.


@pytest.mark.parametrize("why_no_links", [None, errno.EPERM, errno.ENOSYS, errno.EXDEV])
def test_no_number_is_given_again(why_no_links: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison by number must not silently mean another run; each folder counts for itself, a name stays inside."""
    if why_no_links is not None:
        monkeypatch.setattr(os, "link", refuse(why_no_links))
    data = record([timed()], [untimed(BACKWARD)])
    paths = [store.save_record(data, tmp_path / "one", name) for name in ("first", "second", "../a b/c")]
    assert [store.read_record(path).data for path in paths] == 3 * [data]
    assert files(tmp_path / "one") == ["0001_first.json", "0002_second.json", "0003_..-a-b-c.json"]
    paths[1].unlink()
    paths[2].with_name("0003_x.json.xz").write_bytes(lzma.compress(paths[2].read_bytes()))
    paths[2].unlink()
    (packed,) = store.record_files(tmp_path / "one", "0003*")
    assert (store.read_record(packed).name, store.read_record(packed).data) == ("one/0003_x", data)
    assert store.save_record(data, tmp_path / "one", "fourth").name == "0004_fourth.json"
    assert store.save_record(data, tmp_path / "other", "x").name == "0001_x.json"


@pytest.mark.parametrize("has_links", [True, False])
def test_whoever_takes_a_number_keeps_it(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between choosing a number and taking it, another process takes it."""
    link, rivals = os.link, [tmp_path / "0001_name.json", tmp_path / "0002_rival.json"]

    def link_after_rivals(source: Path, target: Path) -> None:
        for rival in rivals:
            rival.write_text("rival")
        (link if has_links else refuse(errno.ENOTSUP))(source, target)

    monkeypatch.setattr(os, "link", link_after_rivals)
    assert store.save_record(record([timed()]), tmp_path, "name").name == "0003_name.json"
    assert [rival.read_text() for rival in rivals] == 2 * ["rival"]


def test_each_row_of_a_record_has_a_line_of_its_own_in_committed_ones_too() -> None:
    data = record([timed(), timed(BACKWARD)], [untimed()])
    lines = store.encoded(data).decode().splitlines()
    rows = [json.loads(line.removesuffix(",")) for line in lines if line.startswith("{") and line != "{"]
    assert rows == [*data["benchmarks"], *data["outcomes"]]
    assert len(lines) == 2 + len(data) + len(rows) + 2, "braces, parts, rows, and the ends of two lists"
    # Records of whoever runs this lie in a folder of their machine beside it.
    committed = [path for path in store.record_files(ROOT / ".benchmarks") if path.parent.name == "epyc-2core"]
    assert len({path.name[:4] for path in committed}) == len(committed) > 3
    for path in committed:
        data, opened = store.read_record(path).data, lzma.open if path.suffix == ".xz" else open
        with opened(path, "rb") as file:
            assert file.read() == store.encoded(data), path
        timelines = [row["values"].get("timeline") or {} for row in data["passes"]]
        moments = [len(held) for timeline in timelines for held in timeline.get("category_bytes", {}).values()]
        assert max(moments, default=0) <= MOST_MOMENTS, path


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_refusing_disk_is_unchanged(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.save_record(record([timed()]), tmp_path, "before")
    content = path.read_bytes()
    monkeypatch.setattr(os, call, refuse(errno.EACCES))
    new = partial(store.save_record, record([timed()]), tmp_path, "after")
    writers: dict[str, Callable[[], object]] = {"replace": new, "link": partial(store.write_whole, path, b"")}
    for write in (write for spared, write in writers.items() if spared != call):
        with pytest.raises(OSError, match="denied"):
            write()
    assert (files(tmp_path), path.read_bytes()) == (["0001_before.json"], content)


def test_a_pipe_and_a_link_stay_what_they_are(tmp_path: Path) -> None:
    """A pipe as /dev/null must, which root may replace."""
    pipe, target, link = tmp_path / "pipe", tmp_path / "elsewhere/page", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    store.write_whole(pipe, b"page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to("elsewhere/page")
    store.write_whole(link, b"new")
    assert (pipe.is_fifo(), link.is_symlink(), files(target.parent)) == (True, True, ["page"])
    assert target.read_text() == "new"


def test_what_a_killed_writer_left_goes_at_the_next_start(tmp_path: Path) -> None:
    """Process ids end below 2**22 on Linux; what another process is writing stays, wherever its number counts."""
    names = [f"{store.UNFINISHED}{process}-x" for process in (2**22 + 1, os.getppid(), 2**22 + 2)]
    for name in names:
        (tmp_path / name).touch()
    with (tmp_path / names[2]).open("rb") as of_another_container:
        store.take_lock(of_another_container)
        store.remove_unfinished(tmp_path)
        assert set(files(tmp_path)) == {*names[1:]}


def test_a_file_system_without_locks_takes_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
        monkeypatch.setattr(fcntl, "flock", refuse(number))
        assert store.read_record(store.save_record(FIGURE, tmp_path, "name")).data == FIGURE


def test_an_error_names_the_file_that_was_asked_for_and_the_option() -> None:
    with pytest.raises(FileNotFoundError, match=r"no/page\.html'$"):
        store.write_whole(Path("no/page.html"), b"")
    with pytest.raises(UsageError, match=r"^no/page cannot be written: No .*; name another file with --out\.$"):
        store.write_named("no/page", b"", "--out")


# Reading.


def test_files_that_are_no_records_are_named_and_left_out(tmp_path: Path) -> None:
    whole = store.encoded(record([timed()]))
    foreign = {"0001_torn.json": whole[: len(whole) // 2], "0002_list.json": b"[]", "0003_bytes.json": b"\xff\xfe\x00",
               "0004_deep.json": b"[" * 100_000, "0005_time.json": whole.replace(b"1.04,", b"1e-320,")}  # fmt: skip
    (tmp_path / "machine/0006_folder.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "machine/0007_pipe.json")
    for name, content in foreign.items():
        (tmp_path / "machine" / name).write_bytes(content)
    store.save_record(record([timed()]), tmp_path / "machine", "good")
    listing = store.list_records(tmp_path)
    assert [stored.name for stored in listing.records] == ["machine/0008_good"]
    for name, sentence in zip([*foreign, "0006_folder.json", "0007_pipe.json"], listing.left_out, strict=True):
        assert sentence.count(f"machine/{name} cannot be ") == len(sentence.splitlines()) == 1
    (tmp_path / "times.csv").write_text("size,mean_ms\nsmall,12\n")
    with pytest.raises(ValueError, match=r"it is not JSON, as records are \(.*\); `audit` reads tables of timings\.$"):
        store.read_record(tmp_path / "times.csv")


def test_records_are_listed_by_date_and_a_name_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, date in (("a", "2030-01-02"), ("b", "2030-01-03"), ("c", "2030-01-01")):
        data = record([timed()], written=date)
        store.save_record({**data, "suite": {**data["suite"], "run": folder}}, tmp_path / folder, "name")
    records = store.list_records(tmp_path).records
    assert [found.name for found in records] == ["c/0001_name", "a/0001_name", "b/0001_name"]
    assert (store.newest(records[::-1]), store.newest([])) == (records[-1], None)
    assert all(store.list_records(tmp_path / name).records == [] for name in ("nowhere", "x" * 300))
    assert [store.saved_as(tmp_path / "a", run) for run in "ab"] == [tmp_path / "a/0001_name.json", None]
    monkeypatch.chdir(tmp_path / "a")
    assert store.read_record(Path("0001_name.json")).name == "a/0001_name"


NAMED = {
    "0001": ["a/0001_x"], "a/0001": ["a/0001_x"], "0": ["a/0001_x", "b/0002_x"],
    "{storage}/a/0001_x.json": ["a/0001_x"], "{storage}/b": ["b/0002_x"], "{storage}": ["a/0001_x", "b/0002_x"],
    "": ["a/0001_x", "b/0002_x"],
}  # fmt: skip


def test_records_are_named_by_path_folder_or_beginning_of_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no record; `perf-tests run` records one"):
        store.chosen_paths(tmp_path, [])
    paths = {name: write_record(tmp_path / f"{name}.json", record()) for name in ("a/0001_x", "b/0002_x")}
    for words, names in NAMED.items():
        found = store.chosen_paths(tmp_path, 2 * words.format(storage=tmp_path).split())
        assert found == [paths[name] for name in names], "each once"
    (tmp_path / "c").mkdir()
    for word in ("0003", "x" * 5000, "a\0b", f"{tmp_path}/c"):
        with pytest.raises(ValueError, match=r"a folder without records\.$|stored there: a/0001_x, b/0002_x\.$"):
            store.chosen_paths(tmp_path, [word])


def test_a_large_file_is_named_before_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("small", "missing", "large", "x" * 300)]
    paths[0].touch()
    paths[2].touch()
    os.truncate(paths[2], 50_000_000)
    assert list(store.announced(paths)) == paths
    assert capsys.readouterr().err == f"Reading {paths[2]}, 50 MB ...\n"


TYPED = {"records is none.": "./records is none.", "my-records": "my-records", "in x/records": "in x/records",
         "./records": "./records", "records.json": "records.json"}  # fmt: skip


def test_only_the_path_is_written_as_it_was_typed() -> None:
    assert {said: store.as_typed(said, ["--storage=./records"]) for said in TYPED} == TYPED


# Comparing.


CHANGES: Json = {"batch_size": 8, "optimizer": "fused", "model": "theirs:build", "d_model": 64, "device": "cuda"}
NO_CASE: Json = record()
FIGURE, LOST = record([timed()]), record([], [untimed(reason="too large")])
TOLD: dict[str, tuple[Json, Json, Status, bool, str]] = {
    "new": (NO_CASE, FIGURE, Status.NEW, False, ""),
    "new, without a figure": (NO_CASE, LOST, Status.NEW, False, "now out of memory: too large"),
    "gone": (FIGURE, NO_CASE, Status.GONE, True, ""),
    "measured at last": (LOST, FIGURE, Status.MEASURED_NOW, False, "out of memory before"),
    "never measured": (LOST, LOST, Status.NEVER, False, "too large"),
    "never measured and gone": (LOST, NO_CASE, Status.NEVER, False, "out of memory before, and not part of this run"),
    # A batch eight times as large that does not fit says nothing about the smaller one.
    "another case of the id, without a figure": (
        FIGURE, record([], [untimed(batch_size=32)]), Status.INCOMPARABLE, False, "batch_size was 4, is 32",
    ),
    **{outcome: (
        FIGURE, record([], [untimed(outcome=outcome, reason="why")]), Status.NO_LONGER, True,
        f"now {OUTCOMES[outcome]}: why",
    ) for outcome in OUTCOMES},
    **{f"another {name}": (
        FIGURE, record([timed(FORWARD, TEN_ROUNDS, **{name: value})]), Status.INCOMPARABLE, False, f"is {value!r}",
    ) for name, value in CHANGES.items()},
}  # fmt: skip


@pytest.mark.parametrize("claim", TOLD)
def test_a_case_without_two_figures_is_told_for_what_it_is(claim: str) -> None:
    before, now, status, is_failure, words = TOLD[claim]
    (row,) = store.compare(before, now)
    assert (row.id, row.status, row.ratio, row.is_failure) == (FORWARD, status, None, is_failure)
    assert words in row.explanation


def test_a_case_of_both_runs_has_its_ratio_and_what_is_only_before_may_be_left_out() -> None:
    slower = record([timed(seconds=[1.1 * seconds for seconds in TEN_ROUNDS])])
    (row,) = store.compare(FIGURE, slower)
    assert (row.status, row.is_failure) == (Status.MEASURED, False)
    assert row.ratio == pytest.approx(1.1)
    assert row.interval == pytest.approx((1.1 * 1.01 / 1.08, 1.1 * 1.08 / 1.01))
    assert store.compare(slower, NO_CASE, gone_counts=False) == []


def test_seven_rounds_give_an_interval_and_fewer_none() -> None:
    """With 6, no pair of order statistics holds the median at 97.5 %, which both must for the ratio's 95 %."""
    for few in (Times(TEN_ROUNDS[:count]) for count in range(7)):
        assert store.ratio_interval(few, Times(TEN_ROUNDS)) is store.ratio_interval(Times(TEN_ROUNDS), few) is None
    assert store.ratio_interval(Times(TEN_ROUNDS[:7]), Times(TEN_ROUNDS[:7])) == (1.00 / 1.06, 1.06 / 1.00)


# The baseline.


def stored(storage: Path, data: Json, name: str = "run") -> Path:
    return store.save_record(data, store.machine_folder(storage), name)


BOTH, NONE = record([timed(), timed(BACKWARD)]), record([timed("other")])
ONE_LOST = record([timed()], [untimed(BACKWARD)])
BOTH_OTHERWISE = record([timed(batch_size=2), timed(BACKWARD, batch_size=2)])
DISTURBED = record([timed(), timed(BACKWARD, flags=["busy_machine"])])
ELSEWHERE = record([timed(), timed(BACKWARD)], brand_raw="Other CPU")
BASELINES: dict[str, tuple[list[Json], int | None]] = {
    "the newest that covers the selection": ([BOTH, BOTH, FIGURE], 2),
    "a case that ran out of memory is covered": ([ONE_LOST, FIGURE], 1),
    "the newest with any of the selection, where none covers it": ([FIGURE, NONE], 1),
    "the newest of the same batch size": ([BOTH, BOTH_OTHERWISE], 1),
    "one case of the same batch size rather than none": ([FIGURE, BOTH_OTHERWISE], 1),
    "one of another batch size where there is no other, to name the field": ([BOTH_OTHERWISE], 1),
    "none with nothing of the selection": ([NONE], None),
    "one measured alone rather than a newer one beside others": ([BOTH, DISTURBED, FIGURE], 1),
    "one measured beside others where there is no other": ([FIGURE, DISTURBED], 2),
    "none of another machine": ([BOTH, ELSEWHERE], 1),
}


@pytest.mark.parametrize("claim", BASELINES)
def test_the_baseline_is(claim: str, tmp_path: Path) -> None:
    by_date, number = BASELINES[claim]
    paths = [stored(tmp_path, {**data, "datetime": f"2030-01-0{day}"}) for day, data in enumerate(by_date, 1)]
    found = store.latest_baseline(store.list_records(tmp_path).records, machine(), store.rows_by_id(BOTH))
    assert (found.path if found else None) == (paths[number - 1] if number else None)


def test_a_baseline_is_found_by_its_number_path_or_the_beginning_of_its_name(tmp_path: Path) -> None:
    """A number means this interpreter's folder, where that has it."""
    committed = store.save_record(FIGURE, tmp_path / "named-machine", "run")
    assert store.numbered_baseline(tmp_path, "0001", machine()).path == committed
    first, second, _ = (stored(tmp_path, FIGURE, name) for name in ("first", "second", "third"))
    for asked in ("0002", "0002_second", "0002_second*", "0002_s", str(second)):
        assert store.numbered_baseline(tmp_path, asked, machine()).path == second
    assert store.numbered_baseline(tmp_path, "0001", machine()).path == first
    assert store.numbered_baseline(tmp_path, "named-machine/0001", machine()).path == committed


UNUSABLE: dict[str, tuple[str, ...]] = {
    "0*_o": ("0001_one", "0002_other", "give more of the name"),
    "0003": ("0003_broken.json cannot be read",),
    "0004": ("recorded on another machine", "threads: here: 4, there: 1", "Record a baseline here first"),
    **dict.fromkeys(("/nowhere/0001.json", "a**", "[", "0009"), ("matches no record", "recorded here: 0001_one")),
    **dict.fromkeys(("", ".", "..", "a/../..", "**", "*"), ("--benchmark-compare=",)),
}


def test_whatever_is_asked_for_ends_in_a_sentence(tmp_path: Path) -> None:
    changed = {"one": FIGURE, "other": FIGURE, "broken": NO_CASE, "elsewhere": record([timed()], threads=1)}
    for name, data in changed.items():
        stored(tmp_path, data, name)
    (store.machine_folder(tmp_path) / "0003_broken.json").write_text("{")
    for asked, words in UNUSABLE.items():
        with pytest.raises(store.BaselineError) as caught:
            store.numbered_baseline(tmp_path, asked, machine())
        assert len(str(caught.value).splitlines()) == 1
        assert all(word in str(caught.value) for word in words), asked
