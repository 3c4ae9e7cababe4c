"""Whether the time is enough for the selection, known after the first launch pair, and what to measure if not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perf_tests.gate.events import ExactFinding
from perf_tests.gate.rules import Rules
from perf_tests.gate.samples import GateSamples
from perf_tests.records.words import how_many

CONFIRMED_SHARE = 0.2
"""Of the cases, what fresh launches have to confirm or clear where little has changed."""


@dataclass(frozen=True)
class PairCost:
    """What the first launch pair took."""

    launch_seconds: float
    """Without its cases."""
    case_seconds: Mapping[str, float]

    def needed_seconds(self, cases: Iterable[str], rules: Rules) -> float:
        """For stage 1 of these cases, and the first look of stage 2 at a share of them."""
        of_cases = sum(self.case_seconds.get(case, 0.0) for case in cases)
        confirming = rules.confirm_looks[0] * (self.launch_seconds + CONFIRMED_SHARE * of_cases)
        return rules.screen_pairs * (self.launch_seconds + of_cases) + confirming


def left_out(samples: GateSamples, cost: PairCost, rules: Rules, seconds: float) -> list[str]:
    """The cases that `seconds` are too short for.

    Those whose exact counters the change moves are measured first, then the cheapest, so that most are judged.
    """
    moved = {row.case for row in samples.of(ExactFinding) if row.new != row.old}
    ordered = sorted(cost.case_seconds, key=lambda case: (case not in moved, cost.case_seconds[case]))
    kept: list[str] = []
    for case in ordered:
        if kept and cost.needed_seconds([*kept, case], rules) > seconds:
            break
        kept.append(case)
    return [case for case in samples.cases if case in cost.case_seconds and case not in kept]


def too_short_sentence(left: Sequence[str], cost: PairCost, rules: Rules, seconds: float) -> str:
    cases = len(cost.case_seconds)
    return (
        f"{seconds / 60:.3g} min are too short for {how_many(cases, 'case')}, which need about "
        f"{cost.needed_seconds(cost.case_seconds, rules) / 60:.0f} min (--gate-minutes): after the first pair the "
        f"time goes to {cases - len(left)} of them, those with changed counters first, then the cheapest; the rest is "
        "left UNDECIDED."
    )
