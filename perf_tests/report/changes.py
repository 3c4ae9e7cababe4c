"""What the page sets beside each other: two commits of a machine, each case over all of them, and two machines.

Of two commits, launches are pooled, and a case is slower or faster where the history finds a step between them. Two
machines have ratios without a verdict.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import prod

from perf_tests_suite.perf_tests.gate.verdicts import LOST, Verdict
from perf_tests_suite.perf_tests.history.commits import Code
from perf_tests_suite.perf_tests.history.series import LEAST_LAUNCHES, Era, Series, should_have, still_open
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import Column, T, order, significant, text_column
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json, how_many
from perf_tests_suite.perf_tests.records.store import Status, compare
from perf_tests_suite.perf_tests.report import blocks
from perf_tests_suite.perf_tests.report.comparison import RATIO, why_without_ratio
from perf_tests_suite.perf_tests.report.history import (
    COUNTER_COLUMNS,
    STEP_COLUMNS,
    conditions,
    counter_changes_in,
    least_words,
    since,
    steps_in,
)  # fmt: skip
from perf_tests_suite.perf_tests.report.plots import RecordedRun, pass_name

FIRST_RUN = "First run of these cases; nothing to compare."
WORST = 10
"""Cases on the first screen."""
LONGEST_SUBJECT = 60
"""Characters of a commit's subject."""


class ChangeKind(StrEnum):
    """What a change counts as; lost: gone or failed. In the order of a table."""

    LOST = "lost"
    SLOWER = "slower"
    OTHER = "other"
    FASTER = "faster"


COUNTED = {ChangeKind.SLOWER: "slower", ChangeKind.FASTER: "faster", ChangeKind.LOST: "gone or failed"}
"""What the first screen counts."""


TONES = (
    {"step up": "bad", "step down": "good"} | dict.fromkeys(LOST.values(), "lost")
)  # fmt: skip
"""How a verdict is coloured and signed."""


@dataclass(frozen=True)
class CaseChange:
    """One case on both sides; `ratio` is head over base."""

    case: str
    kind: ChangeKind
    verdict: str
    base_seconds: float | None = None
    head_seconds: float | None = None
    ratio: float | None = None
    why: str = ""
    start: int = -1
    """The place of the first code that has it, of a case that is not as it was."""


@dataclass(frozen=True)
class Pair:
    """Places of two commits in their era, and what is known of head against base."""

    base: int
    head: int
    changes: list[CaseChange]
    """Lost cases, then the slowest first."""
    notes: list[str]
    has_evidence: bool
    """Whether there are launches enough for any step."""


def pair_of(era: Era) -> Pair | None:
    """The oldest and the newest commit with times, and the steps between them; None where fewer than two timed a case.

    Medians are of the pooled launches.
    """
    timed = era.timed_places
    if len(timed) < 2:
        return None
    base, head = timed[0], timed[-1]
    launches = era.codes[head].launches
    has = should_have(era.codes[head])
    found: list[CaseChange] = []
    outside = 0
    for one in era.series:
        seconds = {point.code.place: point.seconds for point in one.points}
        if base not in seconds and head not in seconds:
            continue
        if not has(one):
            outside += 1
            continue
        steps = [step for step in one.steps if base < one.code_of(step).place <= head]
        before, now = seconds.get(base), seconds.get(head)
        if now is None:
            lost = [launch.outcomes[one.case] for launch in launches if one.case in launch.outcomes]
            verdict, why = _lost_words(lost[-1] if lost else None)
            found.append(CaseChange(one.case, ChangeKind.LOST, verdict, before, None, why=why))
        elif before is None:
            found.append(CaseChange(one.case, ChangeKind.OTHER, Verdict.NEW, None, now, why="base does not have it"))
        else:
            slower = prod(1 + step.effect for step in steps) > 1
            kind = ChangeKind.OTHER if not steps else ChangeKind.SLOWER if slower else ChangeKind.FASTER
            said = {ChangeKind.SLOWER: "step up", ChangeKind.FASTER: "step down"}.get(kind, "no step")
            why = "; ".join(since(one, step) for step in steps)
            found.append(CaseChange(one.case, kind, said, before, now, now / before, why=why))
    # A case with another identity on either side is neither gone nor new.
    counts = Counter(row.case for row in found)
    kept = [row for row in found if counts[row.case] == 1 or (row.base_seconds and row.head_seconds)]
    twins = counts.keys() - {row.case for row in kept}
    kept += [
        CaseChange(case, ChangeKind.OTHER, "INCOMPARABLE", why="another identity on either side") for case in twins
    ]
    notes = [
        f"Shown are the steps that the history finds between the two commits, which need {LEAST_LAUNCHES} launches on "
        f"either side. A verdict on one change: perf-tests run --against REV."
    ]
    if outside:
        notes.append(f"Left out: {how_many(outside, 'case')} of base that the axes of head's launches do not have.")
    total = sum(len(code.launches) for code in era.codes)
    has_evidence = total >= 2 * LEAST_LAUNCHES and any(row.ratio is not None for row in kept)
    return Pair(base, head, sorted(kept, key=_order), notes, has_evidence)


