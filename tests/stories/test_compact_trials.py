"""The compact file of the gate's trials says what the raw samples say; those that are kept of each are compared."""

import gzip
import json
import lzma
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claims.compact_trials import FILE, PROOFS, TrialsByProof, add_raw_trials, name_raw_commit, trials_under
from claims.gate_peers import GATE, calls_in
from claims.gate_trials import Trial, finished_trials, kept_trials
from claims.peer_rules import APART, POOLED, calls_of_peers
from perf_tests.gate.samples import Measurement, PairTime, Rules
from perf_tests.gate.verdicts import GateResult, RunVerdict
from tests.support.documents import ROOT, page
from tests.support.git_repository import git
from tests.support.simulated_launches import SimulatedCase, gate_run

KEPT = ROOT / ".benchmarks/epyc-2core/gate"
CASES = [SimulatedCase(f"t.py::test_case[{place}]", cpu_pair_spread=0.005) for place in range(6)]
SLOW = CASES[0].id
EVENTS = [
    *[
        {"event": "sentinel", "stage": 1, "pair": pair, "name": "product", "side": side, "seconds": [0.1, 0.3, 0.2]}
        for pair in range(6)
        for side in ("base", "head")
    ],
    {"event": "exact", "case": SLOW, "counter": "kernel_launches", "old": 7, "new": 9},
    {"event": "uncounted", "case": SLOW, "side": "base", "reason": "compiled"},
    {"event": "pair", "stage": 1, "pair": 0, "seconds": 90.0},
    {"event": "relaunch", "reason": "kept for the reader"},
    {"event": "end", "reason": "finished"},
]


def keep(folder: Path, name: str, slowdown: float = 0.0, events: Any = EVENTS, seed: int = 1) -> None:
    """A simulated run in which the first case is slowed, as a proof leaves it in its folder."""
    cases = [replace(case, slowdown=slowdown if case.id == SLOW else 0) for case in CASES]
    samples = gate_run(cases, Rules(), seed=seed)
    lines = [samples.header, *map(as_line, samples.measurements), *events]
    folder.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (folder / f"{name}.truth.json").write_text(json.dumps({"change": "item", "cases": ["test_case[0]"]}))


def as_line(measurement: Measurement) -> dict[str, Any]:
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(measurement).items()}


def rounded(value: Any) -> Any:
    """Numbers to eight significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(inner) for inner in value)
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-8, nan_ok=True) if math.isfinite(value) else str(value)
    return value


def said(result: GateResult) -> Any:
    """All that is said of a run, but head's times, which the file does not keep."""
    return asdict(replace(result, cases=[replace(row, head_seconds=None) for row in result.cases]))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> TrialsByProof:
    """Of the committed file, the trials whose raw samples are committed too."""
    folder = tmp_path_factory.mktemp("kept")
    names = {path.name.partition(".")[0] for proof in PROOFS for path in finished_trials(KEPT / proof)}
    lines = lzma.decompress((KEPT / FILE).read_bytes()).splitlines()
    (folder / FILE).write_bytes(lzma.compress(b"\n".join(line for line in lines if json.loads(line)["name"] in names)))
    return trials_under(folder)


@pytest.mark.parametrize("proof", PROOFS)
def test_every_kept_raw_trial_is_judged_the_same_from_the_compact_file(proof: str, kept: TrialsByProof) -> None:
    raw = kept_trials(KEPT / proof)
    assert raw
    for trial in raw:
        found = next(one for one in kept[proof] if one.name == trial.name)
        assert said(found.result) == rounded(said(trial.result))
        assert calls_in(found) == calls_in(trial)
        assert (found.truth, found.engine, found.pair_spread) == (trial.truth, trial.engine, rounded(trial.pair_spread))


def test_the_kept_raw_trials_are_one_of_each_proof_and_the_newest_engine_is_among_them() -> None:
    newest = max(trial.engine for trials in trials_under(KEPT).values() for trial in trials)
    kept = [[trial.engine for trial in kept_trials(KEPT / proof)] for proof in PROOFS]
    assert [len(engines) for engines in kept] == [1, 1, 1]
    assert any(newest in engines for engines in kept)


def test_a_trial_with_everything_in_it_is_judged_the_same(tmp_path: Path) -> None:
    keep(tmp_path / "power", "20300101T000000-item", 0.2)
    (raw,) = trials_under(tmp_path)["power"]
    assert raw.peer_calls is None
    assert add_raw_trials(tmp_path) == 1
    (found,) = trials_under(tmp_path)["power"]
    assert said(found.result) == rounded(said(raw.result))
    assert found.result.verdict == RunVerdict.FAILED
    assert found.peer_calls == calls_of_peers(samples_of(raw))
    assert samples_of(found).of(PairTime) == [PairTime(1, 0, 90.0)]


