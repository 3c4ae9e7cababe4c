"""Whole gate runs with a known truth: measured one after another, kept in one file, judged anew at each reading.

    python -m claims.gate [FOLDER] [--most N] [--gate-minutes M] [--raw-commit COMMIT]

measures what FOLDER lacks of the runs that the gate's claims take with the present engine, and prints what all of them
say. It may be stopped at any moment and started again: each trial is added to FOLDER/trials.jsonl.xz whole, and its raw
samples stay beside. All kinds take turns, so that what there is serves every claim. `--most 0` measures nothing.

A trial changes the `model/` of a fresh clone and runs `pytest perf_tests --against HEAD` there. One line of the file:

    {"format_version": 1, "kind": "gate-trial", "proof": "false-alarms", "power" or "cost", "name": its time and change,
     "engine": number in ENGINES, "truth": {}, "header": that of the samples, "pairs": [[stage, pair], ...],
     "cases": {id: {"wall": clock, "cpu": clock or null}}, "events": those of the samples, "peers": {rule: [id, ...]},
     "raw_commit": full hash of a commit that holds its raw samples; missing until --raw-commit names it}

where a clock is {"base_seconds": median round, "log_ratios": [head over base, one for each launch pair, or null]}, and
a sentinel's event has only the median of its seconds. Every verdict, effect and interval is computed from these lines.
Kept as concluded are base's median rounds and, of earlier trials, what other tools' rules called slower, which takes
every round; head's times are not kept.
"""

import argparse
import gzip
import json
import lzma
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from claims.planted import NO_OP_CHANGES, REAL_SLOWDOWNS, RULES_OF_TRUTH, VARIABLE, Change, TrialError, slowed
from perf_tests.gate.samples import (
    MOST_BYTES,
    PRESENT_ENGINE,
    Clock,
    GateSamples,
    Relaunch,
    Sentinel,
    read_samples,
    rules_from_settings,
)
from perf_tests.gate.stages import screening_of
from perf_tests.gate.statistics import pair_values
from perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude, median_seconds
from perf_tests.records.columns import case_name
from perf_tests.records.record import Json, unpacked, without_nan
from perf_tests.records.store import write_whole

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".benchmarks/epyc-2core/gate"

QUICK_SUITE = (
    "--device=cpu", "--threads=1", "--size=tiny", "--context=32", "--batch-size=1", "--precision=fp32",
    "--phase=forward,backward,full_step", "--head-dim=16,32", "--sequence-length=64,128", "--attention=naive,sdpa",
)  # fmt: skip
"""Some twenty benchmarks of a fraction of a millisecond to some ten."""

SUITES = {
    "false-alarms": (*QUICK_SUITE, "-k", "test_attention", "--head-dim=16,32,64"),
    "cost": (
        "--device=cpu", "--threads=1", "--size=tiny", "--context=48,64", "--precision=fp32", "--attention=naive,sdpa",
        "--phase=forward,backward,full_step", "--head-dim=64,128", "--sequence-length=512",
    ),
}  # fmt: skip
"""Attention alone, which is quick: two dozen benchmarks, so that many runs fit into an hour; and twenty benchmarks of
some tens of milliseconds."""

INJECTED = "extra-work"
MINUTES = {"false-alarms": "5", "power": "8", "cost": "5"}
MINUTES_OF_TRUTH = 60
"""Far more than its launch pairs take."""
FEWEST_UNCHANGED = 60

FIRST_TRIALS = ("20261121T21", "20261122T01", "20261122T04")
"""How the names of the first trials of the first engines begin, whose samples do not carry its number."""

SAMPLES, TRUTH = ".jsonl.gz", ".truth.json"
"""How the names of a trial's two raw files end."""

