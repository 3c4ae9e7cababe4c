"""A page of what the gate is worth: its false alarms, its power, its cost, and other tools' rules on the same rounds.

    python -m perf_tests.proofs.gate_page FOLDER -o gate.html

FOLDER holds `false-alarms` and `power`, the kept samples of the proofs of these names. Every figure on the page is
computed from them anew.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np

from perf_tests.gate.clock import decide_clock
from perf_tests.gate.verdicts import Verdict
from perf_tests.proofs import gate_relabelled
from perf_tests.proofs.gate_curves import INTERVAL, WHERE_CALM, alarm_figures, power_figures, rule_figures
from perf_tests.proofs.gate_false_alarms import NO_OP_CHANGES, is_false_alarm
from perf_tests.proofs.gate_peers import GATE, Judged, rule_names
from perf_tests.proofs.gate_power import (
    bias_in_words,
    by_slowdown,
    is_caught_by_counters,
    is_caught_by_time,
    is_injected,
    is_touched,
    others_called_slower,
    risen_counters,
    slowed_in,
)
from perf_tests.proofs.gate_slowdowns import REAL_SLOWDOWNS
from perf_tests.proofs.gate_trials import Trial, share, trials_under, upper_limit
from perf_tests.records.store import write_whole
from perf_tests.views.report.markup import paragraph, table
from perf_tests.views.report.page import MissingPlotlyError, Page, Section, document
from perf_tests.views.screens.lines import DASH
from perf_tests.views.tables.timing import Table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds false-alarms and power")
    parser.add_argument("-o", "--output", type=Path, default=Path("gate.html"), help="default: gate.html")
    parser.add_argument("--suites", type=int, default=10_000, help="relabelled runs (default: 10000)")
    arguments = parser.parse_args()
    try:
        unchanged, slowed = trials_under(arguments.folder)
    except ValueError as error:
        print(error)
        return 3
    try:
        write_whole(arguments.output, page_of(unchanged, slowed, arguments.suites).encode())
    except (MissingPlotlyError, OSError) as error:
        print(f"{arguments.output} cannot be written: {error}")
        return 3
    print(f"Wrote {arguments.output}: {len(unchanged)} runs without a slowdown, {len(slowed)} with one.")
    return 0


def page_of(unchanged: Sequence[Trial], slowed: Sequence[Trial], suites: int) -> str:
    """The whole page; raises MissingPlotlyError."""
    valid, injected = Judged.of(unchanged), Judged.of(filter(is_injected, slowed))
    real = [trial for trial in slowed if trial.says_something and not is_injected(trial)]
    page = Page(title="What the gate is worth")
    page.add(Section("runs", "What was run", _what_ran([*unchanged, *slowed]), level=2))
    page.add(Section("alarms", "False alarms", _alarms(valid.trials), level=2))
    page.add(Section("relabelled", "The same runs, relabelled", _relabelled(valid.trials, suites), level=2))
    page.add(Section("power", "Power", _power(page, valid, injected), level=2))
    page.add(Section("peers", "Other tools' rules on the same rounds", _peers(page, valid, injected), level=2))
    page.add(Section("real", "Slowdowns as people make them", _real(real), level=2))
    page.add(Section("cost", "Cost", _cost([*unchanged, *slowed]), level=2))
    return document(page)


def _what_ran(trials: Sequence[Trial]) -> str:
    samples = [trial.samples for trial in trials if trial.samples is not None]
    machines = dict.fromkeys(str(s.header["machine_info"].get("cpu", {}).get("brand_raw")) for s in samples)
    torches = dict.fromkeys(str(s.header["machine_info"].get("torch", {}).get("torch")) for s in samples)
    started = sorted(str(s.header.get("started", ""))[:16] for s in samples)
    refused = sum(not trial.says_something for trial in trials)
    sizes = [len(trial.result.cases) for trial in trials]
    spreads = [trial.pair_spread for trial in trials]
    lines = [
        f"{len(trials)} runs of pytest perf_tests --against, {min(sizes)} to {max(sizes)} benchmarks each, from "
        f"{started[0]} to {started[-1]} UTC, on {', '.join(machines)}, torch {', '.join(torches)}.",
        f"{refused} of them were contaminated or cut short, which the gate itself found; they are in no figure below.",
        f"A launch pair scattered by {min(spreads):.1%} to {max(spreads):.1%}, in the median run by "
        f"{median(spreads):.1%}, by the clock that decided.",
        "Samples and truths lie beside each other; python -m perf_tests replay SAMPLES judges any of them again.",
    ]
    return "".join(map(paragraph, lines))


def _alarms(valid: Sequence[Trial]) -> str:
    if not valid:
        return ""
    rows = []
    for change in (*NO_OP_CHANGES, "all"):
        trials = [trial for trial in valid if change in ("all", trial.truth["change"])]
        if trials:
            alarms = sum(map(is_false_alarm, trials))
            cases = [row for trial in trials for row in trial.result.cases]
            undecided = sum(row.verdict == Verdict.UNDECIDED for row in cases)
            rows.append((change, str(len(trials)), str(alarms), f"{upper_limit(alarms, len(trials)):.1%}",
                         str(len(cases)), f"{undecided / len(cases):.1%}"))  # fmt: skip
    header = ("change", "runs", "with a false alarm", "at 95 % below", "benchmarks", "UNDECIDED")
    note = "every change leaves the work as it was; a run counts once, however many of its benchmarks fail"
    return table(Table("alarms", "Runs without a slowdown", header, 1, tuple(rows), (note,)), "alarms")


def _relabelled(valid: Sequence[Trial], suites: int) -> str:
    runs = [trial.samples for trial in valid if trial.samples is not None]
    if not runs:
        return ""
    clock = decide_clock(runs[0], gate_relabelled.RULES).clock
    cases, values = gate_relabelled.recorded_values(runs, clock)
    if len(values) < gate_relabelled.FEWEST_PAIRS:
        return paragraph(
            f"{len(values)} whole launch pairs are too few to draw from; it takes {gate_relabelled.FEWEST_PAIRS}."
        )
    found = gate_relabelled.relabelled(np.random.default_rng(2027), values, suites)
    text = (
        f"{len(values)} launch pairs of {len(cases)} benchmarks of {len(runs)} runs, by {clock} time. Which process "
        "was base and which head was a coin's doing; tossed again, whole launch pairs drawn, they make runs that the "
        f"machine could as well have produced: {found.alarms} said SLOWER of anything. {found.cleared:.1%} of the "
        f"benchmarks were cleared in stage 1, and a benchmark took {found.pairs:.1f} launch pairs."
    )
    return paragraph(text)


def _power(page: Page, valid: Judged, injected: Judged) -> str:
    """The gate's own curve with the table behind it."""
    slowed = slowed_in(injected.trials)
    if not slowed:
        return ""
    rows = tuple(
        (f"{size:.0%}", share(*injected.found(GATE, cases)),
         share(*injected.found(GATE, [case for case in cases if case.is_calm])), bias_in_words(cases))
        for size, cases in by_slowdown(slowed).items()
    )  # fmt: skip
    header = ("slowdown", "found", f"found where {WHERE_CALM}", "estimate less truth")
    called = others_called_slower(injected.trials)
    notes = (INTERVAL, "+- two standard errors of the mean", f"other benchmarks of these runs called slower: {called}")
    drawn = page.drawn(power_figures(valid, injected))
    return drawn + table(Table("power", "Power and bias", header, 1, rows, notes), "power")


