"""Whole gate runs with a known truth: measured one after another, kept in one file, judged anew at each reading.

    python -m claims.gate [FOLDER] [--most N] [--gate-minutes M] [--raw-commit COMMIT]

measures what FOLDER lacks of the runs that the gate's claims take with the present engine, and prints what all of them
say. It may be stopped at any moment and started again: each trial is added to FOLDER/trials.jsonl.xz whole, and its raw
samples stay beside. All kinds take turns, so that what there is serves every claim. `--most 0` measures nothing.

A trial changes the `model/` of a fresh clone and runs `pytest perf_tests --against HEAD` there. One line of the file:

    {"format_version": 1, "kind": "gate-trial", "proof": one of PROOFS, "name": its time and change,
     "engine": number in ENGINES, "truth": {}, "header": that of the samples, "pairs": [[stage, pair], ...],
     "cases": {id: {"wall": clock, "cpu": clock or null}}, "events": those of the samples, "peers": {rule: [id, ...]},
     "raw_commit": full hash of a commit that holds its raw samples; missing until --raw-commit names it}

where a clock is {"base_seconds": median round, "log_ratios": [head over base, one for each launch pair, or null]}, and
a sentinel's event has only the median of its seconds. Every verdict, effect and interval is computed from these lines.
Kept as concluded are base's median rounds and, of earlier trials, what other tools' rules called slower, which takes
every round; head's times are not kept.
"""

import argparse
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from scipy.stats import binom

from claims.planted import (
    NO_OP_CHANGES,
    REAL_SLOWDOWNS,
    RULES_OF_TRUTH,
    VARIABLE,
    WATCHED_SLOWDOWNS,
    Change,
    TrialError,
    slowed,
)
from claims.statistics import Share
from perf_tests_suite.perf_tests.gate.samples import (
    ENGINES,
    FEWEST_PAIRS,
    MOST_BYTES,
    PRESENT_ENGINE,
    Clock,
    GateSamples,
    PairTime,
    Relaunch,
    Sentinel,
    read_samples,
    rules_from_settings,
)
from perf_tests_suite.perf_tests.gate.stages import replay_stages, screening_of
from perf_tests_suite.perf_tests.gate.statistics import pair_values
from perf_tests_suite.perf_tests.gate.verdicts import (
    CaseResult,
    GateResult,
    RunVerdict,
    Verdict,
    conclude,
    median_seconds,
)
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import DASH, duration, table
from perf_tests_suite.perf_tests.records.record import Json, unpacked, without_nan
from perf_tests_suite.perf_tests.records.store import write_whole

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

ALL_CORES_SUITE = (
    "--device=cpu", "--size=tiny", "--context=64", "--batch-size=1", "--precision=fp32",
    "--phase=forward,backward,full_step", "--head-dim=32", "--sequence-length=128,256", "--attention=naive,sdpa",
)  # fmt: skip
"""Fourteen benchmarks with as many threads as a user gets, whose tensors are large enough to be shared among them."""
ALL_CORES_SHAPES = ((32, 128), (32, 256))

INJECTED = "extra-work"
MINUTES = {
    "false-alarms": "5", "power": "8", "cost": "5", "all-cores-false-alarms": "5", "all-cores-power": "8",
}  # fmt: skip
MINUTES_OF_TRUTH = 60
"""Far more than its launch pairs take."""
FEWEST_UNCHANGED = 60
FEWEST_UNCHANGED_ALL_CORES = 30

FIRST_TRIALS = ("20261121T21", "20261122T01", "20261122T04")
"""How the names of the first trials of the first engines begin, whose samples do not carry its number."""

SAMPLES, TRUTH = ".jsonl.xz", ".truth.json"
"""How the names of a trial's two raw files end."""

FORMAT_VERSION = 1
KIND = "gate-trial"
FILE = "trials.jsonl.xz"
PROOFS = tuple(MINUTES)
DECIMALS, RATIO_DECIMALS = 10, 6
"""Digits of seconds, since the median of two counts of nanoseconds is exact; of log ratios, which is .0001 %."""


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
    """How many runs of each kind the claims take; 14 with extra work slow 20 benchmarks by 2 %, 56 by 3 % and 5 %.

    With all cores, 3 slow 9 by 3 % and 5 % each.
    """
    unchanged = {
        (proof, change): fewest // len(NO_OP_CHANGES)
        for proof, fewest in (
            ("false-alarms", FEWEST_UNCHANGED),
            ("all-cores-false-alarms", FEWEST_UNCHANGED_ALL_CORES),
        )
        for change in NO_OP_CHANGES
    }
    real = {("power", change): 1 for change in REAL_SLOWDOWNS}
    injected = {("power", INJECTED): 14, ("all-cores-power", INJECTED): 3}
    return {**unchanged, **injected, **real, ("cost", "same-code"): 4}


