"""Raw samples of a gate run on disk: read back as written, torn tails left out, anything else refused in a sentence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests.gate import samples
from perf_tests.gate.samples import Rules, SamplesFile, read_samples, rules_from_settings
from perf_tests.records.record import Json
from tests.support.simulated_launches import SimulatedCase, header, line

CASE = SimulatedCase("a", cpu_pair_spread=0.01)
HEADER = header([CASE], Rules())


def entry(pair: int = 0) -> Json:
    return line(np.random.default_rng(pair), CASE, 1, pair, 4, False)


EVENTS: list[Json] = [
    {"event": "outcome", "case": "a", "side": "head", "outcome": "error", "reason": "it died"},
    {"event": "sentinel", "stage": 1, "pair": 0, "name": "matmul", "side": "base", "seconds": [0.1]},
    {"event": "exact", "case": "a", "counter": "saved_bytes", "old": 1, "new": 2},
    {"event": "uncounted", "case": "a", "side": "base", "reason": "it is compiled"},
    {"event": "pair", "stage": 1, "pair": 0, "seconds": 2.5},
    {"event": "relaunch", "pair": 0},
    {"event": "incomparable", "reason": "two builds"},
    {"event": "end", "reason": "budget"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = SamplesFile(tmp_path / "samples.jsonl", HEADER)
    for item in (entry(0), entry(1), *EVENTS):
        file.append(item)
    file.close()
    return tmp_path / "samples.jsonl"


def compressed(path: Path) -> Path:
    kept = path.with_name("samples.jsonl.gz")
    kept.write_bytes(gzip.compress(path.read_bytes()))
    return kept


@pytest.mark.parametrize("kept", [Path, compressed], ids=["plain", "compressed"])
def test_samples_are_read_back_as_they_were_written(path: Path, kept: Callable[[Path], Path]) -> None:
    found = read_samples(kept(path))
    assert found.header == json.loads(json.dumps(HEADER))
    assert [m.pair for m in found.measurements] == [0, 1]
    assert found.measurements[0].head_seconds.tolist() == entry(0)["head_seconds"]
    assert found.measurements[0].orders == tuple(entry(0)["orders"])
    written = [dict.fromkeys(("pair", "case", "side", "reason")) | event for event in EVENTS[5:6]]
    assert [event.to_line() for event in found.events] == [*EVENTS[:5], *written, *EVENTS[6:]]
    assert found.end == "budget"


def test_samples_are_never_overwritten_and_a_torn_last_line_is_left_out(path: Path) -> None:
    with pytest.raises(FileExistsError):
        SamplesFile(path, HEADER)
    path.write_bytes(path.read_bytes() + b'{"stage": 2, "pa')
    assert len(read_samples(path).measurements) == 2


def test_a_wrong_line_is_refused_before_it_is_written(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl", HEADER)
    with pytest.raises(ValueError, match="not in the header"):
        file.append(entry() | {"case": "unknown"})
    file.close()
    assert read_samples(tmp_path / "samples.jsonl").measurements == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": 3}, "'stage' is 3"),
        ({"stage": True}, "'stage' is True"),
        ({"pair": -1}, "'pair' is -1"),
        ({"pair": 0}, "pair 0 has 'a' twice"),
        ({"case": 7}, "'case' is 7, not a string"),
        ({"orders": ["ABAB"] * 4}, "'orders'"),
        ({"orders": []}, "'orders'"),
        ({"head_seconds": [[0.1, 0.1]]}, "'head_seconds'"),
        ({"head_seconds": [[0.1, 0.0]] * 4}, "other than two durations"),
        ({"base_seconds": [[0.1, float("nan")]] * 4}, "other than two durations"),
        ({"base_seconds": [[0.1, 10**400]] * 4}, "other than two durations"),
        ({"base_cpu_seconds": "fast"}, "'base_cpu_seconds'"),
        ({"event": "unheard of"}, "not known"),
        ({"event": "outcome", "side": "left"}, "'side' is 'left'"),
        ({"event": "end", "reason": "bored"}, "'bored'"),
        ({"event": "sentinel", "name": "matmul", "side": "base", "seconds": [-1]}, "durations"),
        ({"event": "exact", "counter": "n", "old": "1"}, "'old' is '1', not a number"),
        ({"event": "pair", "seconds": 0}, "'seconds' is 0, not a duration"),
    ],
)
def test_a_damaged_line_is_named_with_what_is_wrong(path: Path, change: Json, words: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], json.dumps(entry(5) | change), *lines[2:], ""]))
    with pytest.raises(ValueError, match=r"line 3 is damaged") as raised:
        read_samples(path)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ["[1]", "7", "{", '"x"', "[" * 100_000], ids=range(5))
def test_a_line_that_is_no_object_is_refused(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ValueError, match="damaged"):
        read_samples(path)


@given(st.data())
def test_whatever_a_byte_of_a_file_becomes_it_is_read_or_refused_in_a_sentence(data: st.DataObject) -> None:
    content = bytearray(b"".join(json.dumps(row).encode() + b"\n" for row in (HEADER, entry(0), *EVENTS)))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder:
        (path := Path(folder, "samples.jsonl")).write_bytes(content)
        said = ""
        try:
            assert len(read_samples(path).measurements) <= 1
        except ValueError as error:
            said = str(error)
        assert said == "" or (said.startswith(str(path)), said[-1]) == (True, ".")


WRONG = {"kind": "other", "format_version": 2, "base": {}, "machine_info": None, "settings": [], "accepted": {}}
WRONG_CASES = [("cases", [{"id": ""}]), ("cases", [{"id": "a"}, {"id": "a"}])]


@pytest.mark.parametrize("key, value", [*WRONG.items(), *WRONG_CASES, ("options", 1)])
def test_a_wrong_header_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(HEADER | {key: value}) + "\n")
    with pytest.raises(ValueError, match="line 1 is damaged"):
        read_samples(path)


def test_a_file_that_is_not_there_or_empty_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read: No such file or directory\."):
        read_samples(tmp_path / "samples.jsonl")
    (tmp_path / "samples.jsonl").touch()
    with pytest.raises(ValueError, match="no samples"):
        read_samples(tmp_path / "samples.jsonl")


def test_a_cpu_clock_too_coarse_to_see_the_work_counts_as_not_read(path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry(9) | {"head_cpu_seconds": [[0.0, 0.1]] * 4}) + "\n")
    assert read_samples(path).measurements[-1].head_cpu_seconds is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-40],
        lambda content: b"{}" + content,
        lambda content: content[:30] + bytes(20) + content[50:],
    ],
    ids=["cut short", "not compressed", "overwritten"],
)
def test_damaged_compressed_samples_are_one_sentence(path: Path, damage: Callable[[bytes], bytes]) -> None:
    kept = compressed(path)
    kept.write_bytes(damage(kept.read_bytes()))
    with pytest.raises(ValueError, match=r"samples\.jsonl\.gz cannot be read: .+\.$"):
        read_samples(kept)


def test_what_grows_beyond_every_run_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        read_samples(compressed(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.7}, "alpha is 0.7"),
        ({"second_share": 0.5}, "second_share is 0.5"),
        ({"margin": 0.05}, "margin 0.05"),
        ({"screen_above": 0.03}, "screen_above is 0.03"),
        ({"far": 0.0}, "far 0.0"),
        ({"far_spreads": 0.9}, "far_spreads 0.9"),
        ({"first_look": 2}, "first_look is 2; it must be 3 or more, or null"),
        ({"screen_pairs": 2}, "screen_pairs is 2"),
        ({"screen_pairs": 6.5}, "screen_pairs is 6.5"),
        ({"confirm_looks": [10, 18, 300]}, "at most 40"),
        ({"confirm_looks": [2, 18, 30]}, "from 3 or more"),
        ({"confirm_looks": [10, 10, 30]}, "must rise"),
        ({"confirm_looks": []}, "must rise"),
        ({"confirm_looks": [10, 18.5, 30]}, "18.5"),
        ({"confirm_looks": 7}, "not a number"),
        ({"look_shares": [0.5, 0.5, 0.5]}, "add up to 1"),
        ({"look_shares": [0.5, 0.5]}, "one for each look"),
        ({"look_shares": [-1, 1, 0.5, 0.5]}, "positive"),
        ({"clock": "sundial"}, "sundial"),
        ({"undecided": "maybe"}, "maybe"),
        ({"alpha": "small"}, "not a number"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_a_sentence(change: Json, words: str) -> None:
    with pytest.raises(ValueError, match="gate's") as raised:
        rules_from_settings(Rules().settings() | change)
    assert words in str(raised.value)