def _lost_words(outcome: str | None) -> tuple[str, str]:
    """Verdict and reason of a case without a time at head: what became of it there, None where head lacks it."""
    if outcome is None:
        return Verdict.GONE, "head does not have it"
    return LOST[outcome], f"head {OUTCOMES[outcome]}"


def _order(row: CaseChange) -> tuple[int, float, str]:
    return list(ChangeKind).index(row.kind), -(row.ratio or 0.0), row.case


# What the page shows of two commits.

CHANGED: tuple[Column[CaseChange], ...] = (
    text_column("verdict", lambda row: row.verdict),
    Column("base_seconds", float, "", lambda row: row.base_seconds, heading="base, median"),
    Column("head_seconds", float, "", lambda row: row.head_seconds, heading="head, median"),
    Column("ratio", float, "", lambda row: row.ratio, heading="head / base"),
    text_column("why", lambda row: row.why),
)
HEADER = ("Case", *(column.title for column in CHANGED))


def changed(era: Era, number: int, pair: Pair | None) -> Iterator[blocks.PageBlock]:
    """Two choices of a commit, and the table of the pair to show before a reader chooses."""
    if pair is None:
        return
    options = [
        (code.place, f"{code.date[:10]} {code.name} ({len(code.launches)}) {short_subject(code)}")
        for code in reversed(era.codes)
    ]
    yield blocks.CommitChoice(f"since{number}", options, (("base", pair.base), ("head", pair.head)))
    named = _case_links(era, number)
    told = ((row, blocks.VerdictMark.of(row.verdict, TONES)) for row in pair.changes)
    rows = [blocks.TableRow([named(row.case), mark, *_cells(row)[1:]]) for row, mark in told]
    title = f"{_commit_words(era, pair.head)} against {_commit_words(era, pair.base)}"
    yield blocks.Rows(f"changed{number}-cases", title, HEADER, 1, rows, pair.notes, ("verdict",), keeps_columns=True)


def changes_shown(era: Era, pair: Pair) -> list[CaseChange]:
    """What the pair shows and what is still open, in the order of a table."""
    opened = {item.series.case: item for item in still_open(era)}
    known = {row.case: row for row in pair.changes}
    found = []
    for case in dict.fromkeys((*known, *opened)):
        row, item = known.get(case), opened.get(case)
        # What became slower since it became faster is slower.
        is_of_pair = (
            row is not None and row.kind != ChangeKind.OTHER and (item is None or row.kind != ChangeKind.FASTER)
        )
        if row is not None and is_of_pair:
            found.append(replace(row, start=item.code.place if item else pair.head))
        elif item is not None:
            one = item.series
            if item.effect is None:
                verdict, why = _lost_words(None if item.what == "gone" else item.what)
                row = CaseChange(case, ChangeKind.LOST, verdict, why=why)
            else:
                now, ratio = one.points[-1].seconds, 1 + item.effect
                why = next(since(one, step) for step in one.steps if one.code_of(step) is item.code)
                row = CaseChange(case, ChangeKind.SLOWER, "step up", now / ratio, now, ratio, why=why)
            found.append(replace(row, start=item.code.place))
    return sorted(found, key=_order)