def samples_of(trial: Trial) -> Any:
    assert trial.samples is not None
    return trial.samples


def raw_commits(file: Path) -> list[str | None]:
    return [json.loads(line).get("raw_commit") for line in lzma.decompress(file.read_bytes()).splitlines()]


def test_every_committed_trial_names_the_commit_of_its_raw_samples_as_the_page_does() -> None:
    for commit in set(raw_commits(KEPT / FILE)):
        assert re.search(rf"git worktree add ../raw-samples\S* {commit} ", page("gate"))


def test_a_trial_names_the_first_commit_that_holds_its_raw_samples(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    folder, hashes = tmp_path / "kept", []
    for name in ("20300101T000000-item", "20300102T000000-item"):
        keep(folder / "power", name)
        add_raw_trials(folder)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", name)
        hashes.append(git(tmp_path, "rev-parse", "HEAD"))
        assert name_raw_commit(folder, "HEAD") == 1
    assert raw_commits(folder / FILE) == hashes
    assert len(trials_under(folder)["power"]) == 2


@pytest.mark.parametrize("commit", ["nonsense", "--all", "HEAD"])
def test_a_commit_without_raw_samples_is_refused(tmp_path: Path, commit: str) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "nothing", "--allow-empty")
    keep(tmp_path / "power", "20300101T000000-item")
    add_raw_trials(tmp_path)
    with pytest.raises(ValueError, match="is no commit with raw samples of a trial"):
        name_raw_commit(tmp_path, commit)


def test_a_pair_value_that_differs_is_seen(tmp_path: Path) -> None:
    """The comparison can fail: one pair value moved by a thousandth is another result."""
    keep(tmp_path / "power", "20300101T000000-item", 0.2)
    before = said(trials_under(tmp_path)["power"][0].result)
    add_raw_trials(tmp_path)
    line = json.loads(lzma.decompress((tmp_path / FILE).read_bytes()))
    line["cases"][SLOW]["wall"]["log_ratios"][0] += 0.001
    line["cases"][SLOW]["cpu"]["log_ratios"][0] += 0.001
    (tmp_path / FILE).write_bytes(lzma.compress(json.dumps(line).encode()))
    assert said(trials_under(tmp_path)["power"][0].result) != rounded(before)


def test_new_trials_join_those_whose_raw_samples_are_gone(tmp_path: Path) -> None:
    """And count before the file has them."""
    keep(tmp_path / "cost", "20300102T000000-item")
    add_raw_trials(tmp_path)
    (tmp_path / "cost/20300102T000000-item.jsonl.gz").unlink()
    keep(tmp_path / "cost", "20300101T000000-item", seed=2)
    before = [trial.name for trial in trials_under(tmp_path)["cost"]]
    assert [add_raw_trials(tmp_path), add_raw_trials(tmp_path)] == [1, 0]
    assert [trial.name for trial in trials_under(tmp_path)["cost"]] == before
    assert before == ["20300101T000000-item", "20300102T000000-item"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no xz", "cannot be read"),
        (lzma.compress(b"{"), "cannot be used"),
        (lzma.compress(b"[]"), "cannot be used"),
        (lzma.compress(b'{"kind": "gate-trial", "format_version": 2}'), "format version 1"),
        (lzma.compress(b'{"kind": "gate-trial", "format_version": 1, "proof": "power"}'), "line 1 is damaged"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=f"{FILE} cannot be (used|read): .*") as error:
        trials_under(tmp_path)
    assert why in str(error.value)


def test_every_rule_is_applied_to_the_very_rounds_of_a_run(tmp_path: Path) -> None:
    keep(tmp_path / "power", "20300101T000000-item", 0.08)
    calls = calls_in(trials_under(tmp_path)["power"][0])
    assert calls[GATE] == {SLOW}
    for view in (APART, POOLED):
        assert SLOW in calls[f"Mann-Whitney 0.05, {view}"]
    assert calls[f"asv factor 1.1, {POOLED}"] == frozenset()


def test_two_launches_apart_are_of_two_launch_pairs() -> None:
    """What the machine did to one launch pair, and the turns cancel, is a slowdown in a comparison across pairs."""
    samples = gate_run([SimulatedCase(case.id) for case in CASES], Rules(first_look=None, second_share=0.0), seed=0)
    last = samples.pairs(1)[-1]
    samples.measurements = [
        line if line.pair != last else replace(line, base_seconds=2 * line.base_seconds,
                                               head_seconds=2 * line.head_seconds)
        for line in samples.measurements
    ]  # fmt: skip
    calls = calls_of_peers(samples)
    assert calls[f"pytest-benchmark mean:5%, {APART}"] == {case.id for case in CASES}
    assert calls[f"pytest-benchmark mean:5%, {POOLED}"] == frozenset()
