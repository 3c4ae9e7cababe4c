"""A history in a terminal: what changed since which commit, then the counters, then what is new."""

from collections.abc import Sequence

from perf_tests.history.series import CounterChange, Era, Point, Series
from perf_tests.history.steps import LEAST_LAUNCHES, Step
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration, printable
from perf_tests.views.tables.conditions import machine_line

SUBJECT_WIDTH = 50


def history_lines(era: Era, named: str | None = None) -> list[str]:
    """Conditions, steps from the largest slowdown on, counters; `named` adds the commits of the cases so named."""
    lines = conditions(era)
    steps = steps_in(era)
    lines += column_table(STEP_COLUMNS, steps) if steps else ["no step in any case"]
    changes = counter_changes_in(era)
    lines += column_table(COUNTER_COLUMNS, changes) if changes else []
    for one in era.series:
        if named is not None and named in case_name(one.case):
            lines += [case_name(one.case), *_points(one)]
    return [printable(line).rstrip() for line in lines]


def steps_in(era: Era) -> list[tuple[Series, Step]]:
    """The largest slowdown first."""
    return sorted(((one, step) for one in era.series for step in one.steps), key=lambda row: -row[1].effect)


def counter_changes_in(era: Era) -> list[tuple[Series, CounterChange]]:
    return [(one, change) for one in era.series for change in one.counter_changes]


def conditions(era: Era) -> list[str]:
    """The machine, the launches, and what became of its drift."""
    launches = sum(len(code.launches) for code in era.codes)
    dates = f"{era.codes[0].date[:10]} to {era.codes[-1].date[:10]}"
    lines = [
        f"{machine_line(era.machine.record)}: {how_many(launches, 'launch')} of {how_many(len(era.codes), 'commit')}, "
        f"{dates}"
    ]
    if missing := sum(code.is_missing for code in era.codes):
        lines.append(
            f"git does not know {missing} of these commits, which have their records' dates and no subject; a shallow "
            "clone learns of its own by `git fetch --unshallow`"
        )
    if not era.has_sentinel:
        lines.append("these launches recorded no product beside their cases: drift of the machine is in the figures")
    elif era.spread_before is None or era.spread_after is None:
        lines.append("too few commits to tell whether the machine drifted")
    elif era.is_corrected:
        lines.append(
            f"drift of the machine taken out by a product timed beside each case: half of the commits lie within "
            f"{era.spread_after:.1%} of a case's median instead of {era.spread_before:.1%}"
        )
    else:
        lines.append(
            f"drift of the machine left in: a product timed beside each case does not explain it, half of the commits "
            f"lie within {era.spread_before:.1%} of a case's median, and {era.spread_after:.1%} without its drift"
        )
    return lines


def since(one: Series, step: Step) -> str:
    """`+19.4% (+18.4% to +20.5%) since 0e0e0e0e0e0e (2030-01-01), 10 launches against 14: subject`."""
    code = one.code_of(step)
    interval = f"{step.interval[0]:+.1%} to {step.interval[1]:+.1%}"
    launches = f"{how_many(step.launches_after, 'launch')} against {step.launches_before}"
    subject = f": {code.subject[:SUBJECT_WIDTH]}" if code.subject else ""
    return f"{step.effect:+.1%} ({interval}) since {code.name} ({code.date[:10]}), {launches}{subject}"


STEP_COLUMNS: Columns[tuple[Series, Step]] = {
    "case": lambda row: case_name(row[0].case),
    "change": lambda row: f"{row[1].effect:+.1%}",
    "95 % interval": lambda row: f"{row[1].interval[0]:+.1%} to {row[1].interval[1]:+.1%}",
    "since": lambda row: row[0].code_of(row[1]).name,
    "date": lambda row: row[0].code_of(row[1]).date[:10],
    "launches": lambda row: f"{row[1].launches_after} against {row[1].launches_before}",
    "subject": lambda row: row[0].code_of(row[1]).subject[:SUBJECT_WIDTH] or DASH,
}
COUNTER_COLUMNS: Columns[tuple[Series, CounterChange]] = {
    "counter": lambda row: case_name(row[0].case),
    "name": lambda row: row[1].counter,
    "before": lambda row: f"{row[1].before:,}",
    "after": lambda row: f"{row[1].after:,}",
    "since": lambda row: row[1].code.name,
    "date": lambda row: row[1].code.date[:10],
    "subject": lambda row: row[1].code.subject[:SUBJECT_WIDTH] or DASH,
}


def _points(one: Series) -> list[str]:
    starts = {step.start for step in one.steps}
    return column_table(_POINT_COLUMNS, [(point, place in starts) for place, point in enumerate(one.points)])


_POINT_COLUMNS: Columns[tuple[Point, bool]] = {
    "commit": lambda row: row[0].code.name,
    "date": lambda row: row[0].code.date[:10],
    "median": lambda row: duration(row[0].seconds),
    "95 % interval": lambda row: " to ".join(map(duration, row[0].interval)) if row[0].interval else DASH,
    "launches": lambda row: str(row[0].launches),
    "": lambda row: "step" if row[1] else "",
    "subject": lambda row: row[0].code.subject[:SUBJECT_WIDTH] or DASH,
}


def verdict_line(eras: Sequence[Era], new: Sequence[tuple[Series, Step]]) -> str:
    steps = sum(len(one.steps) for era in eras for one in era.series)
    changes = sum(len(one.counter_changes) for era in eras for one in era.series)
    said = f"history: {how_many(steps, 'step')}, {how_many(changes, 'counter change')}"
    if new:
        return f"{said}; {how_many(len(new), 'slowdown')} shown first by the newest commit's launches"
    return f"{said}; no slowdown is new with the newest commit (a step needs {LEAST_LAUNCHES} launches on either side)"


def series_json(era: Era) -> dict[str, object]:
    return {
        "machine": machine_line(era.machine.record),
        "has_sentinel": era.has_sentinel,
        "drift_taken_out": era.is_corrected,
        "spread_between_commits": era.spread_before,
        "spread_without_drift": era.spread_after,
        "commits": [
            {"name": code.name, "commit": code.commit, "date": code.date, "subject": code.subject,
             "records": [launch.name for launch in code.launches]}
            for code in era.codes
        ],
        "cases": list(map(_case_json, era.series)),
    }  # fmt: skip


def _case_json(one: Series) -> dict[str, object]:
    return {
        "case": one.case,
        "identity": dict(one.identity),
        "points": [
            {"commit": point.code.name, "median_seconds": point.seconds, "interval_seconds": point.interval,
             "launches": point.launches}
            for point in one.points
        ],
        "steps": [
            {"since": one.code_of(step).name, "effect": step.effect, "interval": step.interval,
             "launches_before": step.launches_before, "launches_after": step.launches_after}
            for step in one.steps
        ],
        "counter_changes": [_change_json(change) for change in one.counter_changes],
    }  # fmt: skip


def _change_json(change: CounterChange) -> dict[str, object]:
    return {"counter": change.counter, "before": change.before, "after": change.after, "since": change.code.name}
