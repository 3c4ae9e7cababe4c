"""The file of accepted regressions: what is read, what is refused in a sentence, when an entry is spent."""

from pathlib import Path

import pytest

from perf_tests.gate.samples import Clock
from perf_tests.gate.verdicts import Acceptance, effective, offer_entries, read_accepted, read_accepted_of_base

WHOLE = """
[[accepted]]
id = "a"
limit = 1.08
reason = "stability"
revision = "abc"
clock = "wall"
"""
OLDER = WHOLE.replace('clock = "wall"\n', "")


def written(folder: Path, text: str) -> Path:
    path = folder / "accepted.toml"
    path.write_text(text, encoding="latin-1")
    return path


def test_no_file_accepts_nothing(tmp_path: Path) -> None:
    assert read_accepted(tmp_path / "accepted.toml") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[accepted", "cannot be read"),
        ("\xff\xfe", "cannot be read"),  # no UTF-8
        ("x = " + 3000 * "[", "cannot be read"),
        ("x = 1", "more than"),
        ("accepted = 1", "more than"),
        ("accepted = [1]", "has no id: 1"),
        (WHOLE.replace('id = "a"', ""), "has no id"),
        (WHOLE.replace('id = "a"', 'id = ""'), "has no id"),
        (OLDER.replace('id = "a"', 'id = ["a"]'), "has no id"),
        (WHOLE + "counters = { saved_bytez = 8 }", "of a has the counter 'saved_bytez'; write one of parameters, "),
        (WHOLE.replace('"stability"', '" "'), "of a has no reason"),
        (WHOLE.replace('revision = "abc"', ""), "of a has no revision"),
        (WHOLE.replace("1.08", '"8 %"'), "of a has no limit"),
        (WHOLE.replace("1.08", "nan"), "of a has no limit"),
        (WHOLE.replace("1.08", "true"), "of a has no limit"),
        (WHOLE.replace("1.08", "0.08"), "of a has the limit 0.08"),
        (WHOLE + "typo = 1", "unknown keys (typo)"),
        (WHOLE.replace("1.08", "1.0"), "a slowdown needs one above 1"),
        (WHOLE.replace('"wall"', '"sundial"'), "of a has the clock 'sundial'"),
        (OLDER, 'of a names no clock; add the line `clock = "wall"`'),
        (OLDER + 'counter = "saved_bytes"', "write `counters = { saved_bytes = 1.08 }` instead"),
        (WHOLE + "counters = 1", "counters that are no table"),
        (WHOLE + 'counters = { saved_bytes = "x" }', "of a has no limit"),
        (WHOLE + WHOLE, "wall time of a is accepted 2 times against abc; keep one entry"),
    ],
)
def test_a_malformed_file_is_one_sentence_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"accepted\.toml") as raised:
        read_accepted(path)
    assert words in str(raised.value)


def limit(revision: str = "abc", clock: Clock | None = "wall", counter: str | None = None) -> Acceptance:
    return Acceptance("a", 1.08, "stability", revision, counter, clock)


def test_an_entry_that_the_base_holds_too_is_spent_and_told_once() -> None:
    old, counter, new = limit(), limit(clock=None, counter="saved_bytes"), limit("def")
    counted, (sentence,) = effective([old, counter, new], [old, counter])
    assert counted == [new]
    assert "of a (measured against abc) has expired" in sentence


def test_a_base_of_an_older_form_is_no_obstacle_and_what_it_holds_is_spent(tmp_path: Path) -> None:
    base = read_accepted_of_base(written(tmp_path, OLDER))
    assert effective([limit()], base)[0] == []
    assert read_accepted_of_base(written(tmp_path, "[[accepted")) == []
    assert read_accepted_of_base(written(tmp_path, "x = " + 3000 * "[")) == []


def test_what_is_offered_is_read_back_one_entry_a_case(tmp_path: Path) -> None:
    case, reason = 't.py::f["\\x-1\n]', 'a "good" reason'
    time = Acceptance(case, 1.08, reason, "abc", clock="wall")
    counters = [Acceptance(case, 123456789, reason, "abc", name) for name in ("saved_bytes", "kernel_launches")]
    other = Acceptance("b", 2, reason, "abc", "saved_bytes")
    path = tmp_path / "new/offered.toml"
    assert str(path) in offer_entries([time, other, *counters], path)
    assert read_accepted(path) == [other, time, *counters]
    assert path.read_text().count("[[accepted]]") == 2


def test_an_offer_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in offer_entries([limit()], tmp_path / "file/offered.toml")
