"""Every trial of the gate in one file: the pair values that its verdicts are computed from, without the rounds.

    python -m claims.compact_trials FOLDER [--raw-commit COMMIT]

FOLDER holds `false-alarms`, `power` and `cost`, the raw samples that the proofs of these names keep. What
FOLDER/trials.jsonl.xz lacks of them is added to it; once a commit holds the raw samples and the file names it, they may
go. One line for each trial:

    {"format_version": 1, "kind": "gate-trial", "proof": "false-alarms", "power" or "cost", "name": its time and change,
     "engine": number in ENGINES, "truth": {}, "header": that of the samples, "pairs": [[stage, pair], ...],
     "cases": {id: {"wall": clock, "cpu": clock or null}}, "events": those of the samples, "peers": {rule: [id, ...]},
     "raw_commit": full hash of a commit that holds its raw samples; missing until --raw-commit names it}

where a clock is {"base_seconds": median round, "log_ratios": [head over base, one for each launch pair, or null]}, and
a sentinel's event has only the median of its seconds. Every verdict, effect and interval is computed from these lines
at each reading. Kept as concluded are base's median rounds and what other tools' rules called slower, which takes every
round; head's times are not kept.
"""

import argparse
import json
import lzma
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from claims.gate_peers import GATE, calls_in
from claims.gate_trials import SAMPLES, Trial, finished_trials, judged_trial, read_trial
from perf_tests.gate.samples import MOST_BYTES, Clock, GateSamples, Relaunch, Sentinel
from perf_tests.gate.statistics import pair_values
from perf_tests.gate.verdicts import median_seconds
from perf_tests.records.record import Json, unpacked, without_nan
from perf_tests.records.store import write_whole

FORMAT_VERSION = 1
KIND = "gate-trial"
FILE = "trials.jsonl.xz"
PROOFS = ("false-alarms", "power", "cost")
DECIMALS = 10
"""Of a log ratio, and of seconds: the median of two counts of nanoseconds is exact."""

TrialsByProof = dict[str, list[Trial]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds false-alarms, power and cost")
    parser.add_argument("--raw-commit", metavar="COMMIT", help="a commit that holds raw samples of FOLDER")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    try:
        added = add_raw_trials(folder)
        named = 0 if arguments.raw_commit is None else name_raw_commit(folder, arguments.raw_commit)
    except ValueError as error:
        print(error)
        return 3
    print(f"{added} trials added to {folder / FILE}, {named} with the commit of their raw samples")
    return 0


def add_raw_trials(folder: Path) -> int:
    """How many raw trials below `folder` its file lacked; raises ValueError with one sentence for damaged ones."""
    lines = _lines(folder / FILE)
    known = {line["name"] for line in lines}
    added = [
        line_of(proof, read_trial(path), unpacked(path, MOST_BYTES))
        for proof in PROOFS
        for path in finished_trials(folder / proof)
        if _name(path) not in known
    ]
    _write(folder / FILE, [*lines, *added])
    return len(added)


def name_raw_commit(folder: Path, commit: str) -> int:
    """How many trials without a commit now name this one, which holds their raw samples.

    Raises ValueError with one sentence where `commit` is none, or holds no such samples.
    """
    full_hash = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}").strip()
    held = raw_samples_in(folder, full_hash) if full_hash else set()
    lines = _lines(folder / FILE)
    named = [line for line in lines if "raw_commit" not in line and f"{line['proof']}/{line['name']}" in held]
    if not named:
        raise ValueError(f"{commit!r} is no commit with raw samples of a trial of {folder} that lacks its commit.")
    for line in named:
        line["raw_commit"] = full_hash
    _write(folder / FILE, lines)
    return len(named)


