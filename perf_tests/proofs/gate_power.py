"""How surely the gate finds a slowdown that is really there, and how well it says how large it is.

Two kinds are planted in `model/`: extra work of a known share of a round's time, in some of the benchmarks, drawn for
each run; and changes as people make them, whose size is not known beforehand. Runs go through the shipped command
line; their raw samples are kept and add up, as in `gate_false_alarms`.
"""

import argparse
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from perf_tests.proofs.gate_trials import (
    QUICK_SUITE,
    ROOT,
    Change,
    Trial,
    TrialError,
    count_trials,
    kept_trials,
    replaced,
    run_trial,
    share,
)
from perf_tests.proofs.verdict import conclude, conditions
from perf_tests.records.gate.verdicts import CaseResult, Verdict
from perf_tests.records.screen import case_name, table

FOLDER = ROOT / ".benchmarks/gate/power"
SLOWDOWNS = (0.02, 0.03, 0.05, 0.10)
SLOWED_CASES = 3
"""Benchmarks slowed in one run; the others must not be called slower."""

PROMISED_SPREAD = 0.02
PROMISED_POWER = {0.05: 0.95, 0.03: 0.80}
FEWEST_TRIALS = 40
"""Where a pair of launches scatters by `PROMISED_SPREAD` at most."""

# Wraps the reference attention: after each call that it is meant for, it works on for a share of what the call took.
# The share varies from call to call by a fifth to either side, as real work does.
EXTRA_WORK = """

def _with_extra_work(attention: AttentionFunction, share: float, shapes: set[tuple[int, int]]) -> AttentionFunction:
    import random
    import time

    def slower(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        start = time.perf_counter()
        output_BHTK = attention(q_BHTK, k_BHTK, v_BHTK)
        if q_BHTK.ndim == 3 and (q_BHTK.shape[-1], q_BHTK.shape[-2]) in shapes:
            end = time.perf_counter()
            end += (end - start) * share * random.uniform(0.8, 1.2)
            while time.perf_counter() < end:
                pass
        return output_BHTK

    return slower


naive_attention = _with_extra_work(naive_attention, {share}, {shapes})
"""


@dataclass(frozen=True)
class RealSlowdown:
    """A change as somebody makes it, in the benchmarks whose name has one of `cases` in it."""

    about: str
    change: Change
    cases: tuple[str, ...]
    arguments: tuple[str, ...] = ()


REAL_SLOWDOWNS = {
    "extra-copy": RealSlowdown(
        "queries, keys and values are copied before they are used",
        replaced(
            "model/attention.py",
            "    scores_BHTT = q_BHTK @",
            "    q_BHTK, k_BHTK, v_BHTK = q_BHTK.clone(), k_BHTK.clone(), v_BHTK.clone()\n    scores_BHTT = q_BHTK @",
        ),
        ("-naive]",),
    ),
    "float64-softmax": RealSlowdown(
        "softmax is computed in float64",
        replaced(
            "model/attention.py",
            "    return exponentials / exponentials.sum(dim=-1, keepdim=True)",
            "    exponentials = exponentials.double()\n"
            "    return (exponentials / exponentials.sum(dim=-1, keepdim=True)).to(x.dtype)",
        ),
        ("-naive]",),
    ),
    "per-head-loop": RealSlowdown(
        "the value product runs in a loop over the batch",
        replaced(
            "model/attention.py",
            "        return weights_BHTT @ v_BHTK",
            "        rows = [weights @ v for weights, v in zip(weights_BHTT, v_BHTK, strict=True)]\n"
            "        return torch.stack(rows)",
        ),
        ("-naive]",),
    ),
    "unfused-optimizer": RealSlowdown(
        "AdamW runs as a loop although the fused kernel was asked for",
        replaced("model/training.py", 'fused=self.optimizer_implementation == "fused"', "fused=False"),
        ("full_step",),
        ("--optimizer=fused",),
    ),
    "item": RealSlowdown(
        "the loss is read back in every step",
        replaced(
            "model/training.py",
            "        self.scaler.scale(loss).backward()",
            "        loss.item()\n        self.scaler.scale(loss).backward()",
        ),
        ("test_backward[", "full_step"),
    ),
}