def plan(kind: Kind, number: int) -> Plan:
    """The run of this number, from 0, of a kind."""
    proof, name = kind
    if proof == "all-cores-power":
        change, planted = slowed(random.Random(f"{proof} {number}"), ALL_CORES_SHAPES, "ctx64")
        return Plan({"change": INJECTED, "planted": planted}, change, ALL_CORES_SUITE)
    if proof != "power":
        return Plan({"change": name}, NO_OP_CHANGES[name], SUITES.get(proof, ALL_CORES_SUITE))
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
        truth = (
            plan.truth
            if planted is None
            else {**plan.truth, "measured": measured_shares(clone, planted, plan.arguments)}
        )
        stem = f"{time.strftime('%Y%m%dT%H%M%S')}-{truth['change']}"
        # The truth first: samples without one are not counted.
        (folder / f"{stem}{TRUTH}").write_text(json.dumps(truth))
        kept = folder / f"{stem}{SAMPLES}"
        write_whole(kept, lzma.compress(written.read_bytes()))
    return read_trial(kept)


def measured_shares(clone: Path, planted: Iterable[str], suite: Sequence[str]) -> dict[str, float]:
    """What the extra work of each planted benchmark of a changed clone takes, by launches of its own.

    Raises TrialError.
    """
    with tempfile.TemporaryDirectory(prefix="truth-") as temporary:
        file = Path(temporary, "planted.json")
        file.write_text(json.dumps(list(planted)))
        arguments = [*suite, "-p", "claims.planted", f"--gate-minutes={MINUTES_OF_TRUTH}"]
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
    return judged(_name(path), json.loads(_truth_path(path).read_text()), read_samples(path), {})


def judged(name: str, truth: dict[str, Any], samples: GateSamples, peers: Mapping[str, frozenset[str]]) -> Trial:
    """The trial with the verdicts of these samples."""
    result = conclude(samples, rules_from_settings(samples.header["settings"]))
    return Trial(name, truth, result, samples, peers)


def trials_under(folder: Path) -> TrialsByProof:
    """All trials of FILE and of raw samples that it lacks, by proof, the oldest first.

    Raises ValueError with one sentence where something is damaged.
    """
    found: TrialsByProof = {proof: [] for proof in PROOFS}
    for number, line in enumerate(lines_of(folder / FILE), start=1):
        try:
            found[line["proof"]].append(trial_of(line))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / FILE} cannot be used: line {number} is damaged: {error!r}.") from error
    for proof, trials in found.items():
        known = {trial.name for trial in trials}
        trials += [read_trial(path) for path in finished_trials(folder / proof) if _name(path) not in known]
        trials.sort(key=lambda trial: trial.name)
    return found


def add_raw_trials(folder: Path) -> int:
    """How many raw trials below `folder` its file lacked; raises ValueError with one sentence for damaged ones."""
    lines = lines_of(folder / FILE)
    known = {line["name"] for line in lines}
    added = [
        line_of(proof, read_trial(path), unpacked(path, MOST_BYTES))
        for proof in PROOFS
        for path in finished_trials(folder / proof)
        if _name(path) not in known
    ]
    write_lines(folder / FILE, [*lines, *added])
    return len(added)