def headline(era: Era, pair: Pair, found: Sequence[CaseChange]) -> str:
    """The finding of the first screen: how many cases are slower, the worst of them, since when; then what is lost."""
    of = f"of {how_many(len({row.case for row in (*pair.changes, *found)}), 'case')}"
    counts = Counter(row.kind for row in found)
    said = [
        f"{counts[kind]} {of} {words}" for kind, words in COUNTED.items() if counts[kind] and kind != ChangeKind.SLOWER
    ]
    for worst in [row for row in found if row.kind == ChangeKind.SLOWER][:1]:
        start, are = era.codes[worst.start], "is" if counts[ChangeKind.SLOWER] == 1 else "are"
        subject = f" ({short_subject(start)})" if start.subject else ""
        by = f"{(worst.ratio or 1.0) - 1:+.1%}, since {start.name}{subject}"
        said.insert(0, f"{counts[ChangeKind.SLOWER]} {of} {are} slower: {case_name(worst.case)}, {by}")
    return f"{'; '.join(said)}." if said else ""


COLLECTING = {
    "size": "--size", "context_length": "--context", "head_dim": "--head-dim", "sequence_length": "--sequence-length",
    "precision": "--precision", "attention": "--attention",
}  # fmt: skip
"""Options that collect a case by its identity: without them the gate takes smaller ones."""


def commands(era: Era, found: Sequence[CaseChange]) -> Iterator[blocks.Said]:
    """What to type next about the worst slowdown: the search between two commits."""
    for row in [row for row in found if row.kind == ChangeKind.SLOWER][:1]:
        series, bad = era.by_case[row.case], era.codes[row.start]
        codes = [point.code for point in series.points]
        good = codes[max(codes.index(bad) - 1, 0)]
        if good is not bad and good.commit and bad.commit:
            of, case = dict(series.identity), row.case.removeprefix("perf_tests/")
            known = ((option, str(of[axis])) for axis, option in COLLECTING.items() if of.get(axis) is not None)
            words = [case, *chain.from_iterable(known), "--against", good.name, "--bisect"]
            yield blocks.Said(f"git bisect start {bad.name} {good.name}", "command")
            yield blocks.Said(f"git bisect run perf-tests run {shlex.join(words)}", "command")


def sentence(era: Era, pair: Pair) -> str:
    """What the first screen says of two commits."""
    counts = Counter(row.kind for row in pair.changes)
    head, base = (_commit_words(era, place) for place in (pair.head, pair.base))
    of = f"of {how_many(len(pair.changes), 'case')}"
    if not counts[ChangeKind.LOST] and all(row.ratio is None for row in pair.changes):
        return FIRST_RUN
    if not pair.has_evidence and not counts[ChangeKind.LOST]:
        return f"Too few launches to tell whether {head} is slower than {base}; the ratios below say nothing of it."
    found = [f"{counts[kind]} {words}" for kind, words in COUNTED.items() if counts[kind]]
    said = f"{', '.join(found)} {of}" if found else f"no change was found in any {of}"
    return f"{head} against {base}: {said}."


def worst(era: Era, number: int, pair: Pair, found: Sequence[CaseChange]) -> Iterator[blocks.PageBlock]:
    """What moved, each with how its time went over all commits, what did not, and the figure of one case.

    All cases where none can tell.
    """
    named, series = _case_links(era, number), era.by_case
    shown = [(row, era.codes[row.start].name) for row in found]
    if not pair.has_evidence and not found:
        shown = [(row, "") for row in pair.changes]
    rows = [
        blocks.TableRow([
            named(row.case), blocks.VerdictMark.of(row.verdict, TONES),
            "" if row.ratio is None else f"{row.ratio - 1:+.1%}", start,
            _spark(series[row.case]) if row.case in series else "", row.why,
        ])
        for row, start in shown[:WORST]
    ]  # fmt: skip
    if rows:
        header = ("Case", "verdict", "change", "since", "trend", "why")
        title = "What moved" if found else "Every case, without a verdict"
        yield blocks.Rows("worst", title, header, 1, rows, text_columns=("verdict", "since", "trend"))
    listed = {row.case for row in found}
    rest = Counter(row.verdict for row in pair.changes if row.case not in listed)
    least = f" ({least_words(era.least_shown)} would be shown)" if era.least_shown else ""
    words = {"no step": f"without a step{least}"}
    said = [f"{len(shown) - WORST} more that moved, below"] if len(shown) > WORST else []
    said += [f"{count} {words.get(verdict, verdict)}" for verdict, count in rest.items()] if pair.has_evidence else []
    yield blocks.Said(", ".join(said), "note")
    # The slowest case, else the first that has times over the commits.
    timed = [row for row in found if row.case in series]
    for row in sorted(timed, key=lambda row: row.kind != ChangeKind.SLOWER)[:1]:
        title = f"{case_name(row.case)} over the commits, {_drift_words(era)}"
        place = next(place for place, one in enumerate(era.series) if one is series[row.case])
        shown_there: Json = {"over_commits": f"since{number}", "case": place}
        yield blocks.Charts([blocks.Chart("worst-case", title, "", "", (), [STEPS_NOTE], **shown_there)])


