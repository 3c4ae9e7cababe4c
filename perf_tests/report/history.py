"""`history [RUN ...]`: say what changed since which commit, over all recorded runs or the named ones.

Also the figures of a history in words, for the page, and its exports for dashboards.

    perf-tests history --case full_step
    perf-tests history --relative gate-runs --since v1
"""

import argparse
import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from perf_tests_suite.perf_tests.history import series
from perf_tests_suite.perf_tests.history.commits import Code, Machine, machines_of, moment, read_line, read_log
from perf_tests_suite.perf_tests.history.relative import read_run, relative_lines, relative_of
from perf_tests_suite.perf_tests.history.series import (
    CounterChange,
    Era,
    OpenItem,
    Point,
    Series,
    Step,
    new_slowdowns,
    still_open,
)
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError, UsageError
from perf_tests_suite.perf_tests.records import format as texts
from perf_tests_suite.perf_tests.records.columns import case_name, machine_line
from perf_tests_suite.perf_tests.records.format import (
    STEPS,
    Column,
    column_table,
    has_colours,
    painted,
    printable,
    text_column,
)
from perf_tests_suite.perf_tests.records.record import OUTCOMES, how_many
from perf_tests_suite.perf_tests.records.store import (
    announced,
    chosen_paths,
    each_readable,
    print_left_out,
    strict_json,
    write_named,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument("--case", metavar="PART", help="also every commit of the cases whose name has this part")
    chained = "chain gate runs instead: files of samples or folders (.benchmarks/gate)"
    parser.add_argument("--relative", action="store_true", help=chained)
    parser.add_argument("--since", metavar="REV", help="with --relative: begin at this commit")
    parser.add_argument("--export", choices=list(EXPORTS), help="print the newest machine's history for a dashboard")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the export instead of printing it")
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None and arguments.export is None:
        raise UsageError(f"-o {arguments.output} is for an export; name one with --export.")
    if arguments.relative:
        return _relative(arguments)
    if arguments.since is not None:
        raise UsageError(f"--since {arguments.since} is for gate runs; add --relative.")
    machines, left_out = chosen_machines(arguments)
    print_left_out(left_out, arguments.runs)
    log = read_log(arguments.storage)
    eras = series.newest_first(machines, log)
    if not eras:
        return UNREADABLE
    if arguments.case and not any(arguments.case in case_name(one.case) for era in eras for one in era.series):
        raise UsageError(f"--case {arguments.case}: no recorded case has this in its name.")
    if arguments.export:
        text = EXPORTS[arguments.export](eras[0])  # alone: a dashboard would join what cannot be compared
        if len(eras) > 1:
            print("Only the newest machine is exported; name its folder for another.", file=sys.stderr)
        if arguments.output is not None:
            write_named(arguments.output, text.encode())
        print(text if arguments.output is None else f"{arguments.output}\n", end="")
        return FINE
    new = new_slowdowns(eras[0], log)
    if arguments.json:
        shown = {"eras": list(map(series_json, eras)), "new_slowdowns": [one.case for one, _ in new]}
        print(strict_json(shown))
    else:
        shown_eras = ("\n".join(history_lines(era, arguments.case)) for era in eras)
        print(painted("\n\n".join(shown_eras), has_colours(), STEPS))
        steps = sum(len(one.steps) for era in eras for one in era.series)
        changes = sum(len(one.counter_changes) for era in eras for one in era.series)
        is_new = f"{how_many(len(new), 'slowdown')} shown first by the newest commit's launches"
        least = f"a step needs {series.LEAST_LAUNCHES} launches on either side"
        said = is_new if new else f"no slowdown is new with the newest commit ({least})"
        last = f"history: {how_many(steps, 'step')}, {how_many(changes, 'counter change')}; {said}"
        print(painted(last, has_colours(), STEPS))
    return FINDINGS if new or left_out else FINE


def _relative(arguments: argparse.Namespace) -> int:
    """The same of gate runs, which any machines made."""
    if arguments.export:
        raise UsageError("--export writes times of one machine, and --relative has none; choose one of them.")
    named = [Path(word) for word in arguments.runs or [arguments.storage / "gate"]]
    paths = [path for one in named for path in (sorted(one.rglob("*.jsonl*")) if os.path.isdir(one) else [one])]
    left_out: list[str] = []
    runs = []
    for path in announced(paths):
        try:
            runs.append(read_run(path))
        except ValueError as error:
            left_out.append(str(error))
    print_left_out(left_out, arguments.runs)
    if not runs and left_out:
        return UNREADABLE
    if not runs:
        raise RefusalError(f"{named[0]} holds no samples of a gate; `perf-tests run --against REV` writes them.")
    folder = arguments.storage if arguments.storage.is_dir() else Path()
    with RefusalError.instead_of(ValueError):
        line, since = read_line(folder, arguments.since)
        found = relative_of(runs, line, read_log(folder), since)
    if arguments.case and not any(arguments.case in case_name(one["case"]) for one in found["cases"]):
        raise UsageError(f"--case {arguments.case}: no case of these runs has this in its name.")
    if arguments.json:
        print(strict_json(found))
    else:
        print(painted("\n".join(relative_lines(found, arguments.case)), has_colours(), STEPS))
    return FINDINGS if found["new_slowdowns"] or left_out else FINE


def chosen_machines(arguments: argparse.Namespace) -> tuple[list[Machine], list[str]]:
    """The machines of the named runs, or of all that are stored, and a sentence for each file that cannot be read."""
    left_out: list[str] = []
    with RefusalError.instead_of(ValueError):
        machines = machines_of(each_readable(announced(chosen_paths(arguments.storage, arguments.runs)), left_out))
    return machines, left_out


# The history in words: conditions, then what changed since which commit, then the counters.


MOST_COMPILED = 12
"""Rows of seconds to compile."""
SUBJECT_WIDTH = 50
MOST_SHOWN = 10
"""Steps above this, as a ratio less one, are all alike."""


def history_lines(era: Era, named: str | None = None) -> list[str]:
    """Conditions, steps from the largest slowdown on, counters; `named` adds the commits of the cases so named."""
    lines = conditions(era)
    count, least = len(era.timed_places), era.least_shown
    said = f"no step in any case; in {how_many(count, 'commit')} {least_words(least or 0)} would be shown"
    if count < 2:
        said = "nothing to compare yet; the next run of another commit will say"
    elif least is None:
        said = (
            f"no step in any case: none can be shown yet, which takes {series.LEAST_LAUNCHES} launches on either side"
        )
    steps = steps_in(era)
    lines += column_table(STEP_COLUMNS, steps) if steps else [said]
    changes = counter_changes_in(era)
    lines += column_table(COUNTER_COLUMNS, changes) if changes else []
    compiling = sorted(((one, part) for one in era.series for part in one.compiling), key=_slower_to_compile)
    lines += column_table(COMPILE_COLUMNS, compiling[:MOST_COMPILED]) if compiling else []
    left = len(compiling) - MOST_COMPILED
    lines += [f"and {how_many(left, 'row')} more of compiling: --json has all"] if left > 0 else []
    lines += filter(None, [still_open_line(era, still_open(era))])
    for one in era.series:
        if named is not None and named in case_name(one.case):
            starts = {step.start for step in one.steps}
            points = [(point, place in starts) for place, point in enumerate(one.points)]
            lines += [case_name(one.case), *column_table(POINT_COLUMNS, points)]
    return [printable(line).rstrip() for line in lines]


def still_open_line(era: Era, items: Sequence[OpenItem]) -> str:
    """What older commits have left, by commit; empty without any."""
    said_of = {"slower": "slower", "gone": "gone", **OUTCOMES}
    counts = Counter((said_of[item.what], item.code.place) for item in items)
    said = [
        f"{count} {what} since {era.codes[place].name} ({how_many(len(era.codes) - 1 - place, 'commit')} ago)"
        for (what, place), count in counts.items()
    ]
    return f"Still open: {', '.join(said)}." if said else ""


def least_words(least: float) -> str:
    """The least step that would be shown; few commits that scatter show none in sight, whose digits say nothing."""
    return f"one of about {least:.1%}" if least <= MOST_SHOWN else f"only one of over {MOST_SHOWN:.0%}"


def steps_in(era: Era) -> list[tuple[Series, Step]]:
    """The largest slowdown first."""
    return sorted(((one, step) for one in era.series for step in one.steps), key=lambda row: -row[1].effect)


def counter_changes_in(era: Era) -> list[tuple[Series, CounterChange]]:
    return [(one, change) for one in era.series for change in one.counter_changes]


def _slower_to_compile(row: tuple[Series, str]) -> float:
    """Sort those that rose most first."""
    compiling = row[0].compiling[row[1]]
    return -compiling[-1][1] / (_before(compiling) or compiling[-1][1] or 1.0)


def _before(compiling: Sequence[tuple[Code, float]]) -> float | None:
    """The median over all commits but the newest; None of one."""
    return median(seconds for _, seconds in compiling[:-1]) if len(compiling) > 1 else None


def conditions(era: Era) -> list[str]:
    """The machine, the launches, and what became of its drift."""
    launches = how_many(sum(len(code.launches) for code in era.codes), "launch")
    dates = f"{era.codes[0].date[:10]} to {era.codes[-1].date[:10]}"
    lines = [f"{machine_line(era.machine.record)}: {launches} of {how_many(len(era.codes), 'commit')}, {dates}"]
    if missing := sum(code.is_missing for code in era.codes):
        whose = "its" if missing == 1 else "their"
        said = f"{how_many(missing, 'commit')} not in this clone, dated by {whose} records"
        lines.append(f"{said}; in a shallow clone, `git fetch --unshallow`")
    if not era.has_sentinel:
        lines.append("older records, without a product beside their cases: no drift correction is possible")
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
    interval = STEP_INTERVAL.alone((one, step))
    launches = f"{how_many(step.launches_after, 'launch')} against {step.launches_before}"
    subject = f": {code.subject[:SUBJECT_WIDTH]}" if code.subject else ""
    return f"{step.effect:+.1%} ({interval}) since {code.name} ({code.date[:10]}), {launches}{subject}"


STEP_INTERVAL: Column[tuple[Series, Step]] = Column(
    "interval_change", tuple, "", lambda row: row[1].interval, heading="95 % interval"
)
STEP_COLUMNS: tuple[Column[tuple[Series, Step]], ...] = (
    text_column("case", lambda row: case_name(row[0].case)),
    Column("level_change", float, "", lambda row: row[1].effect, heading="change"),
    STEP_INTERVAL,
    text_column("since", lambda row: row[0].code_of(row[1]).name),
    text_column("date", lambda row: row[0].code_of(row[1]).date[:10]),
    text_column("launches", lambda row: f"{row[1].launches_after} against {row[1].launches_before}"),
    text_column("subject", lambda row: row[0].code_of(row[1]).subject[:SUBJECT_WIDTH]),
)
COUNTER_COLUMNS: tuple[Column[tuple[Series, CounterChange]], ...] = (
    text_column("case", lambda row: case_name(row[0].case)),
    text_column("counter", lambda row: row[1].counter),
    Column("before", int, "", lambda row: row[1].before),
    Column("after", int, "", lambda row: row[1].after),
    text_column("since", lambda row: row[1].code.name),
    text_column("date", lambda row: row[1].code.date[:10]),
    text_column("subject", lambda row: row[1].code.subject[:SUBJECT_WIDTH]),
)
COMPILE_COLUMNS: tuple[Column[tuple[Series, str]], ...] = (
    text_column("case", lambda row: case_name(row[0].case)),
    text_column("to compile", lambda row: row[1]),
    Column("before_seconds", float, "", lambda row: _before(row[0].compiling[row[1]]), heading="median before"),
    Column("newest_seconds", float, "", lambda row: row[0].compiling[row[1]][-1][1], heading="newest commit"),
    text_column("commit", lambda row: row[0].compiling[row[1]][-1][0].name),
    Column("commits", int, "", lambda row: len(row[0].compiling[row[1]])),
)
"""Shown, and judged by a gate alone (`--gate-compile`)."""
POINT_COLUMNS: tuple[Column[tuple[Point, bool]], ...] = (
    text_column("commit", lambda row: row[0].code.name),
    text_column("date", lambda row: row[0].code.date[:10]),
    Column("median_seconds", float, "", lambda row: row[0].seconds, heading="median"),
    Column("interval_seconds", tuple, "", lambda row: row[0].interval, heading="95 % interval"),
    Column("launches", int, "", lambda row: row[0].launches),
    text_column("", lambda row: "step" if row[1] else " "),
    text_column("subject", lambda row: row[0].code.subject[:SUBJECT_WIDTH]),
)


# The same for machines.


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
        "cases": [
            {
                "case": one.case,
                "identity": dict(one.identity),
                "points": [
                    {"commit": of.code.name, "median_seconds": of.seconds, "interval_seconds": of.interval,
                     "launches": of.launches} for of in one.points
                ],
                "steps": [
                    {"since": one.code_of(step).name, "effect": step.effect, "interval": step.interval,
                     "launches_before": step.launches_before, "launches_after": step.launches_after}
                    for step in one.steps
                ],
                "compile_seconds": {
                    part: [{"commit": code.name, "seconds": seconds} for code, seconds in of_part]
                    for part, of_part in one.compiling.items()
                },
                "counter_changes": [
                    {"counter": of.counter, "before": of.before, "after": of.after, "since": of.code.name}
                    for of in one.counter_changes
                ],
            }
            for one in era.series
        ],
        "least_shown": era.least_shown,
        "still_open": [
            {"case": item.series.case, "what": item.what, "since": item.code.name, "effect": item.effect}
            for item in still_open(era)
        ],
    }  # fmt: skip