def name_raw_commit(folder: Path, commit: str) -> int:
    """How many trials without a commit now name this one, which holds their raw samples.

    Raises ValueError with one sentence where `commit` is none, or holds no such samples.
    """
    full_hash = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}").strip()
    files = _git(folder, "ls-tree", "-r", "--name-only", full_hash, "--", ".").splitlines() if full_hash else []
    held = {f"{Path(file).parent.name}/{_name(Path(file))}" for file in files if file.endswith(SAMPLES)}
    lines = lines_of(folder / FILE)
    named = [line for line in lines if "raw_commit" not in line and f"{line['proof']}/{line['name']}" in held]
    if not named:
        raise ValueError(f"{commit!r} is no commit with raw samples of a trial of {folder} that lacks its commit.")
    for line in named:
        line["raw_commit"] = full_hash
    write_lines(folder / FILE, lines)
    return len(named)


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing where it fails."""
    ended = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    return "" if ended.returncode else ended.stdout


def write_lines(path: Path, lines: Sequence[Json]) -> None:
    """Write all at once, so that a run which is stopped damages nothing."""
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
        values = without_nan([round(value, RATIO_DECIMALS) for value in ratios[place].tolist()])
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


def lines_of(path: Path, proofs: Collection[str] = PROOFS) -> list[Json]:
    """The lines of a file of trials, none where there is no file; raises ValueError with one sentence for others."""
    if not path.exists():
        return []
    content = unpacked(path, MOST_BYTES)
    try:
        lines: list[Json] = [json.loads(line) for line in content.splitlines()]
        if any((line["kind"], line["format_version"]) != (KIND, FORMAT_VERSION) for line in lines):
            raise ValueError(f"its lines are no {KIND!r} of format version {FORMAT_VERSION}")
        if not {line["proof"] for line in lines} <= {*proofs}:
            raise ValueError(f"its lines are of other proofs than {', '.join(proofs)}")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}.") from error
    return lines


def trial_of(line: Json) -> Trial:
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
    trial = judged(line["name"], line["truth"], samples, peers)
    without_head = [replace(row, head_seconds=None) for row in trial.result.cases]
    return replace(trial, result=replace(trial.result, cases=without_head))


FAMILY_WISE_RATE = 0.01
CALM_SPREAD, CLAIMED_SPREAD = 0.01, 0.02
"""What launch pairs scatter by at most where unchanged cases are cleared soon, and where slowdowns are found."""
FEWEST_SLOWED, FEWEST_SLOWED_ALL_CORES = 40, 8
"""Benchmarks slowed on a calm machine, of each slowdown, that a statement on power takes."""
FEWEST_BENCHMARKS, SHORT_ROUND_SECONDS = 20, 0.01
"""A suite for which screening within minutes is claimed: so many benchmarks, whose median round is no longer."""


def worth() -> dict[str, float]:
    """Print what the committed runs say; the claimed figures of the present engine."""
    trials = trials_under(KEPT)
    say(trials)
    return figures(of_present_engine(trials))


def worth_with_all_cores() -> dict[str, float]:
    """Print what the committed runs with a thread on each core say; their claimed figures."""
    trials = of_present_engine(trials_under(KEPT))
    unchanged, power = trials["all-cores-false-alarms"], trials["all-cores-power"]
    for lines in (_of_false_alarms(unchanged), _of_power(power)):
        print(*lines, sep="\n")
    return _alarms_and_power(unchanged, power, FEWEST_UNCHANGED_ALL_CORES, FEWEST_SLOWED_ALL_CORES)


def of_present_engine(trials: TrialsByProof) -> TrialsByProof:
    """Runs of the present engine, without those that the gate refused; every unchanged run shows what it cost."""
    runs = {**trials, "cost": [*trials["false-alarms"], *trials["cost"]]}
    return {
        proof: [trial for trial in found if trial.engine == PRESENT_ENGINE and trial.says_something]
        for proof, found in runs.items()
    }


def say(trials: TrialsByProof) -> None:
    """Print a line for each engine, the tables of the present one, and that of other tools' rules."""
    everything = [trial for found in trials.values() for trial in found]
    engines = Counter(trial.engine for trial in everything)
    for number, about in enumerate(ENGINES, start=1):
        print(f"engine {number}, {engines[number]} runs: {about}")
    refused = sum(trial.engine == PRESENT_ENGINE and not trial.says_something for trial in everything)
    print(f"\nengine {PRESENT_ENGINE}, the present one:\n")
    print(f"contaminated runs, which the gate refused: {refused} of {engines[PRESENT_ENGINE]}")
    present = of_present_engine(trials)
    for lines in (_of_false_alarms(present["false-alarms"]), _of_power(present["power"]), suites_of(present["cost"])):
        print(*lines, sep="\n")
    print("\nwith a thread on each core, by the present engine:\n")
    for lines in (_of_false_alarms(present["all-cores-false-alarms"]), _of_power(present["all-cores-power"])):
        print(*lines, sep="\n")
    print("\nother tools' rules on the same rounds, of all engines:\n")
    print(*rules_table(trials), sep="\n")


