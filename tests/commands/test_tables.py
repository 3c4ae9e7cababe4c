"""`tables`: which records it takes, what it writes, and rows and columns chosen from the table of cases."""

import csv
import io
import json
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.columns import COLUMNS
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.verbs.tables import exported
from tests.support.launch import Verb
from tests.support.synthetic import record, timed, timed_attention, write_record


@pytest.fixture
def tables(tmp_path: Path, verb: Verb) -> Verb:
    """Type the verb on the records below the test's folder."""
    return lambda *words: verb("tables", f"--storage={tmp_path}", *words)


def rows_of(ended: tuple[int, str, str]) -> list[Json]:
    """Read the rows that a verb printed as JSON Lines."""
    assert ended[0] == 0
    return [json.loads(line) for line in ended[1].splitlines()]


def sized(size: str, written: str = "2030") -> Json:
    return record([timed(size=size)], written=written)


def test_the_newest_record_is_shown_or_those_that_are_named(tmp_path: Path, tables: Verb) -> None:
    write_record(tmp_path / "a/0001_x.json", sized("newest", "2030"))
    write_record(tmp_path / "b/0002_x.json", sized("other", "2029"))
    for words, sizes in {"": ["newest"], "a/0001": ["newest"], "0002 0001": ["other", "newest"]}.items():
        assert [row["size"] for row in rows_of(tables("--format=jsonl", *words.split()))] == sizes
        code, shown, _ = tables("--json", *words.split())
        found = [(one["cases"][0]["size"], one["timing"][0]["Size"]) for one in json.loads(shown)]
        assert (code, found) == (0, [(size, size) for size in sizes])
    code, _, said = tables("--only=attention", "0001")
    assert (code, "a/0001_x: no figures for this table" in said) == (1, True)
    code, shown, _ = tables("--format=csv", "--only=timing", "0001", "0002")
    rows = [(row["record"], row["Size"]) for row in csv.DictReader(shown.splitlines())]
    assert (code, rows) == (0, [("a/0001_x", "newest"), ("b/0002_x", "other")])


def test_a_record_that_cannot_be_read_is_left_out_with_a_sentence(tmp_path: Path, tables: Verb) -> None:
    broken = write_record(tmp_path / "a/0001_x.json", json.dumps(sized("torn"))[:-1])
    assert tables()[0] == 3
    write_record(tmp_path / "a/0002_x.json", sized("sound"))
    for words in ((), ("--json",)):
        code, shown, said = tables(*words)
        assert (code, "sound" in shown, len(said.splitlines())) == (1, True, 1)
        assert said.startswith(f"Left out: {broken} cannot be read")


def test_a_folder_gets_one_file_for_each_table(tmp_path: Path, tables: Verb) -> None:
    write_record(tmp_path / "a/0001_x.json", record([timed(), timed_attention()]))
    code, shown, _ = tables(f"--output={tmp_path}/out/deep")
    paths = sorted((tmp_path / "out/deep").iterdir())
    assert [path.name for path in paths] == ["attention.md", "timing.md"]
    assert (code, sorted(shown.splitlines())) == (0, sorted(map(str, paths)))


THREE = [timed("a", (0.2, 0.2), mfu=0.5), timed("b", (0.1, 0.1), attention="sdpa"),
         timed("c", (0.3, 0.3), size="small", attention="sdpa", mfu=0.25)]  # fmt: skip
CHOSEN = {
    "--sort=-median_seconds": "cab",
    "--sort=attention,-median_seconds": "acb",
    "--sort=size": "cab",
    "--where=size=tiny,small --where=attention=sdpa --sort=size": "cb",
    "--where=batch_size=4.0 --where=head_dim= --sort=id": "abc",
    "--where=commit_has_changes=FALSE --sort=id": "abc",
    "--sort=mfu": "cab",
    "--sort=-mfu": "acb",
    "--against-axis=attention=naive --sort=-speedup": "bac",
}
"""Words, and the cases in their order; what is not known sorts last either way."""


def test_rows_and_columns_are_chosen_and_sorted(tmp_path: Path, tables: Verb) -> None:
    write_record(tmp_path / "machine/0001_x.json", record(THREE))

    def rows(words: str) -> list[Json]:
        return rows_of(tables("--format=jsonl", *words.split()))

    assert {words: "".join(row["id"] for row in rows(words)) for words in CHOSEN} == CHOSEN
    assert [list(row) for row in rows("--where=id=a")] == [list(COLUMNS)]
    shown = rows("--columns=speedup,id --against-axis=attention=naive --where=size=tiny")
    assert shown == [{"speedup": 1.0, "id": "a"}, {"speedup": pytest.approx(2.0), "id": "b"}]
    assert [*shown[0]] == ["speedup", "id"]


def test_a_carriage_return_ends_no_row() -> None:
    text = exported([{"id": "a\rb", "size": "small"}], "csv").decode()
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["id", "size"], ["a\rb", "small"]]


@pytest.mark.parametrize("chosen_format", ["markdown", "latex"])
def test_a_choice_is_a_table_for_people_too(chosen_format: str, tmp_path: Path, tables: Verb) -> None:
    write_record(tmp_path / "machine/0001_x.json", record(THREE))
    words = (f"--format={chosen_format}", "--where=attention=sdpa", "--against-axis=attention=naive")
    code, text, _ = tables(*words)
    shown = text.replace("\\", "")
    assert code == 0
    assert all(word in shown for word in ("speedup", "0.1000", "record machine/0001_x"))
    assert "head_dim" not in shown, "empty in every row"
    assert "batch_size" not in shown, "not for people unless asked for"


def test_words_stand_left_and_numbers_right_wherever_their_columns_are(tmp_path: Path, tables: Verb) -> None:
    write_record(tmp_path / "machine/0001_x.json", record(THREE))
    columns = "--columns=median_seconds,attention,context_length,commit_has_changes"
    for chosen_format, expected in {"markdown": "| ---: | :--- | ---: | :--- |", "latex": "{rlrl}"}.items():
        code, shown, _ = tables(f"--format={chosen_format}", columns)
        assert (code, expected in shown) == (0, True)


BAD = {
    "--where=size=smal": "there are small, tiny",
    "--where=head_dim=16": "there are unknown ones",
    "--where=sise=small": "did you mean size?",
    "--where=size": "is not NAME=VALUE",
    "--columns=median": "did you mean median_seconds",
    "--columns=id,id": "names id twice",
    "--columns=id,,size": "empty entry",
    "--columns=a\nb": "is not a column",
    "--sort=speedup": "it needs --against-axis",
    "--against-axis=size=small": "the axes are phase",
    "--against-axis=attention": "the axes are phase",
    "--against-axis=attention=flex": "there are sdpa, naive",
    "--only=timing --sort=id": "drop --only timing",
}


def test_a_choice_that_cannot_be_met_is_refused(tmp_path: Path, tables: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_record(tmp_path / "machine/0001_x.json", record(THREE))
    for words, sentence in BAD.items():
        code, shown, said = tables(*words.split(" "))
        assert (code, shown, len(said.splitlines()), sentence in said) == (2, "", 1, True), (words, said)
    assert [path.name for path in tmp_path.iterdir()] == ["machine"]
