"""Whole gate runs with a known truth, each through the shipped command line, their raw samples kept across runs.

A trial changes the `model/` of a fresh clone, runs `pytest perf_tests --against HEAD` there, and compresses the samples
into a folder, beside a description of the change. Every statement on trials is computed from that folder.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from claims import planted_truth
from claims.peer_rules import Calls
from claims.verdict import conditions
from perf_tests.gate.samples import GateSamples, read_samples, rules_from_settings
from perf_tests.gate.stages import screening_of
from perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude
from perf_tests.records.columns import case_name
from perf_tests.records.store import write_whole

ROOT = Path(__file__).parents[1]

QUICK_SUITE = (
    "--device=cpu", "--threads=1", "--size=tiny", "--context=32", "--batch-size=1", "--precision=fp32",
    "--phase=forward,backward,full_step", "--head-dim=16,32", "--sequence-length=64,128", "--attention=naive,sdpa",
)  # fmt: skip
"""Some twenty benchmarks of a fraction of a millisecond to some ten."""

FIRST_TRIALS = ("20261121T21", "20261122T01", "20261122T04")
"""How the names of the first trials of the first engines begin, whose samples do not carry its number."""

MINUTES_OF_TRUTH = 60
"""Far more than its launch pairs take."""

SAMPLES, TRUTH = ".jsonl.gz", ".truth.json"
"""How the names of a trial's two files end."""

Change = Callable[[Path], None]
"""Edits a working tree; what it leaves is head."""


class TrialError(Exception):
    """A gate run ended without a verdict; the message ends with its output."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One finished run: the change of head, and the gate's verdict."""

    name: str
    truth: dict[str, Any]
    result: GateResult
    samples: GateSamples | None = None
    peer_calls: Calls | None = None
    """What other tools' rules called slower, where the rounds themselves are not kept."""

    @property
    def engine(self) -> int:
        """Which of `ENGINES` measured it."""
        carried = None if self.samples is None else self.samples.header.get("engine")
        return sum(start <= self.name for start in FIRST_TRIALS) if carried is None else int(carried)

    @property
    def pair_spread(self) -> float:
        """By how much launch pairs scatter by the clock that decides."""
        clock = self.result.clock
        return clock.wall_spread if clock.clock == "wall" or clock.cpu_spread is None else clock.cpu_spread

    @property
    def says_something(self) -> bool:
        """False for a contaminated run: it was refused, and is neither a hit nor a false alarm."""
        return self.result.verdict not in (RunVerdict.CONTAMINATED, RunVerdict.INTERRUPTED)


@dataclass(frozen=True)
class Plan:
    """A trial to measure; `arguments` are those of pytest."""

    truth: dict[str, Any]
    change: Change
    arguments: Sequence[str]


def proof_arguments(about: str | None, proof: str, runs: int, minutes: int) -> argparse.ArgumentParser:
    """The arguments of every proof that measures trials, with these defaults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--runs", type=int, default=runs, help=f"runs that the folder is to hold (default: {runs})")
    folder = ROOT / ".benchmarks/gate" / proof
    parser.add_argument("--folder", type=Path, default=folder, help="where the samples are kept")
    parser.add_argument("--gate-minutes", default=minutes, help=f"how long one run may measure (default: {minutes})")
    return parser


def prove(arguments: argparse.Namespace, plans: Iterable[Plan], conclude_from: Callable[[list[Trial]], int]) -> int:
    """Measure these trials and conclude from them and the kept ones; 2 where a run ends without a verdict."""
    print(conditions(threads=1))
    print(f"{len(finished_trials(arguments.folder))} trials were there already in {arguments.folder}")
    try:
        for plan in plans:
            print(in_words(run_trial(arguments.folder, plan, arguments.gate_minutes)), flush=True)
    except TrialError as error:
        print(error)
        return 2
    return conclude_from(kept_trials(arguments.folder))


def in_words(trial: Trial) -> str:
    """The verdict of a run, and which benchmarks it calls slower."""
    counts = {verdict: sum(row.verdict == verdict for row in trial.result.cases) for verdict in Verdict}
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    named = [case_name(row.id) for row in trial.result.cases if row.verdict == Verdict.SLOWER]
    pairs = "+".join(map(str, trial.result.pairs))
    return " ".join([f"{trial.name}: {trial.result.verdict} ({tally}; {pairs} launch pairs)", ", ".join(named)]).strip()


def run_trial(folder: Path, plan: Plan, minutes: str) -> Trial:
    """Measure one trial and keep it in `folder`. Raises TrialError for a run that ends without a verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trial-") as temporary:
        clone = Path(temporary, "clone")
        _git("clone", "-q", "--shared", str(ROOT), str(clone))
        plan.change(clone)
        written = _gate_run(clone, Path(temporary, "storage"), [*plan.arguments, f"--gate-minutes={minutes}"])
        planted = plan.truth.get("planted")
        truth = plan.truth if planted is None else {**plan.truth, "measured": measured_shares(clone, planted)}
        return _keep(folder, f"{time.strftime('%Y%m%dT%H%M%S')}-{truth['change']}", truth, written)


