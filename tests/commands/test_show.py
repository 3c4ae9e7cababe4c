"""`show RECORD`: what a run printed at its end, of a record alone or beside another, and what it refuses."""

import json
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from tests.support import synthetic
from tests.support.launch import Verb
from tests.support.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, record, timed, untimed, write_record

SLOWER = timed(FORWARD, [1.1 * seconds for seconds in TEN_ROUNDS])
LOST = untimed(BACKWARD, phase="backward")
FAILED = untimed(BACKWARD, "error", "it broke", phase="backward")
BOTH = record([timed(), timed(BACKWARD, phase="backward")])

SHOWN: dict[str, tuple[Json, Json | None, int, list[str]]] = {
    "its results and the last line of a run": (
        record([timed()]), None, 0, ["results\n", "forward tiny-ctx8-fp32-naive", "1 case measured, 0 failed"],
    ),
    "a case without a timing, which is no failure": (record([timed()], [LOST]), None, 0, ["out of memory", "1 not"]),
    "a case that failed": (record([timed()], [FAILED]), None, 1, ["failed: it broke", "1 failed"]),
    "what its passes found": (
        synthetic.with_passes(record([timed()]), synthetic.traced(), synthetic.warmed()), None, 0,
        ["kernels\n", "warmup\n"],
    ),
    "what its rows said together": (
        {**record([timed()]), "notices": [{"sentence": "two do not fit"}, 1, {}]}, None, 0, ["two do not fit"],
    ),
    "how it differs": (record([SLOWER, timed(BACKWARD, phase="backward")]), BOTH, 0,
                       ["compared with machine/before", "1.100"]),
    "what it lost": (record([timed()], [LOST]), BOTH, 1, [f"{BACKWARD}: no longer measured, now out of memory"]),
    "what is gone": (record([timed()]), BOTH, 1, [f"{BACKWARD}: gone, not part of this run"]),
}  # fmt: skip


@pytest.mark.parametrize("claim", SHOWN)
def test_a_record_is_shown_as_its_run_was(claim: str, tmp_path: Path, verb: Verb) -> None:
    now, before, code, words = SHOWN[claim]
    asked = ["show", str(write_record(tmp_path / "machine/now.json", now))]
    if before is not None:
        asked += ["--against", str(write_record(tmp_path / "machine/before.json", before))]
    ended, shown, said = verb(*asked)
    assert (ended, said, [word for word in words if word not in shown]) == (code, "", [])
    ended, as_json, _ = verb(*asked, "--json")
    found = json.loads(as_json)
    assert (ended, found["record"], found["cases"][0]["id"]) == (code, "machine/now", FORWARD)
    assert [row["is_failure"] for row in found["compared"]].count(True) == (code if before else 0)


def test_what_is_no_record_of_this_version_is_refused_in_one_sentence(tmp_path: Path, verb: Verb) -> None:
    other = {**record([timed()]), "suite": {"format_version": 2}}
    files = {
        "other.json": (json.dumps(other), "its format version is 2, this suite reads 1"),
        "none.json": ("{}", "it is not a record of this suite"),
        "journal-20300101T000000000000-1.jsonl": ('{"header": {}}\n{"started": "a"}\n', "resumed with --resume"),
    }
    for name, (content, why) in files.items():
        (tmp_path / name).write_text(content)
        code, shown, said = verb("show", tmp_path / name)
        assert (code, shown, len(said.splitlines()), why in said, name in said) == (3, "", 1, True, True), name
    for name in ("world", "rank_seconds", "sent_by_part", "tokens_per_second"):
        row = timed()
        row["extra_info"] |= {"parallel": "ddp", "world": 2, name: "strange"}
        path = write_record(tmp_path / "damaged.json", record([row]))
        code, shown, said = verb("show", path)
        assert (code, shown, f"is damaged: its row.{name} is 'strange'" in said) == (3, "", True)
    code, _, said = verb("show", tmp_path)
    assert (code, "it is a folder, not a file" in said) == (3, True)


def test_it_is_held_against_another_run_of_its_machine_alone(tmp_path: Path, verb: Verb) -> None:
    now = write_record(tmp_path / "now.json", record([timed()]))
    other = write_record(tmp_path / "other.json", record([timed()], threads=99))
    code, shown, said = verb("show", now, "--against", other)
    assert (code, shown, "threads: A: 99" in said) == (3, "", True)
    once = {**record([timed()]), "suite": {**record([timed()])["suite"], "run": "journal-1"}}
    twice = [write_record(tmp_path / f"{number}.json", once) for number in (1, 2)]
    code, _, said = verb("show", twice[0], "--against", twice[1])
    assert (code, "are one run, saved twice" in said) == (3, True)