def _peers(page: Page, valid: Judged, injected: Judged) -> str:
    """Each rule's curve, and its false alarms beside its power."""
    sizes = by_slowdown(slowed_in(injected.trials))
    rows = tuple(
        (rule, share(*valid.false_alarms(rule)), *(share(*injected.found(rule, cases)) for cases in sizes.values()))
        for rule in rule_names()
    )
    header = ("rule", "runs with a false alarm", *(f"{size:.0%} found" for size in sizes))
    notes = (
        "two launches: base of a run's first launch pair and head of its last in stage 1, minutes apart, as whoever "
        "compares with a recorded run has them",
        "all rounds of stage 1: every launch of it, in turns, pooled, which none of these tools takes by itself",
        "the rules are those published, applied to wall time; " + INTERVAL,
    )
    drawn = page.drawn([*rule_figures(valid, injected), *alarm_figures(valid, injected)])
    return drawn + table(Table("rules", "By rule", header, 1, rows, notes), "rules")


def _real(trials: Sequence[Trial]) -> str:
    if not trials:
        return ""
    rows = []
    for trial in trials:
        touched = [row for row in trial.result.cases if is_touched(trial, row.id)]
        slower = [row.effect.effect for row in touched if row.verdict == Verdict.SLOWER and row.effect is not None]
        by_counters = is_caught_by_counters(trial)
        name = trial.truth["change"]
        rows.append((
            name, REAL_SLOWDOWNS[name].about, "yes" if is_caught_by_time(trial) else "no",
            DASH if by_counters is None else "yes" if by_counters else "no", f"{len(slower)} of {len(touched)}",
            f"{min(slower):.1%} to {max(slower):.1%}" if slower else DASH, ", ".join(risen_counters(trial)) or DASH,
        ))  # fmt: skip
    header = ("change", "what", "caught by time", "caught by counters", "called slower", "by", "counters that rose")
    notes = (f"{DASH}: the run counted nothing",)
    return table(Table("real", "Time and counters", header, 2, tuple(rows), notes), "real") + _two_by_two(trials)