# Exports for dashboards: Apache Otava's CSV, github-action-benchmark's custom JSON.


def otava(era: Era) -> str:
    """A row for each launch that timed a case, a column for each case: the median in seconds.

    Otava refuses an empty cell, so a case that a launch did not time has its time of the launch before, or of the first
    one that timed it: what Otava itself does with values that are missing. Of two identities of a case, which no series
    joins, it has that of the newest code.
    Otava reads it with `time_column: time`, `attributes: [commit, record]`, and each case as a metric with
    `direction: -1`.
    """
    cases = list(dict.fromkeys(one.case for one in era.series))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["time", "commit", "record", *(texts.no_formula(_name(case)) for case in cases)])
    newest = {(case, one.identity) for case, one in era.by_case.items()}
    found = [
        (code, launch, seconds)
        for code in era.codes
        for launch in code.launches
        if (seconds := {case: of.seconds for case, of in launch.figures.items() if (case, of.identity) in newest})
    ]
    last: dict[str, float] = {}
    for _, _, seconds in reversed(found):
        last |= seconds  # the first of each case in the end
    for code, launch, seconds in found:
        last |= seconds
        # Where its record names no date that is one, its commit's, else that of 1970.
        written = moment(launch.written) or moment(code.date) or 0.0
        labels = (texts.no_formula(printable(name)) for name in (code.name, launch.name))
        date = datetime.fromtimestamp(written, UTC).isoformat()
        rows.writerow([date, *labels, *(last[case] for case in cases)])
    return text.getvalue()


def _name(case: str) -> str:
    """The case's name without what a file or a dashboard could not show."""
    return printable(case_name(case))


def github_action_benchmark(era: Era) -> str:
    """The newest commit's cases for its tool `customSmallerIsBetter`: the median, and half the interval as range.

    Each name once: of two identities of a case, that of the newest code.
    """
    by_case, rows = era.by_case, []
    for one in era.series:
        point = one.points[-1]
        if point.code is not era.codes[-1] or by_case[one.case] is not one:
            continue
        row: dict[str, object] = {"name": _name(one.case), "unit": "ms", "value": point.seconds * 1e3}
        if point.interval is not None:
            row["range"] = f"± {(point.interval[1] - point.interval[0]) / 2 * 1e3:.4g}"
        drift = ", drift of the machine taken out" if era.is_corrected else ""
        extra = f"{how_many(point.launches, 'launch')} of {printable(point.code.name)}{drift}"
        rows.append({**row, "extra": extra})
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


EXPORTS = {"otava": otava, "github-action-benchmark": github_action_benchmark}
