"""The file of accepted regressions: what is read, what is refused in a sentence, when an entry is spent."""

from pathlib import Path

import pytest

from perf_tests.gate.accepted import Acceptance, effective, read_accepted, toml_entry

WHOLE = """
[[accepted]]
id = "a"
limit = 1.08
reason = "stability"
revision = "abc"
"""


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
        ("x = 1", "more than"),
        ("accepted = 1", "more than"),
        ("accepted = [1]", "has no id: 1"),
        (WHOLE.replace('id = "a"', ""), "has no id"),
        (WHOLE.replace('"stability"', '" "'), "of a has no reason"),
        (WHOLE.replace('revision = "abc"', ""), "of a has no revision"),
        (WHOLE.replace("1.08", '"8 %"'), "of a has no limit"),
        (WHOLE.replace("1.08", "nan"), "of a has no limit"),
        (WHOLE.replace("1.08", "true"), "of a has no limit"),
        (WHOLE.replace("1.08", "0.08"), "of a has the limit 0.08"),
        (WHOLE + "typo = 1", "unknown keys (typo)"),
        (WHOLE + "counter = 1", "counter that is not a string"),
    ],
)
def test_a_malformed_file_is_one_sentence_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"accepted\.toml") as raised:
        read_accepted(path)
    assert words in str(raised.value)


def test_an_entry_that_the_base_holds_too_is_spent() -> None:
    old, new = Acceptance("a", 1.08, "stability", "abc"), Acceptance("a", 1.08, "again", "def")
    counted, (sentence,) = effective([old, new], [old])
    assert counted == [new]
    assert "of a (measured against abc) has expired" in sentence


@pytest.mark.parametrize("counter", [None, "saved_bytes"])
def test_what_is_offered_to_paste_is_read_back(tmp_path: Path, counter: str | None) -> None:
    entry = Acceptance('t.py::f["\\x-1\n]', 123456789 if counter else 1.08, 'a "good" reason', "abc", counter)
    assert read_accepted(written(tmp_path, toml_entry(entry))) == [entry]