def figures(present: TrialsByProof) -> dict[str, float]:
    """What is claimed, by name, without figures of which too few runs or no calm machine say anything."""
    found = _alarms_and_power(present["false-alarms"], present["power"], FEWEST_UNCHANGED, FEWEST_SLOWED)
    real = [trial for trial in present["power"] if not is_injected(trial)]
    if real:
        found["real slowdowns missed"] = sum(
            not is_caught_by_time(trial) and not is_caught_by_counters(trial) for trial in real
        )
    suites = [
        suite
        for suite in suites_of(present["cost"])
        if suite.round_seconds <= SHORT_ROUND_SECONDS
        and suite.benchmarks >= FEWEST_BENCHMARKS
        and suite.cleared(CALM_SPREAD).of
    ]
    if suites:
        found["seconds of screening"] = max(screening_seconds(trial) for suite in suites for trial in suite.trials)
        cleared = [suite.cleared(CALM_SPREAD) for suite in suites]
        found["cleared by screening"] = min(share.count / share.of for share in cleared)
    return found


def _alarms_and_power(
    unchanged: Sequence[Trial], power: Sequence[Trial], fewest: int, fewest_slowed: int
) -> dict[str, float]:
    found: dict[str, float] = {}
    alarms = sum(map(is_false_alarm, unchanged))
    # So few runs cannot show a rate of 1 %; simulated and relabelled ones do. These can refute it.
    explained = float(binom.sf(alarms - 1, len(unchanged), FAMILY_WISE_RATE))
    if len(unchanged) >= fewest or explained < 0.05:
        found["chance of so many false alarms at a rate of 1 %"] = explained
    slowed = slowed_in(filter(is_injected, power))
    if said := [case for case in slowed if case.is_said_to_be_found]:
        # On a noisy machine this is all that is promised: refuted where the promised share lies above its interval.
        found["found of what a run says that it detects, upper end"] = found_share(said).limits[1]
    for size in WATCHED_SLOWDOWNS:
        calm = [case for case in slowed if case.is_calm and case.slowdown == size]
        if len(calm) >= fewest_slowed:
            found[f"found of {size:.0%}"] = found_share(calm).count / len(calm)
            found[f"bias at {size:.0%}"] = mean(errors_of(calm))
    return found


def is_false_alarm(trial: Trial) -> bool:
    """Whether a run of unchanged code failed."""
    return trial.result.verdict == RunVerdict.FAILED


def _of_false_alarms(trials: Sequence[Trial]) -> Iterator[str]:
    for change in NO_OP_CHANGES:
        of_kind = [trial for trial in trials if trial.truth["change"] == change]
        yield f"{change:16} {sum(map(is_false_alarm, of_kind))} false alarms in {len(of_kind)} runs"
    verdicts = Counter(row.verdict for trial in trials for row in trial.result.cases)
    slower, undecided = verdicts[Verdict.SLOWER], verdicts[Verdict.UNDECIDED]
    yield f"verdicts on single benchmarks: {slower} SLOWER, {undecided} UNDECIDED of {verdicts.total()}"
    alarms = Share(sum(map(is_false_alarm, trials)), len(trials))
    if trials:
        limit = alarms.upper_limit
        yield f"runs with a false alarm: {alarms.count} of {alarms.of}; the rate is below {limit:.1%} at 95%"


@dataclass(frozen=True)
class SlowedCase:
    """A benchmark with planted extra work, and the gate's verdict."""

    trial: Trial
    row: CaseResult
    slowdown: float
    """The extra work as a share of a round's time, as planted."""
    measured: float | None = None
    """The same as measured in the run's clone, apart from the gate; None for older ones."""

    @property
    def truth(self) -> float:
        return self.slowdown if self.measured is None else self.measured

    @property
    def is_calm(self) -> bool:
        """Whether the claims are made for this run."""
        return self.trial.pair_spread <= CLAIMED_SPREAD

    @property
    def is_said_to_be_found(self) -> bool:
        """Whether the run printed that it detects as much, and was not cut short."""
        detectable = self.trial.result.detectable
        return self.trial.samples.end == "finished" and detectable is not None and self.slowdown >= detectable