FORMAT_VERSION = 1
KIND = "gate-trial"
FILE = "trials.jsonl.xz"
PROOFS = ("false-alarms", "power", "cost")
DECIMALS = 10
"""Digits of a log ratio and of seconds: the median of two counts of nanoseconds is exact."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One finished run: the change of head, and the gate's verdict."""

    name: str
    truth: dict[str, Any]
    result: GateResult
    samples: GateSamples
    peers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """What other tools' rules called slower, where that was kept."""

    @property
    def engine(self) -> int:
        """Number in `ENGINES` of what measured it."""
        carried = self.samples.header.get("engine")
        return sum(start <= self.name for start in FIRST_TRIALS) if carried is None else int(carried)

    @property
    def pair_spread(self) -> float:
        """Scatter of launch pairs by the clock that decides."""
        clock = self.result.clock
        return clock.wall_spread if clock.clock == "wall" or clock.cpu_spread is None else clock.cpu_spread

    @property
    def says_something(self) -> bool:
        """False for a contaminated run: it was refused, and is neither a hit nor a false alarm."""
        return self.result.verdict not in (RunVerdict.CONTAMINATED, RunVerdict.INTERRUPTED)

    def __str__(self) -> str:
        counts = Counter(row.verdict for row in self.result.cases)
        slower = ", ".join(case_name(row.id) for row in self.result.cases if row.verdict == Verdict.SLOWER)
        tally, pairs = (
            ", ".join(f"{n} {verdict}" for verdict, n in counts.items()),
            "+".join(map(str, self.result.pairs)),
        )
        return f"{self.name}: {self.result.verdict} ({tally}; {pairs} launch pairs) {slower}".strip()


TrialsByProof = dict[str, list[Trial]]


@dataclass(frozen=True)
class Plan:
    """A trial to measure; `arguments` are those of pytest."""

    truth: dict[str, Any]
    change: Change
    arguments: Sequence[str]


Kind = tuple[str, str]
"""A proof, and the change of head."""


