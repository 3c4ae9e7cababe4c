"""Figures of what the gate is worth: what it finds over the size of a slowdown, and other tools' rules beside it."""

from collections.abc import Sequence

from perf_tests.proofs.gate_peers import GATE, Judged, rule_names
from perf_tests.proofs.gate_power import SlowedCase, by_slowdown, slowed_in
from perf_tests.proofs.gate_simulation import CLAIMED_SPREAD
from perf_tests.proofs.gate_trials import limits, share
from perf_tests.views.report.figure import Figure, Point, Series

NO_TAGS = ("", "", "", "")
INTERVAL = "intervals are Clopper and Pearson's, at 95 %"
WHERE_CALM = f"a pair scatters by {CLAIMED_SPREAD:.0%} at most"
CHOSEN_SLOWDOWN = 0.05
"""The slowdown at which the rules are set beside each other."""


def power_figures(unchanged: Judged, injected: Judged) -> list[Figure]:
    """The gate's own curve, over all runs and over calm ones; none without a run that was slowed."""
    slowed = slowed_in(injected.trials)
    groups = {"all runs": slowed, WHERE_CALM: [case for case in slowed if case.is_calm]}
    series = [
        Series(name, _curve(unchanged, injected, group, GATE), colour=place, dash=place)
        for place, (name, group) in enumerate(groups.items())
    ]
    title = "Called SLOWER over the slowdown planted in a benchmark"
    return [_over_slowdown("power-curve", title, series)] if slowed else []


def rule_figures(unchanged: Judged, injected: Judged) -> list[Figure]:
    """Each rule's curve; none without a run that was slowed."""
    slowed = slowed_in(injected.trials)
    series = [
        Series(rule, _curve(unchanged, injected, slowed, rule), colour=place, dash=place)
        for place, rule in enumerate(rule_names())
    ]
    return [_over_slowdown("rules", "Called slower over the slowdown, by rule", series)] if slowed else []


def alarm_figures(unchanged: Judged, injected: Judged) -> list[Figure]:
    """What each rule finds beside its false alarms; none before there are runs of both kinds."""
    chosen = by_slowdown(slowed_in(injected.trials)).get(CHOSEN_SLOWDOWN, [])
    if not unchanged.trials or not chosen:
        return []
    series = []
    for place, rule in enumerate(rule_names()):
        alarms, runs = unchanged.false_alarms(rule)
        point = _point(alarms / runs, *injected.found(rule, chosen))
        series.append(Series(rule, [point], colour=place, mode="markers"))
    title = f"What a rule finds of {CHOSEN_SLOWDOWN:.0%}, and what it makes of nothing"
    x_title = "runs without a slowdown in which it calls any benchmark slower (%)"
    y_title = f"slowdowns of {CHOSEN_SLOWDOWN:.0%} found (%)"
    return [Figure("alarms-and-power", title, x_title, y_title, series, [INTERVAL], x_log=False, y_log=False)]


def _over_slowdown(name: str, title: str, series: Sequence[Series]) -> Figure:
    notes = [INTERVAL, "at 0 are benchmarks that nobody slowed"]
    return Figure(name, title, "slowdown (%)", "called slower (%)", list(series), notes, x_log=False, y_log=False)


def _curve(unchanged: Judged, injected: Judged, slowed: Sequence[SlowedCase], rule: str) -> list[Point]:
    """What the rule calls slower of benchmarks that nobody slowed, at 0, and of those slowed by so much."""
    points = [_point(0.0, *unchanged.called(rule))] if unchanged.trials else []
    return points + [_point(size, *injected.found(rule, cases)) for size, cases in by_slowdown(slowed).items()]


def _point(x: float, hits: int, of: int) -> Point:
    low, high = limits(hits, of)
    return Point(100 * x, 100 * hits / of, share(hits, of), NO_TAGS, 100 * low, 100 * high)
