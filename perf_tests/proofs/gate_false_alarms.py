"""How often the gate fails although nothing is slower: the same code on both sides, or a change without effect.

Each run is a whole suite, by the shipped command line. Its raw samples are kept, so that runs add up over days: started
again, the proof continues until the folder holds as many runs as asked for.
"""

import argparse
import sys
from pathlib import Path

from scipy.stats import binom

from perf_tests.gate.conclusion import RunVerdict
from perf_tests.gate.verdicts import Verdict
from perf_tests.proofs.gate_trials import (
    QUICK_SUITE,
    ROOT,
    Change,
    Trial,
    TrialError,
    kept_trials,
    replaced,
    run_trial,
)
from perf_tests.proofs.share import Share
from perf_tests.proofs.verdict import conclude, conditions
from perf_tests.views.screens.lines import case_name

FOLDER = ROOT / ".benchmarks/gate/false-alarms"
SUITE = (*QUICK_SUITE, "-k", "test_attention", "--head-dim=16,32,64")
"""Attention alone, which is quick: two dozen benchmarks, so that many runs fit into an hour."""
FAMILY_WISE_RATE = 0.01
FEWEST_RUNS = 50


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="how many runs the folder is to hold")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the samples are kept")
    parser.add_argument("--gate-minutes", default="5", help="how long one run may measure (default: 5)")
    arguments = parser.parse_args()
    print(conditions(threads=1))
    trials = kept_trials(arguments.folder)
    print(f"{len(trials)} runs were there already in {arguments.folder}")
    names = list(NO_OP_CHANGES)
    while len(trials) < arguments.runs:
        name = names[len(trials) % len(names)]
        command = (*SUITE, f"--gate-minutes={arguments.gate_minutes}")
        try:
            trials.append(run_trial(arguments.folder, name, {"change": name}, NO_OP_CHANGES[name], command))
        except TrialError as error:
            print(error)
            return 2
        print(f"{len(trials)} of {arguments.runs}: {in_words(trials[-1])}", flush=True)
    return conclude_from(trials)


def in_words(trial: Trial) -> str:
    counts = {verdict: sum(row.verdict == verdict for row in trial.result.cases) for verdict in Verdict}
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    named = [case_name(row.id) for row in trial.result.cases if row.verdict == Verdict.SLOWER]
    pairs = "+".join(map(str, trial.result.pairs))
    words = f"{trial.truth['change']}: {trial.result.verdict} ({tally}; {pairs} launch pairs)"
    return f"{words} {', '.join(named)}" if named else words


def conclude_from(trials: list[Trial]) -> int:
    """The table over all runs, and the verdict: no more false alarms than the promised rate explains at 5 %.

    So few runs cannot show a rate of 1 %; simulated and relabelled runs (`gate_simulation`, `gate_relabelled`) do.
    """
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
    explained = float(binom.sf(alarms - 1, len(valid), FAMILY_WISE_RATE)) >= 0.05
    if explained and len(valid) < FEWEST_RUNS:
        print(f"{len(valid)} runs are too few to say so: {FEWEST_RUNS - len(valid)} more are needed (--runs).")
        return 2
    claim = f"{alarms} of {len(valid)} runs agree with a false-alarm rate of at most {FAMILY_WISE_RATE:.0%}"
    return conclude(claim, explained)


def is_false_alarm(trial: Trial) -> bool:
    return trial.result.verdict == RunVerdict.FAILED


if __name__ == "__main__":
    sys.exit(main())
