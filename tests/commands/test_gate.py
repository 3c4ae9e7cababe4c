"""`gate BASE HEAD`, verdicts between recorded launches, and `replay SAMPLES`, a run's verdicts again."""

import json
import re
from pathlib import Path

import pytest

from perf_tests import bisect
from perf_tests.gate.samples import Rules
from perf_tests.records.record import Json
from tests.support.launch import Verb
from tests.support.launches_over_commits import SLOWED, eight_commits
from tests.support.recorded_launches import launches
from tests.support.simulated_launches import SimulatedCase, gate_run

AXES = "small-ctx128-fp32-naive"
RULES = Rules(screen_pairs=5, confirm_looks=(8, 12), look_shares=(0.4, 0.6))
CASES = [SimulatedCase(f"t.py::test_x[{place}]", slowdown=0.08 if place == 6 else 0.0) for place in range(7)]


@pytest.mark.parametrize("old, new, code, last", [
    ("", "", 1, "gate: FAILED (1 SLOWER, 6 OK)"),
    ('"reason": "finished"', '"reason": "interrupted"', 3, "gate: INTERRUPTED: the run did not finish"),
    ('"alpha": 0.01', '"alpha": 7', 3, "cannot be judged: The gate's alpha is 7"),
])  # fmt: skip
def test_a_replay_judges_as_the_run_did_and_an_unfinished_one_not_at_all(
    tmp_path: Path, verb: Verb, old: str, new: str, code: int, last: str
) -> None:
    path, summary = tmp_path / "samples.jsonl", tmp_path / "summary.md"
    gate_run(CASES, RULES, path=path)
    path.write_text(path.read_text().replace(old, new))
    ended, *said = verb("replay", path, "--summary", summary)
    assert (ended, last in "".join(said).splitlines()[-1]) == (code, True)
    assert "alpha" in last or summary.read_text().startswith(f"### {last}")


def written(folder: Path, data: list[Json]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for launch in data:
        name = f"{len([*folder.iterdir()]):04}_abc123{'-dirty' if launch['commit_info']['dirty'] else ''}.json"
        (folder / name).write_text(json.dumps(launch))
    return str(folder)


def test_recorded_launches_are_those_of_a_folder_or_of_a_commit_without_changes(tmp_path: Path, verb: Verb) -> None:
    storage, summary = tmp_path / "storage", tmp_path / "summary.md"
    dirty = [{**launch, "commit_info": {**launch["commit_info"], "dirty": True}} for launch in launches(3, 8, 0.5)]
    written(storage / "machine", [*launches(1, 8), *dirty])
    head = written(tmp_path / "head/machine", launches(2, 5, slowdown=0.2))
    moved = written(tmp_path / "moved", launches(2, 5, drift=0.005, machine_slower=0.3))
    for base, other in (("abc123", "abc"), ("abc123-dirty", "abc123-dirty")):
        code, shown, _ = verb("gate", base, other, "--storage", storage, "--json")
        assert (code, json.loads(shown)["verdict"], json.loads(shown)["launches"]) == (0, "PASSED", [8, 8])
    code, shown, _ = verb("gate", "abc123", head, "--storage", storage, "--summary", summary)
    _, row, *_, verdict, offer = shown.splitlines()
    assert (code, verdict) == (1, "gate: FAILED (1 SLOWER, 9 OK)")
    assert re.match(r"forward tiny-ctx0-fp32-naive +SLOWER +wall ", row)
    (path,) = (storage / "gate").glob("*_accept.toml")
    assert str(path) in offer
    assert summary.read_text().startswith("### gate: FAILED")
    of_a_storage = verb("gate", "abc123", tmp_path / "head", "--storage", storage)[1]
    assert of_a_storage.splitlines()[1] == row
    for other, why in (("nothing", "nothing is not a folder with records"), (moved, "CONTAMINATED")):
        code, *said = verb("gate", "abc", other, "--storage", storage)
        assert (code, why in "".join(said)) == (3, True)


def test_of_two_machines_the_newest_is_judged_and_accepted_is_what_its_storage_says(tmp_path: Path, verb: Verb) -> None:
    storage, commits = tmp_path / ".benchmarks", eight_commits(tmp_path)

    def gate(base: int, head: int, *words: str, folder: str = "") -> tuple[int, str]:
        code, *said = verb("gate", commits[base][:12], commits[head], "--storage", storage / folder, *words)
        return code, "".join(said)

    code, said = gate(5, 7)
    assert code == 1
    assert said.startswith("Left out: xeon-8core/0001_")
    assert said.endswith("gate: FAILED (28 OK, 1 NO LONGER FITS)\n")
    code, said = gate(5, 7, folder="epyc-2core")
    assert (code, "Left out" in said) == (1, False)
    code, said = gate(5, 7, "--json", folder="xeon-8core")
    assert (code, {row["verdict"] for row in json.loads(said)["cases"]}) == (1, {"UNDECIDED", "NO LONGER FITS"})
    code, said = gate(SLOWED - 1, SLOWED)
    (offered,) = (storage / "gate").glob("*.toml")
    assert said.endswith(f"move its entries to {storage / 'accepted.toml'}.\n")
    offered.rename(storage / "accepted.toml")
    code, said = gate(SLOWED - 1, SLOWED)
    assert (code, said.splitlines()[-1]) == (0, "gate: PASSED (2 SLOWER, 28 OK; 2 accepted)")


def test_a_case_is_named_for_a_search_as_pytest_the_page_or_a_screen_does() -> None:
    typed = {
        f"forward {AXES}": f"perf_tests/test_forward.py::test_forward[{AXES}]",
        "test_attention_backward[d64]": "perf_tests/test_attention.py::test_attention_backward[d64]",
        "perf_tests/test_new.py::test_new[a]": "perf_tests/test_new.py::test_new[a]",
        "nothing small": None,
    }
    assert {words: bisect._case_id(words) for words in typed} == typed


def test_a_search_without_minutes_is_one_sentence_and_a_usage_error(verb: Verb) -> None:
    code, _, said = verb("bisect", "HEAD", "HEAD", "--case", f"perf_tests/test_a.py::t[{AXES}]", "--gate-minutes", 0)
    assert (code, len(said.splitlines())) == (2, 1)
