"""What the gate is worth, in words: false alarms, power, cost and other tools' rules, from kept samples.

    python -m perf_tests.proofs.gate_worth FOLDER

FOLDER holds `false-alarms`, `power` and `cost`, the kept samples of the proofs of these names; nothing is measured.
"""

import argparse
import sys
from pathlib import Path

from perf_tests.proofs import gate_cost, gate_false_alarms, gate_power
from perf_tests.proofs.gate_peers import Judged, rules_table
from perf_tests.proofs.gate_power import is_injected
from perf_tests.proofs.gate_trials import Trial, kept_trials, trials_under
from perf_tests.proofs.verdict import gravest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds false-alarms, power and cost")
    folder = parser.parse_args().folder
    try:
        unchanged, slowed = trials_under(folder)
        return say(unchanged, slowed, kept_trials(folder / "cost"))
    except ValueError as error:
        print(error)
        return 3


def say(unchanged: list[Trial], slowed: list[Trial], unchanged_and_longer: list[Trial]) -> int:
    """Print it all, a paragraph each; the exit code of the gravest claim."""
    alarms = gate_false_alarms.conclude_from(unchanged)
    print()
    power = gate_power.conclude_from(slowed)
    print()
    cost = gate_cost.conclude_from(unchanged_and_longer)
    print()
    print("\n".join(rules_table(Judged.of(unchanged), Judged.of(filter(is_injected, slowed)))))
    return gravest(alarms, power, cost)


if __name__ == "__main__":
    sys.exit(main())
