"""Two commits of one machine against each other, launches pooled: the gate's verdicts, else the history's steps."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import prod

from perf_tests.gate.recorded import FEWEST_BASE_LAUNCHES, FEWEST_HEAD_LAUNCHES
from perf_tests.gate.verdicts import LOST, CaseResult, Verdict
from perf_tests.history.commits import Code, Launch
from perf_tests.history.series import Era, Series
from perf_tests.history.steps import LEAST_LAUNCHES
from perf_tests.records.format import significant
from perf_tests.records.record import OUTCOMES, how_many, timing_outcomes
from perf_tests.records.store import StoredRecord, read_record
from perf_tests.report.history import since

MOST_JUDGED = 10
"""Pairs of commits; the gate takes a tenth of a second for each."""
LAUNCHES_OF_A_COMMIT = 20
"""The newest: more sharpen a verdict little, and older ones describe the machine of another day."""


class Kind(StrEnum):
    """What a change counts as; lost: gone or failed."""

    LOST = "lost"
    SLOWER = "slower"
    FASTER = "faster"
    OTHER = "other"


@dataclass(frozen=True)
class Change:
    """One case on both sides; `ratio` is head over base."""

    case: str
    kind: Kind
    verdict: str
    base_seconds: float | None = None
    head_seconds: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""


@dataclass(frozen=True)
class Pair:
    """Places of two commits in their era, and what is known of head against base."""

    base: int
    head: int
    changes: list[Change]
    """Lost cases, then the slowest first."""
    notes: list[str]
    is_judged: bool
    """By the gate; else by the history's steps."""
    can_tell: bool
    """Whether there are launches enough for any verdict or step."""


def pairs_of(era: Era, unreadable: list[str]) -> list[Pair]:
    """The pair to show first, and all others that the gate judges; empty where a single commit timed anything."""
    judged = [_judged(era, base, head, unreadable) for base, head in _with_launches(era.codes)]
    if judged:
        return judged
    timed = era.timed_places
    return [_by_steps(era, timed[0], timed[-1])] if len(timed) > 1 else []


def _with_launches(codes: Sequence[Code]) -> list[tuple[int, int]]:
    """(base, head) of commits with enough launches for the gate: the newest head first, its nearest base first."""
    clean = [place for place, code in enumerate(codes) if code.commit and not code.launches[0].is_dirty]
    enough = [
        (base, head)
        for head, base in combinations(reversed(clean), 2)
        if len(_timed(codes[head])) >= FEWEST_HEAD_LAUNCHES and len(_timed(codes[base])) >= FEWEST_BASE_LAUNCHES
    ]
    return enough[:MOST_JUDGED]


def _timed(code: Code) -> list[Launch]:
    return [launch for launch in code.launches if launch.has_cases]


def _judged(era: Era, base: int, head: int, unreadable: list[str]) -> Pair:
    from perf_tests.gate.recorded import RULES, conclude_recorded, why_incomparable  # loads scipy
    from perf_tests.report.gate_screens import condition_lines, verdict_sentence

    before, now = (_records(era.codes[place], unreadable) for place in (base, head))
    reason = why_incomparable(before, now) if before and now else "its records cannot be read a second time."
    if reason:
        shown = _by_steps(era, base, head)
        return Pair(base, head, shown.changes, [f"No verdict: {reason}", *shown.notes], False, shown.can_tell)
    result = conclude_recorded(before, now, RULES)
    notes = [verdict_sentence(result), *condition_lines(result, {}, RULES)]
    if result.contaminated:
        shown = _by_steps(era, base, head)
        return Pair(base, head, shown.changes, [*notes, *shown.notes], False, False)
    return Pair(base, head, _sorted(map(_of_gate, result.cases)), notes, True, True)


def _records(code: Code, unreadable: list[str]) -> list[StoredRecord]:
    """Read again, because the rounds of hundreds of launches are too many to keep."""
    found = []
    for launch in _timed(code)[-LAUNCHES_OF_A_COMMIT:]:
        try:
            record = read_record(launch.path)
        except ValueError as error:
            unreadable.append(str(error))
        else:
            found.append(StoredRecord(record.path, {**record.data, "outcomes": timing_outcomes(record.data)}))
    return found


def _of_gate(row: CaseResult) -> Change:
    effect = row.effect
    kinds = {Verdict.SLOWER: Kind.SLOWER, Verdict.FASTER: Kind.FASTER} | dict.fromkeys(LOST.values(), Kind.LOST)
    return Change(
        row.id, kinds.get(row.verdict, Kind.OTHER), f"{row.verdict}{' (accepted)' if row.accepted else ''}",
        row.base_seconds, row.head_seconds, None if effect is None else 1 + effect.effect,
        None if effect is None else (1 + effect.low, 1 + effect.high), row.explanation,
    )  # fmt: skip


