"""How often the gate fails although nothing is slower: the same code on both sides, or a change without effect.

Each run is a whole suite, by the shipped command line. Its raw samples are kept: started again, the
proof continues until the folder holds as many runs as asked for.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import binom

from claims.gate_trials import QUICK_SUITE, Change, Plan, Trial, finished_trials, proof_arguments, prove, replaced
from claims.share import Share
from claims.verdict import conclude
from perf_tests.gate.verdicts import RunVerdict, Verdict

SUITE = (*QUICK_SUITE, "-k", "test_attention", "--head-dim=16,32,64")
"""Attention alone, which is quick: two dozen benchmarks, so that many runs fit into an hour."""
FAMILY_WISE_RATE = 0.01
FEWEST_RUNS = 60


def _nothing(tree: Path) -> None:
    """The same code in two folders."""


def _comments(tree: Path) -> None:
    for path in sorted((tree / "model").glob("*.py")):
        path.write_text(f"# A comment that moves every line.\n{path.read_text()}\n# And one at the end.\n")


def _longer_docstrings(tree: Path) -> None:
    for path in sorted((tree / "model").glob("*.py")):
        path.write_text(path.read_text().replace('"""', '"""A longer text, which is only kept. ', 1))


NO_OP_CHANGES: dict[str, Change] = {
    "same-code": _nothing,
    "comments": _comments,
    "renamed-symbol": replaced("model/attention.py", "scores_BHTT", "similarities_BHTT"),
    "unused-function": replaced("model/attention.py", "ATTENTION = {", "def unused() -> None: ...\n\n\nATTENTION = {"),
    "docstrings": _longer_docstrings,
}  # fmt: skip


def main() -> int:
    arguments = proof_arguments(__doc__, "false-alarms", runs=FEWEST_RUNS, minutes=5).parse_args()
    changes = list(NO_OP_CHANGES.items())
    missing = range(len(finished_trials(arguments.folder)), arguments.runs)
    turns = (changes[number % len(changes)] for number in missing)
    return prove(arguments, (Plan({"change": name}, change, SUITE) for name, change in turns), conclude_from)


def conclude_from(trials: list[Trial]) -> int:
    """The table over all runs, and the verdict: no more false alarms than the promised rate explains at 5 %.

    So few runs cannot show a rate of 1 %; simulated and relabelled runs (`gate_simulation`, `gate_relabelled`) do.
    """
    tell(trials)
    valid = [trial for trial in trials if trial.says_something]
    alarms = sum(map(is_false_alarm, valid))
    explained = float(binom.sf(alarms - 1, len(valid), FAMILY_WISE_RATE)) >= 0.05
    if explained and len(valid) < FEWEST_RUNS:
        print(f"{len(valid)} runs are too few for a claim: {FEWEST_RUNS - len(valid)} more are needed (--runs).")
        return 2
    claim = f"{alarms} false alarms in {len(valid)} runs are consistent with a rate of {FAMILY_WISE_RATE:.0%}"
    return conclude(claim, explained)


def tell(trials: Sequence[Trial]) -> None:
    """The table over these runs."""
    valid = [trial for trial in trials if trial.says_something]
    for change in NO_OP_CHANGES:
        of_kind = [trial for trial in valid if trial.truth["change"] == change]
        print(f"{change:16} {sum(map(is_false_alarm, of_kind))} false alarms in {len(of_kind)} runs")
    rows = [row for trial in valid for row in trial.result.cases]
    slower = sum(row.verdict == Verdict.SLOWER for row in rows)
    undecided = sum(row.verdict == Verdict.UNDECIDED for row in rows)
    alarms = sum(map(is_false_alarm, valid))
    print(f"contaminated runs, which the gate refused: {len(trials) - len(valid)} of {len(trials)}")
    print(f"verdicts on single benchmarks: {slower} SLOWER, {undecided} UNDECIDED of {len(rows)}")
    if valid:
        limit = Share(alarms, len(valid)).upper_limit
        print(f"runs with a false alarm: {alarms} of {len(valid)}; the rate is below {limit:.1%} at 95%")


def is_false_alarm(trial: Trial) -> bool:
    return trial.result.verdict == RunVerdict.FAILED


if __name__ == "__main__":
    sys.exit(main())