def is_injected(trial: Trial) -> bool:
    """Whether extra work of known shares was planted, not a realistic change."""
    return bool(trial.truth["change"] == INJECTED)


def slowed_in(trials: Iterable[Trial]) -> list[SlowedCase]:
    """Every benchmark with extra work in these runs."""
    return [
        SlowedCase(trial, row, slowdown, trial.truth.get("measured", {}).get(name))
        for trial in trials
        for row in trial.result.cases
        for name, slowdown in trial.truth["planted"].items()
        if name in row.id
    ]


def by_slowdown(cases: Sequence[SlowedCase]) -> dict[float, list[SlowedCase]]:
    """The same, the smallest slowdown first."""
    return {size: [case for case in cases if case.slowdown == size] for size in sorted({c.slowdown for c in cases})}


def found_share(cases: Sequence[SlowedCase]) -> Share:
    return Share(sum(case.row.verdict == Verdict.SLOWER for case in cases), len(cases))


def errors_of(cases: Iterable[SlowedCase]) -> list[float]:
    """Estimates less truth, as shares of base's time."""
    return [case.row.effect.effect - case.truth for case in cases if case.row.effect is not None]


def _of_power(trials: Sequence[Trial]) -> Iterator[str]:
    injected = list(filter(is_injected, trials))
    rows = []
    for size, cases in by_slowdown(slowed_in(injected)).items():
        errors, calm = errors_of(cases), found_share([case for case in cases if case.is_calm])
        bias = f"{mean(errors):+.2%} +- {2 * stdev(errors) / math.sqrt(len(errors)):.2%}" if len(errors) > 1 else DASH
        rows.append((f"{size:.0%}", str(found_share(cases)), str(calm), bias))
    where = f"found where launch pairs scatter by at most {CLAIMED_SPREAD:.0%}"
    yield from table(("extra work", "found", where, "estimate less truth"), rows)
    others = [
        row.verdict == Verdict.SLOWER
        for trial in injected
        for row in trial.result.cases
        if not any(name in row.id for name in trial.truth["planted"])
    ]
    yield f"other benchmarks of these runs called slower: {Share(sum(others), len(others))}"
    real = [trial for trial in trials if not is_injected(trial)]
    for trial in real:
        touched = [row for row in trial.result.cases if is_touched(trial, row.id)]
        slower = [row for row in touched if row.verdict == Verdict.SLOWER]
        effects = [row.effect.effect for row in slower if row.effect is not None]
        by = f", by {min(effects):.1%} to {max(effects):.1%}" if effects else ""
        risen = f"; more {', '.join(names)}" if (names := risen_counters(trial)) else ""
        about = f"{trial.truth['change']} ({REAL_SLOWDOWNS[trial.truth['change']].about})"
        yield f"{about}: {len(slower)} of {len(touched)} benchmarks called slower{by}{risen}"
    if real:
        yield from two_by_two(real)


def is_touched(trial: Trial, case_id: str) -> bool:
    """Whether a real change touches this benchmark."""
    return any(name in case_id for name in trial.truth["cases"])


def risen_counters(trial: Trial) -> list[str]:
    """The exact counters that rose in benchmarks that a real change touches."""
    rows = [row for row in trial.result.exact if is_touched(trial, row.id)]
    return sorted({row.counter for row in rows if row.verdict == Verdict.MORE})


def is_caught_by_time(trial: Trial) -> bool:
    """Whether any benchmark that a real change touches was called slower."""
    return any(row.verdict == Verdict.SLOWER for row in trial.result.cases if is_touched(trial, row.id))


def is_caught_by_counters(trial: Trial) -> bool | None:
    """Whether any of its exact counters rose; None for a run that counted nothing."""
    return bool(risen_counters(trial)) if trial.result.exact else None


def two_by_two(trials: Sequence[Trial]) -> list[str]:
    """Table the changes that time caught, counters, both or neither; below, those that counted nothing."""
    names: dict[tuple[bool, bool | None], list[str]] = {}
    for trial in trials:
        kind = is_caught_by_time(trial), is_caught_by_counters(trial)
        names.setdefault(kind, []).append(trial.truth["change"])
    rows = [
        (words, *(", ".join(names.get((by_time, by_counters), [])) or DASH for by_counters in (True, False)))
        for words, by_time in (("caught by time", True), ("not by time", False))
    ]
    lines = table(("real slowdowns", "caught by counters", "not by counters"), rows)
    without = [name for (_, by_counters), found in names.items() if by_counters is None for name in found]
    return [*lines, *([f"without counters: {', '.join(without)}"] if without else [])]