def wanted() -> dict[Kind, int]:
    """How many runs of each kind the claims take; 14 with extra work slow 20 benchmarks by 2 %, 56 by 3 % and 5 %."""
    unchanged = {("false-alarms", change): FEWEST_UNCHANGED // len(NO_OP_CHANGES) for change in NO_OP_CHANGES}
    real = {("power", change): 1 for change in REAL_SLOWDOWNS}
    return {**unchanged, ("power", INJECTED): 14, **real, ("cost", "same-code"): 4}


def plan(kind: Kind, number: int) -> Plan:
    """The run of this number, from 0, of a kind."""
    proof, name = kind
    if proof != "power":
        return Plan({"change": name}, NO_OP_CHANGES[name], SUITES[proof])
    if name == INJECTED:
        change, planted = slowed(random.Random(f"{INJECTED} {number}"))
        return Plan({"change": INJECTED, "planted": planted}, change, QUICK_SUITE)
    chosen = REAL_SLOWDOWNS[name]
    return Plan({"change": name, "cases": list(chosen.cases)}, chosen.change, (*QUICK_SUITE, *chosen.arguments))


def missing(trials: TrialsByProof) -> Iterator[tuple[Kind, int]]:
    """The runs to measure, kinds in turns: that of which the smallest share is there comes first."""
    there = Counter(
        (proof, trial.truth["change"])
        for proof, of_proof in trials.items()
        for trial in of_proof
        if trial.engine == PRESENT_ENGINE and trial.says_something
    )
    counts = {kind: there[kind] for kind in wanted()}
    while left := {kind: counts[kind] / most for kind, most in wanted().items() if counts[kind] < most}:
        kind = min(left, key=lambda kind: left[kind])
        yield kind, counts[kind]
        counts[kind] += 1


def measure(folder: Path, most: int | None, minutes: str | None) -> int:
    """How many runs are still missing once `most` of them are measured. Raises TrialError and ValueError."""
    left = list(missing(trials_under(folder)))
    for place, (kind, number) in enumerate(left[:most]):
        trial = run_trial(folder / kind[0], plan(kind, number), minutes or MINUTES[kind[0]])
        add_raw_trials(folder)
        print(f"{place + 1} of {len(left)}: {trial}", flush=True)
    return len(list(missing(trials_under(folder))))


def run_trial(folder: Path, plan: Plan, minutes: str) -> Trial:
    """Measure one trial and keep it in `folder`. Raises TrialError for a run that ends without a verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trial-") as temporary:
        clone = Path(temporary, "clone")
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        plan.change(clone)
        written = _gate_run(clone, Path(temporary, "storage"), [*plan.arguments, f"--gate-minutes={minutes}"])
        planted = plan.truth.get("planted")
        truth = plan.truth if planted is None else {**plan.truth, "measured": measured_shares(clone, planted)}
        stem = f"{time.strftime('%Y%m%dT%H%M%S')}-{truth['change']}"
        # The truth first: samples without one are not counted.
        (folder / f"{stem}{TRUTH}").write_text(json.dumps(truth))
        kept = folder / f"{stem}{SAMPLES}"
        write_whole(kept, gzip.compress(written.read_bytes()))
    return read_trial(kept)


def measured_shares(clone: Path, planted: Iterable[str]) -> dict[str, float]:
    """What the extra work of each planted benchmark of a changed clone takes, by launches of its own.

    Raises TrialError.
    """
    with tempfile.TemporaryDirectory(prefix="truth-") as temporary:
        file = Path(temporary, "planted.json")
        file.write_text(json.dumps(list(planted)))
        arguments = [*QUICK_SUITE, "-p", "claims.planted", f"--gate-minutes={MINUTES_OF_TRUTH}"]
        written = _gate_run(clone, Path(temporary, "storage"), arguments, {VARIABLE: str(file)})
        samples = read_samples(written)
    screening = screening_of(samples, RULES_OF_TRUTH)
    shares = np.expm1(screening.screened.estimate.mean)
    if np.any(screening.screened.estimate.count < RULES_OF_TRUTH.screen_pairs):
        raise TrialError(f"the planted work of {clone} was not measured in all launch pairs")
    return {case.rpartition("::")[2]: float(share) for case, share in zip(screening.cases, shares, strict=True)}


def _gate_run(clone: Path, storage: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Path:
    """The samples of a gate run in a changed clone. Raises TrialError where it ends without a verdict."""
    command = [sys.executable, "-m", "pytest", "perf_tests", "-p", "no:cacheprovider", *arguments]
    command += ["--against=HEAD", "--gate-measure-same", f"--benchmark-storage=file://{storage}"]
    environment = {**os.environ, **(variables or {})}
    ended = subprocess.run(
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    written = sorted((storage / "gate").glob("*.jsonl"))
    if ended.returncode not in (0, 1, 4) or not written:
        raise TrialError(f"`{' '.join(command[2:])}` exited with {ended.returncode}:\n{ended.stdout[-3000:]}")
    return written[-1]


def finished_trials(folder: Path) -> list[Path]:
    """The raw samples that have a truth beside them, the oldest first."""
    return [path for path in sorted(folder.glob(f"*{SAMPLES}")) if _truth_path(path).exists()]


def _truth_path(samples: Path) -> Path:
    return samples.with_name(_name(samples) + TRUTH)


def _name(samples: Path) -> str:
    return samples.name.partition(".")[0]


def read_trial(path: Path) -> Trial:
    """The trial of these raw samples, judged anew."""
    return _judged(_name(path), json.loads(_truth_path(path).read_text()), read_samples(path), {})


def _judged(name: str, truth: dict[str, Any], samples: GateSamples, peers: Mapping[str, frozenset[str]]) -> Trial:
    result = conclude(samples, rules_from_settings(samples.header["settings"]))
    return Trial(name, truth, result, samples, peers)


def trials_under(folder: Path) -> TrialsByProof:
    """All trials of FILE and of raw samples that it lacks, by proof, the oldest first.

    Raises ValueError with one sentence where something is damaged.
    """
    found: TrialsByProof = {proof: [] for proof in PROOFS}
    for number, line in enumerate(_lines(folder / FILE), start=1):
        try:
            found[line["proof"]].append(_trial(line))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / FILE} cannot be used: line {number} is damaged: {error!r}.") from error
    for proof, trials in found.items():
        known = {trial.name for trial in trials}
        trials += [read_trial(path) for path in finished_trials(folder / proof) if _name(path) not in known]
        trials.sort(key=lambda trial: trial.name)
    return found


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
    files = _git(folder, "ls-tree", "-r", "--name-only", full_hash, "--", ".").splitlines() if full_hash else []
    held = {f"{Path(file).parent.name}/{_name(Path(file))}" for file in files if file.endswith(SAMPLES)}
    lines = _lines(folder / FILE)
    named = [line for line in lines if "raw_commit" not in line and f"{line['proof']}/{line['name']}" in held]
    if not named:
        raise ValueError(f"{commit!r} is no commit with raw samples of a trial of {folder} that lacks its commit.")
    for line in named:
        line["raw_commit"] = full_hash
    _write(folder / FILE, lines)
    return len(named)


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing where it fails."""
    ended = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    return "" if ended.returncode else ended.stdout


def _write(path: Path, lines: Sequence[Json]) -> None:
    """All at once, so that a run which is stopped damages nothing."""
    ordered = sorted(lines, key=lambda line: str(line["name"]))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in ordered)
    write_whole(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def line_of(proof: str, trial: Trial, raw: bytes) -> Json:
    """The line of a trial whose raw samples, all their bytes, are given too."""
    samples = trial.samples
    pairs = [(stage, pair) for stage in (1, 2) for pair in samples.pairs(stage)]
    clocks = {clock: _clock_values(samples, clock) for clock in ("wall", "cpu")}
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
        "peers": {},
    }