def _two_by_two(trials: Sequence[Trial]) -> str:
    """The same, as two by two."""
    found = [(is_caught_by_time(trial), is_caught_by_counters(trial), trial.truth["change"]) for trial in trials]
    rows = tuple(
        (
            name,
            *(", ".join(change for t, c, change in found if (t, c) == (by_time, by)) or DASH for by in (True, False)),
        )
        for name, by_time in (("caught by time", True), ("not by time", False))
    )
    header = ("", "caught by counters", "not by counters")
    return table(Table("two-by-two", "What catches what", header, 1, rows, ()), "two-by-two")


def _cost(trials: Sequence[Trial]) -> str:
    rows = []
    for change in dict.fromkeys(trial.truth["change"] for trial in trials):
        of_kind = [trial for trial in trials if trial.truth["change"] == change]
        minutes = [known for trial in of_kind if (known := minutes_of(trial)) is not None]
        stage_1, stage_2 = zip(*(trial.result.pairs for trial in of_kind), strict=True)
        spent = f"{median(minutes):.1f} ({min(minutes):.1f} to {max(minutes):.1f})" if minutes else DASH
        rows.append((change, str(len(of_kind)), spent, f"{median(stage_1):g}", f"{median(stage_2):g}"))
    header = ("change", "runs", "minutes", "launch pairs of stage 1", "of stage 2")
    note = "medians; minutes from the first line of the samples to the end of the run, waiting for other work included"
    return table(Table("cost", "What a run took", header, 1, tuple(rows), (note,)), "cost")


def minutes_of(trial: Trial) -> float | None:
    """How long the run took: by its launch pairs, or where they were not timed by when its samples were put away."""
    assert trial.samples is not None
    if trial.samples.pair_seconds:
        return sum(trial.samples.pair_seconds.values()) / 60
    try:
        kept = datetime.strptime(trial.name[:15], "%Y%m%dT%H%M%S").astimezone()
        return (kept - datetime.fromisoformat(trial.samples.header["started"])).total_seconds() / 60
    except (KeyError, TypeError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