def _by_steps(era: Era, base: int, head: int) -> Pair:
    """Without the gate: medians of the pooled launches, and the steps between the two commits."""
    places = {id(code): place for place, code in enumerate(era.codes)}
    rows = [(one, {places[id(point.code)]: point.seconds for point in one.points}) for one in era.series]
    rows = [(one, points) for one, points in rows if base in points or head in points]
    is_asked = _asked_of(era.codes[head])
    found = [
        _change(era, one, points.get(base), points.get(head), places, (base, head))
        for one, points in rows
        if is_asked(one)
    ]
    notes = [_why_no_verdict(era, base, head)]
    if len(found) < len(rows):
        outside = how_many(len(rows) - len(found), "case")
        notes.append(f"Left out: {outside} of base that the axes of head's launches do not have.")
    total = sum(len(code.launches) for code in era.codes)
    changes = _sorted(_one_of_each(found))
    can_tell = total >= 2 * LEAST_LAUNCHES and any(row.ratio is not None for row in changes)
    return Pair(base, head, changes, notes, False, can_tell)


def _asked_of(head: Code) -> Callable[[Series], bool]:
    """Whether head's launches should have a case: they have it, or each of its axes' values in other cases."""
    axes = {field for launch in head.launches for figure in launch.figures.values() for field in figure.identity}
    cases = {case for launch in head.launches for case in (*launch.figures, *launch.outcomes)}
    return lambda one: one.case in cases or axes.issuperset(one.identity)


def _one_of_each(found: Sequence[Change]) -> list[Change]:
    """A case with another identity on either side is neither gone nor new."""
    counts = Counter(row.case for row in found)
    kept = [row for row in found if counts[row.case] == 1 or (row.base_seconds and row.head_seconds)]
    twins = counts.keys() - {row.case for row in kept}
    return kept + [Change(case, Kind.OTHER, "INCOMPARABLE", why="another identity on either side") for case in twins]


def _why_no_verdict(era: Era, base: int, head: int) -> str:
    of_base, of_head = (len(_timed(era.codes[place])) for place in (base, head))
    shown = (
        "Shown are the steps that the history finds between the two commits, which need "
        f"{LEAST_LAUNCHES} launches on either side."
    )
    if of_base >= FEWEST_BASE_LAUNCHES and of_head >= FEWEST_HEAD_LAUNCHES:
        return shown
    return (
        f"No verdict of the gate: {how_many(of_base, 'launch')} with times of base against {of_head} of head; it needs "
        f"at least {FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES}. {shown}"
    )


def _change(
    era: Era, one: Series, before: float | None, now: float | None, places: dict[int, int], ends: tuple[int, int]
) -> Change:
    base, head = ends
    if now is None:
        outcomes = [launch.outcomes[one.case] for launch in era.codes[head].launches if one.case in launch.outcomes]
        verdict, why = lost_words(outcomes[-1] if outcomes else None)
        return Change(one.case, Kind.LOST, verdict, before, None, why=why)
    if before is None:
        return Change(one.case, Kind.OTHER, Verdict.NEW, None, now, why="base does not have it")
    steps = [step for step in one.steps if base < places[id(one.code_of(step))] <= head]
    effect = prod(1 + step.effect for step in steps)
    kind = Kind.OTHER if not steps else Kind.SLOWER if effect > 1 else Kind.FASTER
    said = {Kind.SLOWER: "step up", Kind.FASTER: "step down"}.get(kind, "no step")
    why = "; ".join(since(one, step) for step in steps)
    return Change(one.case, kind, said, before, now, now / before, why=why)


def lost_words(outcome: str | None) -> tuple[str, str]:
    """Verdict and reason of a case without a time at head: what became of it there, None where head lacks it."""
    if outcome is None:
        return Verdict.GONE, "head does not have it"
    return LOST[outcome], f"head {OUTCOMES[outcome]}"


def _sorted(changes: Iterable[Change]) -> list[Change]:
    order = [Kind.LOST, Kind.SLOWER, Kind.OTHER, Kind.FASTER]
    return sorted(changes, key=lambda row: (order.index(row.kind), -(row.ratio or 0.0), row.case))


HEADER = ("Case", "verdict", "base, median (ms)", "head, median (ms)", "head / base", "95 % interval", "why")


def cells_of_change(row: Change) -> tuple[str, ...]:
    """Texts under `HEADER`, without the case."""
    times = ("" if s is None else significant(s * 1e3) for s in (row.base_seconds, row.head_seconds))
    interval = "" if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"
    return (row.verdict, *times, "" if row.ratio is None else f"{row.ratio:.3f}", interval, row.why)
