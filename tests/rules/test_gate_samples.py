"""Raw samples of a gate run on disk: read back as written, torn tails left out, anything else refused in a sentence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perf_tests.gate import samples
from perf_tests.gate.samples import Rules, SamplesFile, read_samples
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


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"stage": 2, "pa')
    assert len(read_samples(path).measurements) == 2


def test_samples_are_never_overwritten(path: Path) -> None:
    with pytest.raises(FileExistsError):
        SamplesFile(path, HEADER)


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


@pytest.mark.parametrize("text", ["[1]", "7", "{", '"x"', "[" * 100_000])
def test_a_line_that_is_no_object_is_refused(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ValueError, match="damaged"):
        read_samples(path)


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
