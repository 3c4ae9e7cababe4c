"""The gate's power: how often it detects a slowdown, and the bias of its estimate.

Each run plants extra work in some of its benchmarks, drawn for the run (`gate_slowdowns.py`), or makes one realistic
change whose size is not known beforehand. Runs go through the shipped command line; their raw samples are kept and add
up, as in `gate_false_alarms`.
"""

import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from claims.gate_simulation import CLAIMED_BIAS, CLAIMED_POWER, CLAIMED_SPREAD
from claims.gate_slowdowns import REAL_SLOWDOWNS, slowed
from claims.gate_trials import QUICK_SUITE, Plan, Trial, count_trials, proof_arguments, prove
from claims.share import Share
from claims.verdict import conclude, gravest
from perf_tests.gate.stages import POWER_OF_DETECTION
from perf_tests.gate.verdicts import CaseResult, Verdict
from perf_tests.records.format import DASH, table

INJECTED = "extra-work"

FEWEST_TRIALS = 40
"""Of each slowdown that is claimed to be found, where launch pairs scatter by `CLAIMED_SPREAD` at most."""


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
    def is_found(self) -> bool:
        return self.row.verdict == Verdict.SLOWER

    @property
    def is_calm(self) -> bool:
        """Whether the claims are made for this run."""
        return self.trial.pair_spread <= CLAIMED_SPREAD

    @property
    def is_said_to_be_found(self) -> bool:
        """Whether the run printed that it detects as much, and was not cut short."""
        assert self.trial.samples is not None
        detectable = self.trial.result.detectable
        return self.trial.samples.end == "finished" and detectable is not None and self.slowdown >= detectable


def main() -> int:
    parser = proof_arguments(__doc__, "power", runs=10, minutes=8)
    parser.add_argument("--real", nargs="*", default=list(REAL_SLOWDOWNS), choices=list(REAL_SLOWDOWNS))
    arguments = parser.parse_args()
    return prove(arguments, plans(arguments.folder, arguments.runs, arguments.real), conclude_from)


def plans(folder: Path, runs: int, real: Sequence[str]) -> Iterator[Plan]:
    """The runs that `folder` lacks: those with extra work, and one of each real slowdown."""
    for number in range(count_trials(folder, INJECTED), runs):
        yield extra_work(number)
    for name in real:
        if count_trials(folder, name) == 0:
            yield real_change(name)


def extra_work(number: int) -> Plan:
    """The run of this number with extra work."""
    change, planted = slowed(random.Random(f"{INJECTED} {number}"))
    return Plan({"change": INJECTED, "planted": planted}, change, QUICK_SUITE)


def real_change(name: str) -> Plan:
    chosen = REAL_SLOWDOWNS[name]
    return Plan({"change": name, "cases": list(chosen.cases)}, chosen.change, (*QUICK_SUITE, *chosen.arguments))


def conclude_from(trials: list[Trial]) -> int:
    """Power and bias by slowdown, the real ones by name, and whether the claims hold where they are made."""
    tell(trials)
    valid = [trial for trial in trials if trial.says_something]
    slowed_cases = slowed_in(trial for trial in valid if is_injected(trial))
    real = [trial for trial in valid if not is_injected(trial)]
    return gravest(_conclude_real(real), _conclude_said(slowed_cases), _conclude_claims(slowed_cases))


def tell(trials: Sequence[Trial]) -> None:
    """The tables over these runs."""
    valid = [trial for trial in trials if trial.says_something]
    print(f"contaminated runs, which the gate refused: {len(trials) - len(valid)} of {len(trials)}")
    injected = [trial for trial in valid if is_injected(trial)]
    real = [trial for trial in valid if not is_injected(trial)]
    slowed_cases = slowed_in(injected)
    print("\n".join(power_table(slowed_cases)))
    print(f"other benchmarks of these runs called slower: {others_called_slower(injected)}")
    for trial in real:
        _tell_of_real(trial)
    if real:
        print("\n".join(two_by_two(real)))


def is_injected(trial: Trial) -> bool:
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


def others_called_slower(trials: Iterable[Trial]) -> Share:
    """The benchmarks without extra work in these runs that the gate called slower."""
    others = [
        row.verdict == Verdict.SLOWER
        for trial in trials
        for row in trial.result.cases
        if not any(name in row.id for name in trial.truth["planted"])
    ]
    return Share(sum(others), len(others))


def by_slowdown(cases: Sequence[SlowedCase]) -> dict[float, list[SlowedCase]]:
    """The same, the smallest slowdown first."""
    return {size: [case for case in cases if case.slowdown == size] for size in sorted({c.slowdown for c in cases})}


