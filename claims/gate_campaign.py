"""Whole runs of the present engine, one after another, until FOLDER holds as many as the gate's claims take.

    python -m claims.gate_campaign [FOLDER] [--most N]

It may be stopped at any moment and started again: each trial is added to FOLDER/trials.jsonl.xz whole, with its raw
samples beside, and what the file holds of the present engine is not measured again. All kinds take turns, so that what
there is serves every claim. Run it on an idle machine, then `gate_worth FOLDER`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from claims import gate_cost, gate_false_alarms
from claims.compact_trials import FILE, TrialsByProof, add_raw_trials, trials_under
from claims.gate_false_alarms import FEWEST_RUNS, NO_OP_CHANGES
from claims.gate_power import INJECTED, extra_work, real_change
from claims.gate_slowdowns import REAL_SLOWDOWNS
from claims.gate_trials import ROOT, Plan, TrialError, in_words, run_trial
from claims.verdict import conditions
from perf_tests.gate.samples import PRESENT_ENGINE

MINUTES = {"false-alarms": "5", "power": "8", "cost": "5"}

Kind = tuple[str, str]
"""A proof, and the change of head."""


def wanted() -> dict[Kind, int]:
    """How many runs of each kind the claims take; 14 with extra work slow 20 benchmarks by 2 %, 56 by 3 % and 5 %."""
    unchanged = {("false-alarms", change): FEWEST_RUNS // len(NO_OP_CHANGES) for change in NO_OP_CHANGES}
    real = {("power", change): 1 for change in REAL_SLOWDOWNS}
    return {**unchanged, ("power", INJECTED): 14, **real, ("cost", "same-code"): 4}


def plan(kind: Kind, number: int) -> Plan:
    """The run of this number, from 0, of a kind."""
    proof, change = kind
    if proof == "power":
        return extra_work(number) if change == INJECTED else real_change(change)
    suite = gate_cost.LONG_ROUNDS if proof == "cost" else gate_false_alarms.SUITE
    return Plan({"change": change}, NO_OP_CHANGES[change], suite)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".benchmarks/epyc-2core/gate")
    parser.add_argument("--most", type=int, help="end after so many runs (default: when all are there)")
    parser.add_argument("--gate-minutes", help="how long one run may measure (default: 5, with slowdowns 8)")
    arguments = parser.parse_args()
    try:
        return measure(arguments.folder, arguments.most, arguments.gate_minutes)
    except KeyboardInterrupt:
        print("stopped; what is measured is kept, and the same command resumes.")
        return 130
    except (TrialError, ValueError) as error:
        print(error)
        return 2


def measure(folder: Path, most: int | None, minutes: str | None, run: Callable[..., object] = run_trial) -> int:
    """0 once every run is there, else 2. Raises TrialError and ValueError."""
    print(conditions(threads=1))
    left = list(missing(_kept(folder)))
    for place, (kind, number) in enumerate(left[:most]):
        trial = run(folder / kind[0], plan(kind, number), minutes or MINUTES[kind[0]])
        add_raw_trials(folder)
        print(f"{place + 1} of {len(left)}: {in_words(trial)}", flush=True)  # type: ignore[arg-type]
    left = list(missing(_kept(folder)))
    print(f"{len(left)} runs of engine {PRESENT_ENGINE} are missing in {folder / FILE}.")
    return 2 if left else 0


def _kept(folder: Path) -> TrialsByProof:
    """None in a new folder."""
    has_any = (folder / FILE).exists() or any((folder / name).is_dir() for name in MINUTES)
    return trials_under(folder) if has_any else {}


if __name__ == "__main__":
    sys.exit(main())
