"""The gate's false alarms, power, cost and other tools' rules, from kept trials.

    python -m claims.gate_worth FOLDER

FOLDER holds `trials.jsonl.xz` (`compact_trials`), or `false-alarms`, `power` and `cost`, the raw samples of the proofs
of these names, or both; nothing is measured.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from claims import gate_cost, gate_false_alarms, gate_power
from claims.compact_trials import TrialsByProof, trials_under
from claims.gate_peers import rules_table
from claims.gate_power import is_injected
from claims.verdict import gravest
from perf_tests.gate.samples import ENGINES, PRESENT_ENGINE

PROOFS = {"false-alarms": gate_false_alarms, "power": gate_power, "cost": gate_cost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds trials.jsonl.xz, or false-alarms, power and cost")
    try:
        return say(trials_under(parser.parse_args().folder))
    except ValueError as error:
        print(error)
        return 3


def say(trials: TrialsByProof) -> int:
    """Print it all, a paragraph each; the exit code of the gravest claim, which are made for the present engine."""
    engines = Counter(trial.engine for of_proof in trials.values() for trial in of_proof)
    for number, about in enumerate(ENGINES, start=1):
        print(f"engine {number}, {engines[number]} runs: {about}")
    # Every unchanged run shows what it cost.
    runs = {**trials, "cost": [*trials["false-alarms"], *trials["cost"]]}
    present = {name: [trial for trial in of if trial.engine == PRESENT_ENGINE] for name, of in runs.items()}
    earlier = {name: [trial for trial in of if trial.engine != PRESENT_ENGINE] for name, of in runs.items()}
    print(f"\nengine {PRESENT_ENGINE}, the present one:\n")
    codes = [proof.conclude_from(present[name]) for name, proof in PROOFS.items() if present[name]]
    if not any(present.values()):
        print("no runs yet; `make trials` measures them.")
    print("\nearlier engines, which show how the method fares and are no evidence for the present one:")
    for name, proof in PROOFS.items():
        print()
        proof.tell(earlier[name])
    print("\nother tools' rules on the same rounds, of all engines:\n")
    unchanged = [trial for trial in trials["false-alarms"] if trial.says_something]
    injected = [trial for trial in trials["power"] if trial.says_something and is_injected(trial)]
    print("\n".join(rules_table(unchanged, injected)))
    return gravest(*codes) if len(codes) == len(PROOFS) else gravest(2, *codes)


if __name__ == "__main__":
    sys.exit(main())