def measured_shares(
    clone: Path, planted: Iterable[str], launch_pairs: int = planted_truth.LAUNCH_PAIRS
) -> dict[str, float]:
    """What the extra work of each planted benchmark of a changed clone takes, by launches of its own.

    Raises TrialError.
    """
    with tempfile.TemporaryDirectory(prefix="truth-") as temporary:
        file = Path(temporary, "planted.json")
        file.write_text(json.dumps({"benchmarks": list(planted), "launch_pairs": launch_pairs}))
        arguments = [*QUICK_SUITE, "-p", planted_truth.__name__, f"--gate-minutes={MINUTES_OF_TRUTH}"]
        written = _gate_run(clone, Path(temporary, "storage"), arguments, {planted_truth.VARIABLE: str(file)})
        samples = read_samples(written)
    screening = screening_of(samples, planted_truth.rules(launch_pairs))
    shares = np.expm1(screening.screened.estimate.mean)
    if np.any(screening.screened.estimate.count < launch_pairs):
        raise TrialError(f"the planted work of {clone} was not measured in {launch_pairs} launch pairs")
    return {case.rpartition("::")[2]: float(share) for case, share in zip(screening.cases, shares, strict=True)}


def _gate_run(clone: Path, storage: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Path:
    """The samples of a gate run in a changed clone. Raises TrialError where it ends without a verdict."""
    command = [sys.executable, "-m", "pytest", "perf_tests", "-p", "no:cacheprovider", *arguments]
    command += ["--against=HEAD", f"--benchmark-storage=file://{storage}"]
    environment = {**os.environ, **(variables or {})}
    ended = subprocess.run(
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    written = sorted((storage / "gate").glob("*.jsonl"))
    if ended.returncode not in (0, 1, 4) or not written:
        raise TrialError(f"`{' '.join(command[2:])}` exited with {ended.returncode}:\n{ended.stdout[-3000:]}")
    return written[-1]


def _keep(folder: Path, stem: str, truth: dict[str, Any], samples: Path) -> Trial:
    """The truth first: samples without one are not counted."""
    (folder / f"{stem}{TRUTH}").write_text(json.dumps(truth))
    kept = folder / f"{stem}{SAMPLES}"
    write_whole(kept, gzip.compress(samples.read_bytes()))
    return read_trial(kept)


def count_trials(folder: Path, change: str) -> int:
    """How many finished trials of this change `folder` holds."""
    return sum(_truth_of(path)["change"] == change for path in finished_trials(folder))


def kept_trials(folder: Path) -> list[Trial]:
    """Every trial in `folder`, the oldest first, judged anew from its samples."""
    return [read_trial(path) for path in finished_trials(folder)]


def finished_trials(folder: Path) -> list[Path]:
    """The samples that have a truth beside them, the oldest first."""
    return [path for path in sorted(folder.glob(f"*{SAMPLES}")) if _truth_path(path).exists()]


def _truth_path(samples: Path) -> Path:
    return samples.with_name(samples.name.removesuffix(SAMPLES) + TRUTH)


def _truth_of(samples: Path) -> dict[str, Any]:
    return dict(json.loads(_truth_path(samples).read_text()))


def read_trial(path: Path) -> Trial:
    """The trial of these raw samples, judged anew."""
    return judged_trial(path.name.removesuffix(SAMPLES), _truth_of(path), read_samples(path))


def judged_trial(name: str, truth: dict[str, Any], samples: GateSamples, peer_calls: Calls | None = None) -> Trial:
    result = conclude(samples, rules_from_settings(samples.header["settings"]))
    return Trial(name, truth, result, samples, peer_calls)


def replaced(file: str, old: str, new: str) -> Change:
    """A change of one piece of text, which must be there."""

    def change(tree: Path) -> None:
        path = tree / file
        text = path.read_text()
        if old not in text:
            raise TrialError(f"{file} has no {old!r} to change; adapt the change to the code.")
        path.write_text(text.replace(old, new))

    return change


def _git(*words: str) -> None:
    ended = subprocess.run(["git", *words], capture_output=True, text=True)
    if ended.returncode:
        raise TrialError(f"git {' '.join(words)} failed: {ended.stderr.strip()}")