def raw_samples_in(folder: Path, commit: str) -> set[str]:
    """The trials, as proof/name, whose raw samples `commit` holds below `folder`."""
    files = _git(folder, "ls-tree", "-r", "--name-only", commit, "--", ".").splitlines()
    return {f"{Path(file).parent.name}/{_name(Path(file))}" for file in files if file.endswith(SAMPLES)}


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing where it fails."""
    ended = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    return "" if ended.returncode else ended.stdout


def _write(path: Path, lines: Sequence[Json]) -> None:
    """All at once, so that a run which is stopped damages nothing."""
    ordered = sorted(lines, key=lambda line: str(line["name"]))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in ordered)
    write_whole(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def trials_under(folder: Path) -> TrialsByProof:
    """All trials of FILE and of raw samples that it lacks, by proof, the oldest first.

    Raises ValueError with one sentence where there are none, or something is damaged.
    """
    found: TrialsByProof = {proof: [] for proof in PROOFS}
    for proof, trial in _trials_in(folder / FILE):
        found[proof].append(trial)
    for proof, trials in found.items():
        known = {trial.name for trial in trials}
        trials += [read_trial(path) for path in finished_trials(folder / proof) if _name(path) not in known]
        trials.sort(key=lambda trial: trial.name)
    if not any(found.values()):
        raise ValueError(
            f"{folder} holds no trials; run gate_false_alarms with --folder {folder / 'false-alarms'} and gate_power "
            f"with --folder {folder / 'power'} first."
        )
    return found


def line_of(proof: str, trial: Trial, raw: bytes) -> Json:
    """The line of a trial whose raw samples, all their bytes, are given too."""
    samples = trial.samples
    assert samples is not None
    pairs = [(stage, pair) for stage in (1, 2) for pair in samples.pairs(stage)]
    clocks = {clock: _clock_values(samples, clock) for clock in ("wall", "cpu")}
    peers = {rule: sorted(cases) for rule, cases in calls_in(trial).items() if rule != GATE}
    return {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "proof": proof,
        "name": trial.name,
        "engine": trial.engine,
        "truth": trial.truth,
        "header": samples.header,
        "pairs": pairs,
        "cases": {case: {clock: values[case] for clock, values in clocks.items()} for case in samples.cases},
        "events": _events(raw),
        "peers": peers,
    }


def _clock_values(samples: GateSamples, clock: Clock) -> dict[str, Json | None]:
    """By case; None where the clock was never read."""
    ratios = np.concatenate([pair_values(samples, stage, samples.pairs(stage), clock) for stage in (1, 2)], axis=1)
    found: dict[str, Json | None] = {}
    for place, case in enumerate(samples.cases):
        base, _ = median_seconds([line for line in samples.measurements if line.case == case], clock)
        values = without_nan([round(value, DECIMALS) for value in ratios[place].tolist()])
        found[case] = None if base is None else {"base_seconds": round(base, DECIMALS), "log_ratios": values}
    return found


def _events(raw: bytes) -> list[Json]:
    """All events from which something is computed."""
    entries = [json.loads(line) for line in raw.splitlines()[1:]]
    events = [entry for entry in entries if entry.get("event") not in (None, Relaunch.event)]
    for event in events:
        if event["event"] == Sentinel.event:
            event["seconds"] = [round(float(np.median(event["seconds"])), DECIMALS)]
    return events


def _trials_in(path: Path) -> list[tuple[str, Trial]]:
    """Each trial with its proof; a file that is not there has none."""
    trials = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            trials.append((line["proof"], _trial(line)))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used: line {number} is damaged: {error!r}.") from error
    return trials


def _lines(path: Path) -> list[Json]:
    if not path.exists():
        return []
    content = unpacked(path, MOST_BYTES)
    try:
        lines: list[Json] = [json.loads(line) for line in content.splitlines()]
        if any((line["kind"], line["format_version"]) != (KIND, FORMAT_VERSION) for line in lines):
            raise ValueError(f"its lines are no {KIND!r} of format version {FORMAT_VERSION}")
        if not {line["proof"] for line in lines} <= set(PROOFS):
            raise ValueError(f"its lines are of other proofs than {', '.join(PROOFS)}")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}.") from error
    return lines


def _trial(line: Json) -> Trial:
    samples = GateSamples(line["header"])
    for case, clocks in line["cases"].items():
        for place, (stage, pair) in enumerate(line["pairs"]):
            seconds = {clock: _one_quadruple(values, place) for clock, values in clocks.items()}
            if seconds["wall"] is not None:
                samples.add(_entry(stage, pair, case, seconds["wall"], seconds["cpu"]))
    for event in line["events"]:
        samples.add(event)
    peers = {rule: frozenset(cases) for rule, cases in line["peers"].items()}
    trial = judged_trial(line["name"], line["truth"], samples, peers)
    without_head = [replace(row, head_seconds=None) for row in trial.result.cases]
    return replace(trial, result=replace(trial.result, cases=without_head))


def _one_quadruple(values: Json | None, place: int) -> tuple[float, float] | None:
    """A round of base and one of head that represent a launch pair: their log ratio is its pair value."""
    if values is None or values["log_ratios"][place] is None:
        return None
    return values["base_seconds"], values["base_seconds"] * math.exp(values["log_ratios"][place])


def _entry(stage: int, pair: int, case: str, wall: Sequence[float], cpu: Sequence[float] | None) -> Json:
    """The line of raw samples that has these rounds."""
    entry: Json = {"stage": stage, "pair": pair, "case": case, "orders": ["ABBA"]}
    for place, side in enumerate(("base", "head")):
        entry[f"{side}_seconds"] = [[wall[place]] * 2]
        entry[f"{side}_cpu_seconds"] = None if cpu is None else [[cpu[place]] * 2]
    return entry


def _name(samples: Path) -> str:
    return samples.name.partition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