@dataclass(frozen=True)
class SuiteRuns:
    """Runs of the same unchanged benchmarks.

    Screening is stage 1 and the first look of stage 2, which clears what stage 1 suspects by chance.
    """

    trials: Sequence[Trial]

    @property
    def benchmarks(self) -> int:
        return len(self.trials[0].result.cases)

    @property
    def round_seconds(self) -> float:
        rows = [row for trial in self.trials for row in trial.result.cases]
        return median(row.base_seconds for row in rows if row.base_seconds is not None)

    def cleared(self, pair_spread: float) -> Share:
        """Benchmarks cleared in the runs whose launch pairs scatter by at most so much."""
        calm = [trial for trial in self.trials if trial.pair_spread <= pair_spread]
        return Share(sum(map(cleared_in, calm)), self.benchmarks * len(calm))

    def __str__(self) -> str:
        seconds = list(map(screening_seconds, self.trials))
        return (
            f"{self.benchmarks} benchmarks, median round {duration(self.round_seconds)}, {len(self.trials)} runs: "
            f"screened in {min(seconds):.0f} to {max(seconds):.0f} s, median {median(seconds):.0f} s; "
            f"cleared {self.cleared(np.inf)}, where launch pairs scatter by at most {CALM_SPREAD:.0%} "
            f"{self.cleared(CALM_SPREAD)}"
        )


def suites_of(trials: Iterable[Trial]) -> list[SuiteRuns]:
    """The suite of the shortest rounds first."""
    by_cases: dict[frozenset[str], list[Trial]] = {}
    for trial in trials:
        by_cases.setdefault(frozenset(row.id for row in trial.result.cases), []).append(trial)
    return sorted(map(SuiteRuns, by_cases.values()), key=lambda suite: suite.round_seconds)


def screening_seconds(trial: Trial) -> float:
    """Seconds of the launch pairs of stage 1, and of stage 2 those up to its first look."""
    times = trial.samples.of(PairTime)
    stage_one, fresh = ([time.seconds for time in times if time.stage == stage] for stage in (1, 2))
    return sum(stage_one) + sum(fresh[: rules_from_settings(trial.samples.header["settings"]).confirm_looks[0]])


def cleared_in(trial: Trial) -> int:
    """Benchmarks called OK in screening."""
    history = replay_stages(trial.samples, rules_from_settings(trial.samples.header["settings"]))
    still = history.interim[0].undecided if history.interim else history.screening.candidates
    measured = history.screening.screened.estimate.count >= FEWEST_PAIRS
    is_open = np.asarray([case in still for case in history.screening.cases])
    return int(np.sum(measured & ~is_open & ~history.confirmed.slower))


def rules_table(trials: TrialsByProof) -> list[str]:
    """A line for each rule, the gate first: false alarms and detections in the runs that kept the others' calls."""
    unchanged, power = (
        [trial for trial in trials[proof] if trial.says_something and trial.peers]
        for proof in ("false-alarms", "power")
    )
    injected = list(filter(is_injected, power))
    calls = {
        trial: {"this gate": {row.id for row in trial.result.cases if row.verdict == Verdict.SLOWER}, **trial.peers}
        for trial in (*unchanged, *injected)
    }
    sizes, rows = by_slowdown(slowed_in(injected)), []
    for rule in dict.fromkeys(rule for of_trial in calls.values() for rule in of_trial):
        alarms = Share(sum(bool(calls[trial][rule]) for trial in unchanged), len(unchanged))
        found = [
            f"{sum(case.row.id in calls[case.trial][rule] for case in cases)} of {len(cases)}"
            for cases in sizes.values()
        ]
        rows.append((rule, str(alarms), *found))
    return table(("rule", "runs with a false alarm", *(f"{size:.0%} found" for size in sizes)), rows)


def main() -> int:
    """0 once every run is there and says what is claimed, else 1 or 2; 130 where it is stopped."""
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