def short_subject(code: Code) -> str:
    return code.subject if len(code.subject) <= LONGEST_SUBJECT else f"{code.subject[: LONGEST_SUBJECT - 1].rstrip()}…"


def _commit_words(era: Era, place: int) -> str:
    code = era.codes[place]
    return f"{code.name} ({code.date[:10]}) {short_subject(code)}".rstrip()


def _cells(row: CaseChange) -> tuple[str, ...]:
    """Texts under `HEADER`, without the case."""
    return tuple(column.below(row) if column.has_value(row) else "" for column in CHANGED)


def _case_links(era: Era, number: int) -> Callable[[str], str | blocks.ElementLink]:
    """What names a case, with a link to its row in the history; of two identities, to that of the newest code."""
    to = {one.case: f"since{number}-c{place}" for place, one in reversed(list(enumerate(era.series)))}
    return lambda case: blocks.ElementLink(case_name(case), to[case]) if case in to else case_name(case)


# What it shows of each case over the commits: steps, exact counters, and how its time went.

POINT_NOTE = (
    "a commit's figure is the median over its launches; an interval (95 %, by order statistics) needs six of them"
)
STEPS_NOTE = f"{POINT_NOTE}; one of fewer says how many; dotted: steps"
TREND: tuple[Column[Series], ...] = (
    Column("commits", int, "", lambda one: len(one.points)),
    Column("first_seconds", float, "", lambda one: one.points[0].seconds, heading="first"),
    Column("lowest_seconds", float, "", lambda one: min(point.seconds for point in one.points), heading="lowest"),
    Column("highest_seconds", float, "", lambda one: max(point.seconds for point in one.points), heading="highest"),
    Column("newest_seconds", float, "", lambda one: one.points[-1].seconds, heading="newest"),
    Column("interval_seconds", tuple, "", lambda one: one.points[-1].interval, heading="95 % interval"),
    Column("ratio", float, "", lambda one: one.points[-1].seconds / one.points[0].seconds, heading="newest / first"),
)


def over_commits(era: Era, number: int) -> Iterator[blocks.PageBlock]:
    """Steps, counters that changed, a figure that the page's program draws from `era_data`, and all trends.

    Nothing where one commit is all there is.
    """
    if len(era.timed_places) < 2:
        return
    anchor = f"since{number}"
    to = {id(one): f"{anchor}-c{place}" for place, one in enumerate(era.series)}
    steps, counters = steps_in(era), counter_changes_in(era)
    if steps:
        yield _found(f"{anchor}-steps", "Steps: commits at which a time moved", STEP_COLUMNS, steps, to)
    else:
        yield blocks.Said("No step was found in any case.")
    if counters:
        title = "Exact counters: commits at which one changed"
        yield _found(f"{anchor}-counters", title, COUNTER_COLUMNS, counters, to)
    title = "Time over commits, one case at a time"
    yield blocks.Charts([blocks.Chart(anchor, title, "", "", (), [STEPS_NOTE], over_commits=anchor)])
    rows = []
    for one in sorted(era.series, key=lambda one: -one.points[-1].seconds / one.points[0].seconds):
        figures = (column.below(one) for column in TREND)
        rows.append(
            blocks.TableRow([blocks.ElementLink(case_name(one.case), to[id(one)]), _spark(one), *figures], to[id(one)])
        )
    notes = [*conditions(era), POINT_NOTE]
    title, header = f"Every case over the commits, {_drift_words(era)}", ("Case", "trend", *(of.title for of in TREND))
    yield blocks.Rows(f"{anchor}-cases", title, header, 1, rows, notes, ("trend",))


def _drift_words(era: Era) -> str:
    return "drift of the machine taken out" if era.is_corrected else "as measured"


def _found(
    name: str, title: str, columns: Sequence[Column[tuple[Series, T]]], found: Sequence[tuple[Series, T]],
    to: Mapping[int, str],
) -> blocks.Rows:  # fmt: skip
    """The columns of the screen, each case a link to its figure."""
    named, *others = columns
    header = ("Case", *(column.label for column in others))
    rows = [
        blocks.TableRow([blocks.ElementLink(named.alone(row), to[id(row[0])]), *(of.alone(row) for of in others)])
        for row in found
    ]
    return blocks.Rows(name, title, header, 1, rows, text_columns=[of.label for of in others if of.kind is str])