def slowed(choose: random.Random, slowdown: float) -> tuple[Change, list[str]]:
    """A change that slows some forward passes of the reference attention, and the names of these benchmarks."""
    shapes = choose.sample([(width, length) for width in (16, 32) for length in (64, 128)], SLOWED_CASES)

    def change(tree: Path) -> None:
        text = EXTRA_WORK.replace("{share}", repr(slowdown)).replace("{shapes}", repr(set(shapes)))
        replaced("model/attention.py", "\n\ndef sdpa_attention(", f"{text}\n\ndef sdpa_attention(")(tree)

    return change, [f"test_attention_forward[d{width}-seq{length}-fp32-naive]" for width, length in shapes]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=14, help="runs of each slowdown that the folder is to hold")
    parser.add_argument("--slowdown", type=float, nargs="*", default=list(SLOWDOWNS), help="shares of a round's time")
    parser.add_argument("--real", nargs="*", default=list(REAL_SLOWDOWNS), choices=list(REAL_SLOWDOWNS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the samples are kept")
    parser.add_argument("--gate-minutes", default="8", help="how long one run may measure (default: 8)")
    arguments = parser.parse_args()
    print(conditions(threads=1))
    minutes = f"--gate-minutes={arguments.gate_minutes}"
    try:
        for slowdown in arguments.slowdown:
            _run_injected(arguments.folder, slowdown, arguments.runs, minutes)
        for name in arguments.real:
            _run_real(arguments.folder, name, minutes)
    except TrialError as error:
        print(error)
        return 2
    return conclude_from(kept_trials(arguments.folder))


def _run_injected(folder: Path, slowdown: float, runs: int, minutes: str) -> None:
    name = f"extra-work-{slowdown:.0%}".replace("%", "-percent")
    while (done := count_trials(folder, name)) < runs:
        change, cases = slowed(random.Random(f"{name} {done}"), slowdown)
        truth = {"change": name, "slowdown": slowdown, "cases": cases}
        _tell(run_trial(folder, name, truth, change, (*QUICK_SUITE, minutes)))


def _run_real(folder: Path, name: str, minutes: str) -> None:
    real = REAL_SLOWDOWNS[name]
    if count_trials(folder, name) == 0:
        truth = {"change": name, "slowdown": None, "cases": list(real.cases)}
        _tell(run_trial(folder, name, truth, real.change, (*QUICK_SUITE, *real.arguments, minutes)))


def _tell(trial: Trial) -> None:
    found = [case_name(row.id) for row in trial.result.cases if row.verdict == Verdict.SLOWER]
    pairs = "+".join(map(str, trial.result.pairs))
    print(
        f"{trial.name}: {trial.result.verdict}, {pairs} launch pairs, slower: {', '.join(found) or 'none'}", flush=True
    )


def conclude_from(trials: list[Trial]) -> int:
    """Power and bias by slowdown, the real ones by name, and whether the promises hold where they were given."""
    valid = [trial for trial in trials if trial.says_something]
    print(f"contaminated runs, which the gate refused: {len(trials) - len(valid)} of {len(trials)}")
    for slowdown in sorted({trial.truth["slowdown"] for trial in valid if trial.truth["slowdown"]}):
        _tell_of_injected([trial for trial in valid if trial.truth["slowdown"] == slowdown], slowdown)
    real = [trial for trial in valid if trial.truth["slowdown"] is None]
    for trial in real:
        _tell_of_real(trial)
    if real:
        print("\n".join(two_by_two(real)))
    promises = " and ".join(f"{slowdown:.0%} is found in {power:.0%}" for slowdown, power in PROMISED_POWER.items())
    claim = f"where a pair scatters by {PROMISED_SPREAD:.0%} at most, {promises} of trials"
    if not all(is_caught_by_time(trial) or is_caught_by_counters(trial) for trial in real):
        return conclude("every real slowdown is caught by time or by counters", False)
    rows = {slowdown: _calm_rows(valid, slowdown) for slowdown in PROMISED_POWER}
    missing = [
        f"{FEWEST_TRIALS - len(of_size)} of {slowdown:.0%}"
        for slowdown, of_size in rows.items()
        if len(of_size) < FEWEST_TRIALS
    ]
    if missing:
        print(f"too few benchmarks slowed on a calm machine to say so: {' and '.join(missing)} are missing (--runs).")
        return 2
    return conclude(
        claim, all(_found(of_size) >= PROMISED_POWER[slowdown] * len(of_size) for slowdown, of_size in rows.items())
    )


def _calm_rows(trials: list[Trial], slowdown: float) -> list[CaseResult]:
    """The benchmarks slowed by this share, in the runs in which the promise was given."""
    return [
        row
        for trial in trials
        if trial.truth["slowdown"] == slowdown and trial.pair_spread <= PROMISED_SPREAD
        for row in trial.result.cases
        if is_slowed(trial, row.id)
    ]


def _found(rows: list[CaseResult]) -> int:
    return sum(row.verdict == Verdict.SLOWER for row in rows)


def _tell_of_injected(trials: list[Trial], slowdown: float) -> None:
    rows = [row for trial in trials for row in trial.result.cases if is_slowed(trial, row.id)]
    others = [row for trial in trials for row in trial.result.cases if not is_slowed(trial, row.id)]
    calm = _calm_rows(trials, slowdown)
    errors = [row.effect.effect - slowdown for row in rows if row.effect is not None]
    bias = f"{mean(errors):+.2%} +- {2 * stdev(errors) / math.sqrt(len(errors)):.2%}" if len(errors) > 1 else "-"
    print(
        f"extra work of {slowdown:.0%}: found in {share(_found(rows), len(rows))}; where a pair scatters by "
        f"{PROMISED_SPREAD:.0%} at most {share(_found(calm), len(calm))}; estimate less truth {bias}; "
        f"{_found(others)} of {len(others)} others called slower"
    )


def _tell_of_real(trial: Trial) -> None:
    touched = [row for row in trial.result.cases if is_slowed(trial, row.id)]
    slower = [row for row in touched if row.verdict == Verdict.SLOWER]
    effects = [row.effect.effect for row in slower if row.effect is not None]
    size = f", by {min(effects):.1%} to {max(effects):.1%}" if effects else ""
    name = trial.truth["change"]
    counters = sorted(
        {row.counter for row in trial.result.exact if row.verdict == Verdict.MORE and is_slowed(trial, row.id)}
    )
    risen = f"; more {', '.join(counters)}" if counters else ""
    print(
        f"{name} ({REAL_SLOWDOWNS[name].about}): {len(slower)} of {len(touched)} benchmarks called slower{size}{risen}"
    )


def is_caught_by_time(trial: Trial) -> bool:
    """Whether any benchmark that the change touches was called slower."""
    return any(row.verdict == Verdict.SLOWER for row in trial.result.cases if is_slowed(trial, row.id))


def is_caught_by_counters(trial: Trial) -> bool | None:
    """Whether any of its exact counters rose; None for a run that counted nothing."""
    if not trial.result.exact:
        return None
    return any(row.verdict == Verdict.MORE for row in trial.result.exact if is_slowed(trial, row.id))


def two_by_two(trials: list[Trial]) -> list[str]:
    """Which changes were caught by time, by counters, by both, by neither; below, those that counted nothing."""
    counted = {trial: found for trial in trials if (found := is_caught_by_counters(trial)) is not None}

    def cell(by_time: bool, by_counters: bool) -> str:
        names = [
            trial.truth["change"]
            for trial, found in counted.items()
            if (is_caught_by_time(trial), found) == (by_time, by_counters)
        ]
        return ", ".join(dict.fromkeys(names)) or "-"

    rows = [
        (row, cell(by_time, True), cell(by_time, False))
        for row, by_time in (("caught by time", True), ("not by time", False))
    ]
    lines = table(("real slowdowns", "caught by counters", "not by counters"), rows)
    without = [trial.truth["change"] for trial in trials if trial not in counted]
    return [*lines, *([f"without counters: {', '.join(without)}"] if without else [])]


def is_slowed(trial: Trial, case_id: str) -> bool:
    """Whether the planted change touches this benchmark."""
    return any(name in case_id for name in trial.truth["cases"])


if __name__ == "__main__":
    sys.exit(main())