def found_share(cases: Sequence[SlowedCase]) -> Share:
    return Share(sum(case.is_found for case in cases), len(cases))


def errors_of(cases: Iterable[SlowedCase]) -> list[float]:
    """Estimates less truth, as shares of base's time."""
    return [case.row.effect.effect - case.truth for case in cases if case.row.effect is not None]


def bias_in_words(cases: Iterable[SlowedCase]) -> str:
    """The mean error in points, with two standard errors."""
    errors = errors_of(cases)
    return f"{mean(errors):+.2%} +- {2 * stdev(errors) / math.sqrt(len(errors)):.2%}" if len(errors) > 1 else DASH


def power_table(cases: Sequence[SlowedCase]) -> list[str]:
    """A line for each size."""
    calm = f"launch pairs scatter by at most {CLAIMED_SPREAD:.0%}"
    rows = [
        (f"{size:.0%}", str(found_share(rows)), str(found_share([c for c in rows if c.is_calm])), bias_in_words(rows))
        for size, rows in by_slowdown(cases).items()
    ]
    return table(("extra work", "found", f"found where {calm}", "estimate less truth"), rows)


def _conclude_real(trials: Sequence[Trial]) -> int:
    if not trials:
        print("no real slowdown was planted.")
        return 2
    caught = all(is_caught_by_time(trial) or is_caught_by_counters(trial) for trial in trials)
    return conclude("every real slowdown is caught by time or by counters", caught)


def _conclude_said(cases: Sequence[SlowedCase]) -> int:
    """Refuted where the promised share lies above its interval; on a noisy machine this is all that is promised."""
    said = [case for case in cases if case.is_said_to_be_found]
    if not said:
        print("no run printed a slowdown as small as the ones planted in it.")
        return 2
    found = found_share(said)
    claim = f"a run detects the slowdown that it prints with {POWER_OF_DETECTION:.0%} power ({found})"
    return conclude(claim, found.limits[1] >= POWER_OF_DETECTION)


def _conclude_claims(cases: Sequence[SlowedCase]) -> int:
    calm = {size: [case for case in cases if case.is_calm and case.slowdown == size] for size in CLAIMED_POWER}
    lacking = {size: FEWEST_TRIALS - len(of_size) for size, of_size in calm.items()}
    missing = [f"{count} of {size:.0%}" for size, count in lacking.items() if count > 0]
    if missing:
        print(f"too few benchmarks slowed on a calm machine to say so: {' and '.join(missing)} are missing (--runs).")
        return 2
    sizes = " and ".join(f"{size:.0%} with {power:.0%} power" for size, power in CLAIMED_POWER.items())
    found = all(sum(c.is_found for c in rows) >= CLAIMED_POWER[size] * len(rows) for size, rows in calm.items())
    power = conclude(f"where launch pairs scatter by at most {CLAIMED_SPREAD:.0%}, the gate detects {sizes}", found)
    unbiased = all(abs(mean(errors_of(rows))) <= CLAIMED_BIAS for rows in calm.values())
    return gravest(power, conclude(f"estimates there have a bias of at most {CLAIMED_BIAS:.1%}", unbiased))


def _tell_of_real(trial: Trial) -> None:
    touched = [row for row in trial.result.cases if is_touched(trial, row.id)]
    slower = [row for row in touched if row.verdict == Verdict.SLOWER]
    effects = [row.effect.effect for row in slower if row.effect is not None]
    size = f", by {min(effects):.1%} to {max(effects):.1%}" if effects else ""
    name = trial.truth["change"]
    risen = f"; more {', '.join(found)}" if (found := risen_counters(trial)) else ""
    print(
        f"{name} ({REAL_SLOWDOWNS[name].about}): {len(slower)} of {len(touched)} benchmarks called slower{size}{risen}"
    )


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
    """Which changes were caught by time, by counters, by both, by neither; below, those that counted nothing."""
    counted = {trial: found for trial in trials if (found := is_caught_by_counters(trial)) is not None}

    def cell(by_time: bool, by_counters: bool) -> str:
        names = [
            trial.truth["change"]
            for trial, found in counted.items()
            if (is_caught_by_time(trial), found) == (by_time, by_counters)
        ]
        return ", ".join(dict.fromkeys(names)) or DASH

    rows = [
        (row, cell(by_time, True), cell(by_time, False))
        for row, by_time in (("caught by time", True), ("not by time", False))
    ]
    lines = table(("real slowdowns", "caught by counters", "not by counters"), rows)
    without = [trial.truth["change"] for trial in trials if trial not in counted]
    return [*lines, *([f"without counters: {', '.join(without)}"] if without else [])]


if __name__ == "__main__":
    sys.exit(main())