def _spark(one: Series) -> blocks.CellOfRow:
    values = [point.seconds for point in one.points]
    first, last = (significant(value * 1e3) for value in (values[0], values[-1]))
    words = f"{how_many(len(values), 'commit')}, from {first} to {last} ms"
    return blocks.sparkline(values, words, [step.start for step in one.steps])


def era_data(era: Era, number: int, pair: Pair) -> Json:
    """What the page's program shows of an era: a history has thousands of points, so each is three numbers."""
    cases = []
    for one in era.series:
        at = [point.code.place for point in one.points]
        known = ((place, point.interval) for place, point in enumerate(one.points) if point.interval)
        intervals = {place: list(map(blocks.rounded, ends)) for place, ends in known}
        cases.append({
            "name": case_name(one.case),
            "at": None if at == list(range(len(era.codes))) else at,
            "seconds": [blocks.rounded(point.seconds) for point in one.points],
            "intervals": intervals,
            "steps": [[step.start, blocks.rounded(step.effect), since(one, step)] for step in one.steps],
        })  # fmt: skip
    lost = [
        (code.place, case_name(case), *_lost_words(outcome))
        for code in era.codes
        for launch in code.launches
        for case, outcome in launch.outcomes.items()
    ]
    return {
        "anchor": f"since{number}",
        "codes": [[code.name, code.date[:10], short_subject(code), len(code.launches)] for code in era.codes],
        "cases": cases,
        "lost": list(map(list, dict.fromkeys(lost))),
        "shown": {"base": pair.base, "head": pair.head, "notes": pair.notes,
                  "rows": [[case_name(row.case), *_cells(row)] for row in pair.changes]},
    }  # fmt: skip


# Two machines beside each other.

NO_VERDICT = "two machines, builds or settings: ratios without a verdict"


def side_by_side(before: RecordedRun, now: RecordedRun) -> Iterator[blocks.PageBlock]:
    """Every case of either run, the slowest first: both medians and the ratio, or why it has none; devices may differ.

    Nothing where no case has a ratio.
    """
    rows = compare(_as_record(before), _as_record(now))
    rows.sort(key=lambda row: (row.ratio is None, -(row.ratio or 0.0), list(Status).index(row.status)))
    cells = {cell.id: cell for cell in now.cells}
    points, texts = [], []
    for row in rows:
        if row.ratio is not None:
            cell = cells[row.id]
            points.append((pass_name(cell), blocks.point(cell, (row.before_seconds or 0.0) * 1e3, row.ratio)))
        why = why_without_ratio(row) if row.ratio is None else ""
        texts.append(blocks.TableRow([case_name(row.id), *(column.below(row) for column in RATIO[:3]), why]))
    if not points:
        return
    points.sort(key=lambda named: (named[0], order(named[1].x)))
    name = f"run{before.number}-run{now.number}"
    title = f"run {now.number}, {now.name} over run {before.number}, {before.name}"
    yield blocks.Charts([blocks.Chart(
        name, title, f"run {before.number} (ms)", "ratio", blocks.markers(points), [NO_VERDICT, now.conditions],
        x_log=True, line_at=(1.0, "parity"),
    )])  # fmt: skip
    header = ("Case", *(f"run {one.number}, median (ms)" for one in (before, now)), "ratio", "why")
    notes = [NO_VERDICT, *(f"run {one.number}: {one.conditions}" for one in (before, now))]
    yield blocks.Rows(name, title, header, 1, texts, notes)


def _as_record(one: RecordedRun) -> Json:
    """What `compare` asks of a record, without the fields in which two machines differ."""
    differ = {"device": None, "optimizer": None}
    rows: dict[bool, list[Json]] = {True: [], False: []}
    for cell in one.cells:
        row: Json = {"id": cell.id, "fullname": cell.id, "extra_info": cell.identity | differ}
        row |= {"stats": {"data": cell.rounds}} if cell.is_timed else {"outcome": cell.outcome, "reason": cell.reason}
        rows[cell.is_timed].append(row)
    return {"benchmarks": rows[True], "outcomes": rows[False]}