def _clock_values(samples: GateSamples, clock: Clock) -> dict[str, Json | None]:
    """Median round and log ratios by case; None where the clock was never read."""
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
    """The trial of a line: in each launch pair one round of a side, whose log ratio is its pair value."""
    samples = GateSamples(line["header"])
    for case, clocks in line["cases"].items():
        for place, (stage, pair) in enumerate(line["pairs"]):
            entry: Json = {"stage": stage, "pair": pair, "case": case, "orders": ["ABBA"]}
            for clock, name in (("wall", "seconds"), ("cpu", "cpu_seconds")):
                values = clocks[clock]
                ratio = None if values is None else values["log_ratios"][place]
                scales = {} if ratio is None else {"base": 1.0, "head": math.exp(ratio)}
                for side in ("base", "head"):
                    entry[f"{side}_{name}"] = [[values["base_seconds"] * scales[side]] * 2] if scales else None
            if entry["base_seconds"] is not None:
                samples.add(entry)
    for event in line["events"]:
        samples.add(event)
    peers = {rule: frozenset(cases) for rule, cases in line["peers"].items()}
    trial = _judged(line["name"], line["truth"], samples, peers)
    without_head = [replace(row, head_seconds=None) for row in trial.result.cases]
    return replace(trial, result=replace(trial.result, cases=without_head))


def main() -> int:
    """0 once every run is there and says what is claimed, else 1 or 2; 130 where it is stopped."""
    from claims.gate_worth import say  # it reads what this file keeps

    parser = argparse.ArgumentParser(
        prog="python -m claims.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=KEPT)
    parser.add_argument("--most", type=int, help="end after so many runs (default: when all are there)")
    parser.add_argument("--gate-minutes", help="how long one run may measure (default: 5, with slowdowns 8)")
    parser.add_argument("--raw-commit", metavar="COMMIT", help="holds raw samples of FOLDER; measures none")
    asked = parser.parse_args()
    try:
        if asked.raw_commit is not None:
            print(f"{add_raw_trials(asked.folder)} trials added to {asked.folder / FILE}")
            print(f"{name_raw_commit(asked.folder, asked.raw_commit)} trials name the commit of their raw samples")
            return 0
        left = measure(asked.folder, asked.most, asked.gate_minutes)
        say(trials_under(asked.folder))
        print(f"{left} runs of engine {PRESENT_ENGINE} are missing in {asked.folder / FILE}.")
        return 2 if left else 0
    except KeyboardInterrupt:
        print("stopped; what is measured is kept, and the same command resumes.")
        return 130
    except (TrialError, ValueError) as error:
        print(error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
