"""Records on disk: whole or not at all, never over another; found by what is typed, and the right one compared with."""

import errno
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import exp
from pathlib import Path

import pytest

from perf_tests.passes.memory import MOST_MOMENTS
from perf_tests.phases import UsageError
from perf_tests.records.record import OUTCOMES, Json, Times
from perf_tests.records.store import (
    UNFINISHED,
    BaselineError,
    ComparedCase,
    Status,
    announced,
    as_typed,
    check_folder,
    chosen_paths,
    compare,
    encoded,
    latest_baseline,
    list_records,
    newest,
    numbered_baseline,
    own_folder,
    ratio_interval,
    read_record,
    remove_unfinished,
    rows_by_id,
    save_record,
    saved_as,
    write_named,
    write_whole,
)
from tests.support.documents import ROOT
from tests.support.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, machine, record, timed, untimed, write_record


def refuse(number: int) -> Callable[..., None]:
    def refusal(*arguments: object, **names: object) -> None:
        raise OSError(number, os.strerror(number))

    return refusal


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Writing.


def test_records_are_numbered_one_after_the_other_and_no_number_is_given_again(tmp_path: Path) -> None:
    """A comparison by number must not silently mean another run; each folder counts for itself, a name stays inside."""
    for name in ("first", "second", "../a b/c"):
        save_record(record([timed()]), tmp_path / "one", name)
    assert files(tmp_path / "one") == ["0001_first.json", "0002_second.json", "0003_..-a-b-c.json"]
    (tmp_path / "one/0002_second.json").unlink()
    assert save_record(record([timed()]), tmp_path / "one", "fourth").name == "0004_fourth.json"
    assert save_record(record([timed()]), tmp_path / "other", "x").name == "0001_x.json"


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


def test_runs_that_save_at_once_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs = [record([timed()], written=f"2030-01-{day:02}") for day in range(1, 17)]
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda data: save_record(data, tmp_path, "same"), runs))
    assert len(set(paths)) == len(runs)
    assert [read_record(path).data for path in paths] == runs


def test_a_run_that_takes_the_number_first_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between choosing a number and taking it, another process takes it."""
    link, rival = os.link, tmp_path / "0001_name.json"

    def link_after_rival(source: Path, target: Path) -> None:
        if target == rival:
            rival.write_text("rival")
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_rival)
    assert save_record(record([timed()]), tmp_path, "name").name == "0002_name.json"
    assert rival.read_text() == "rival"


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_refusing_disk_is_unchanged(call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_record(record([timed()]), tmp_path, "before")
    content = path.read_bytes()
    monkeypatch.setattr(os, call, refuse(number))
    if call != "replace":
        with pytest.raises(OSError, match=os.strerror(number)):
            save_record(record([timed()]), tmp_path, "after")
    if call != "link":
        with pytest.raises(OSError, match=os.strerror(number)):
            write_whole(path, b"new")
    assert files(tmp_path) == ["0001_before.json"]
    assert path.read_bytes() == content


def test_a_pipe_and_a_link_stay_what_they_are(tmp_path: Path) -> None:
    """A pipe as /dev/null must, which root may replace."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", b"page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
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


def test_an_error_names_the_file_that_was_asked_for_and_the_option(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no/page\.html'$"):
        write_whole(tmp_path / "no/page.html", b"")
    said = r"^no/page cannot be written: No such .*; name another file with --out\.$"
    with pytest.raises(UsageError, match=said):
        check_folder("no/page", "--out")
    with pytest.raises(UsageError, match=said):
        write_named("no/page", b"", "--out")


# Reading.


def test_files_that_are_no_records_are_named_and_left_alone(tmp_path: Path) -> None:
    whole = encoded(record([timed()]))
    foreign = {
        "0001_truncated.json": whole[: len(whole) // 2], "0002_empty.json": b"", "0003_list.json": b"[]",
        "0004_other-tool.json": b'{"benchmarks": []}', "0005_no-text.json": b"\xff\xfe\x00",
        "0006_deep.json": b"[" * 100_000, "0007_time.json": whole.replace(b"1.04,", b"1e-320,"),
    }  # fmt: skip
    (tmp_path / "machine/0008_folder.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "machine/0009_pipe.json")
    for name, content in foreign.items():
        (tmp_path / "machine" / name).write_bytes(content)
    save_record(record([timed()]), tmp_path / "machine", "good")
    listing = list_records(tmp_path)
    assert [stored.name for stored in listing.records] == ["machine/0010_good"]
    for name, sentence in zip([*foreign, "0008_folder.json", "0009_pipe.json"], listing.left_out, strict=True):
        assert sentence.count(f"machine/{name} cannot be ") == 1
        assert len(sentence.splitlines()) == 1
    assert {name: (tmp_path / "machine" / name).read_bytes() for name in foreign} == foreign


def test_a_table_given_for_a_record_is_named_as_no_json(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("size,mean_ms\nsmall,12\n")
    with pytest.raises(ValueError, match=r"it is no JSON, as records are \(.*\); `audit` reads tables of timings\.$"):
        read_record(tmp_path / "times.csv")


def test_records_are_listed_by_date_and_a_name_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, date in (("a", "2030-01-02"), ("b", "2030-01-03"), ("c", "2030-01-01")):
        save_record(record([timed()], written=date), tmp_path / folder, "name")
    records = list_records(tmp_path).records
    assert [found.name for found in records] == ["c/0001_name", "a/0001_name", "b/0001_name"]
    assert newest(records[::-1]) is records[-1]
    assert newest([]) is None
    assert list_records(tmp_path / "nowhere").records == []
    monkeypatch.chdir(tmp_path / "a")
    assert read_record(Path("0001_name.json")).name == "a/0001_name"


def test_a_run_is_found_that_was_saved_already(tmp_path: Path) -> None:
    data = record([timed()])
    path = save_record({**data, "suite": {**data["suite"], "run": "journal-7"}}, tmp_path, "x")
    assert (saved_as(tmp_path, "journal-7"), saved_as(tmp_path, "journal-8")) == (path, None)


NAMED = {
    "0001": ["a/0001_x"], "a/0001": ["a/0001_x"], "0": ["a/0001_x", "b/0002_x"],
    "{storage}/a/0001_x.json": ["a/0001_x"],
    "{storage}/b": ["b/0002_x"], "{storage}": ["a/0001_x", "b/0002_x"], "": ["a/0001_x", "b/0002_x"],
}  # fmt: skip


@pytest.mark.parametrize("words", NAMED)
def test_records_are_named_by_path_folder_or_beginning_of_a_name(words: str, tmp_path: Path) -> None:
    paths = {name: write_record(tmp_path / f"{name}.json", record()) for name in ("a/0001_x", "b/0002_x")}
    found = chosen_paths(tmp_path, 2 * words.format(storage=tmp_path).split())
    assert found == [paths[name] for name in NAMED[words]], "each once"


@pytest.mark.parametrize("word", ["0003", "x" * 5000, "a\0b", "{storage}/c"])
def test_a_word_that_matches_nothing_is_one_sentence_with_what_is_known(word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no record; `pytest perf_tests` records a run"):
        chosen_paths(tmp_path, [])
    write_record(tmp_path / "a/0001_x.json", record())
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"a folder without records\.$|stored there: a/0001_x\.$"):
        chosen_paths(tmp_path, [word.format(storage=tmp_path)])


def test_a_large_file_is_named_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_record(tmp_path / "0001_many.json", record([timed()])), tmp_path / "missing"]
    assert list(announced(paths)) == paths
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("perf_tests.records.store.LARGE_BYTES", 1000)
    assert next(announced(paths)) == paths[0]
    assert capsys.readouterr().err.startswith(f"Reading {paths[0]}, ")


def test_only_the_path_is_written_as_it_was_typed() -> None:
    said = "records is a folder without records."
    assert as_typed(said, ["./records"]) == "./records is a folder without records."
    assert as_typed("my-run.json, ./run.json", ["./run.json"]) == "my-run.json, ./run.json"
    assert as_typed("in x/run.json", ["./run.json"]) == "in x/run.json"


# Comparing.


def only_row(before: Json, now: Json) -> ComparedCase:
    (row,) = compare(before, now)
    return row


CHANGES: Json = {"batch_size": 8, "optimizer": "fused", "model": "theirs:build", "d_model": 64, "device": "cuda"}
TOLD: dict[str, tuple[Json, Json, Status, bool, str]] = {
    "a case without a row before is new": (record(), record([timed()]), Status.NEW, False, ""),
    "a case without a row now is gone and a failure": (record([timed()]), record(), Status.GONE, True, ""),
    "a case that has a figure at last says what it was": (
        record([], [untimed()]), record([timed()]), Status.MEASURED_NOW, False, "out of memory before"
    ),
    "a case without a figure in either is told with its reason": (
        record([], [untimed()]), record([], [untimed(reason="still too large")]), Status.NEVER, False, "still too large"
    ),
    "a case without a figure before and without a row now is not forgotten": (
        record([], [untimed()]), record(), Status.NEVER, False, "out of memory before, and not part of this run"
    ),
    "a new case without a figure says why": (
        record(), record([], [untimed(reason="too large")]), Status.NEW, False, "now out of memory: too large"
    ),
    # A batch eight times as large that does not fit says nothing about the smaller one.
    "another case of the same id is incomparable though it has no figure": (
        record([timed(batch_size=4)]), record([], [untimed(batch_size=32)]), Status.INCOMPARABLE, False,
        "batch_size was 4, is 32",
    ),
    **{f"an {outcome} case is a failure where it had a figure": (
        record([timed()]), record([], [untimed(outcome=outcome, reason="why")]), Status.NO_LONGER, True,
        f"now {OUTCOMES[outcome]}: why",
    ) for outcome in OUTCOMES},
    **{f"another {name} is incomparable": (
        record([timed()]), record([timed(FORWARD, TEN_ROUNDS, **{name: value})]), Status.INCOMPARABLE, False,
        f"is {value!r}",
    ) for name, value in CHANGES.items()},
}  # fmt: skip


@pytest.mark.parametrize("claim", TOLD)
def test_a_case_without_two_figures_is_told_for_what_it_is(claim: str) -> None:
    before, now, status, is_failure, words = TOLD[claim]
    row = only_row(before, now)
    assert (row.id, row.status, row.ratio, row.is_failure) == (FORWARD, status, None, is_failure)
    assert words in row.explanation


def test_a_case_of_both_runs_has_its_ratio_and_what_is_only_before_may_be_left_out() -> None:
    slower = record([timed(seconds=[1.1 * seconds for seconds in TEN_ROUNDS])])
    row = only_row(record([timed()]), slower)
    assert (row.status, row.is_failure) == (Status.MEASURED, False)
    assert row.ratio == pytest.approx(1.1)
    assert row.interval is not None
    assert row.interval[0] < 1.1 < row.interval[1]
    assert compare(slower, record(), gone_counts=False) == []


def test_seven_rounds_give_an_interval_and_fewer_none() -> None:
    for few in (Times(TEN_ROUNDS[:count]) for count in range(7)):
        assert ratio_interval(few, Times(TEN_ROUNDS)) is ratio_interval(Times(TEN_ROUNDS), few) is None
    assert ratio_interval(Times(TEN_ROUNDS[:7]), Times(TEN_ROUNDS[:7])) == (1.00 / 1.06, 1.06 / 1.00)


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "log-normal": lambda source: exp(source.gauss(0, 0.1)),
    "exponential": lambda source: 1 + source.expovariate(1),
    "uniform with outliers": lambda source: source.uniform(1, 1.1) * (10 if source.random() < 0.1 else 1),
    "two modes": lambda source: source.gauss(1.0 if source.random() < 0.6 else 1.5, 0.01),
}


@pytest.mark.parametrize("rounds", [7, 10, 30])
@pytest.mark.parametrize("name", DRAWS)
def test_the_interval_covers_the_true_ratio_in_95_of_100_pairs_of_runs(name: str, rounds: int) -> None:
    """Both runs draw from one distribution and the second is stretched, so the ratio of the medians is known."""
    source, draw = random.Random(2027), DRAWS[name]
    pairs, true_ratio, covered = 3000, 1.3, 0
    for _ in range(pairs):
        before = Times(draw(source) for _ in range(rounds))
        now = Times(true_ratio * draw(source) for _ in range(rounds))
        interval = ratio_interval(now, before)
        assert interval is not None
        covered += interval[0] <= true_ratio <= interval[1]
    assert covered / pairs >= 0.95


# The baseline.


def stored(storage: Path, data: Json, name: str = "run") -> Path:
    return save_record(data, own_folder(storage), name)


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
    found = latest_baseline(list_records(tmp_path).records, machine(), rows_by_id(BOTH))
    assert (found.path if found else None) == (paths[number - 1] if number else None)


@pytest.mark.parametrize("asked", ["0002", "0002_second", "0002_second*", "0002_s", "{storage}/0002_second.json"])
def test_a_baseline_is_found_by_its_number_path_or_the_beginning_of_its_name(asked: str, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        stored(tmp_path, record([timed()]), name)
    asked = asked.format(storage=own_folder(tmp_path))
    assert numbered_baseline(tmp_path, asked, machine()).path.stem == "0002_second"


def test_a_number_means_this_interpreters_folder_and_another_is_named_with_it(tmp_path: Path) -> None:
    committed = save_record(record([timed()]), tmp_path / "named-machine", "run")
    assert numbered_baseline(tmp_path, "0001", machine()).path == committed, "no other has this number"
    own = stored(tmp_path, record([timed()]))
    assert numbered_baseline(tmp_path, "0001", machine()).path == own
    assert numbered_baseline(tmp_path, "named-machine/0001", machine()).path == committed


UNUSABLE: dict[str, tuple[str, ...]] = {
    "0*_o": ("0001_one", "0002_other", "give more of the name"),
    "0003": ("0003_broken.json cannot be read",),
    "0004": ("recorded on another machine", "threads: 4 here, 1 there", "Record a baseline here first"),
    **dict.fromkeys(("/nowhere/0001.json", "a**", "[", "0009"), ("matches no record", "recorded here: 0001_one")),
}


@pytest.mark.parametrize("asked", [*UNUSABLE, "", ".", "..", "a/../..", "**", "*"])
def test_whatever_is_asked_for_ends_in_a_sentence(asked: str, tmp_path: Path) -> None:
    for name, data in {"one": record([timed()]), "other": record([timed()]), "broken": record(),
                       "elsewhere": record([timed()], threads=1)}.items():  # fmt: skip
        stored(tmp_path, data, name)
    (own_folder(tmp_path) / "0003_broken.json").write_text("{")
    with pytest.raises(BaselineError) as caught:
        numbered_baseline(tmp_path, asked, machine())
    assert len(str(caught.value).splitlines()) == 1
    assert all(words in str(caught.value) for words in UNUSABLE.get(asked, ()))
