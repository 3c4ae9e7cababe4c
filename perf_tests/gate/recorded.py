"""The gate between two sets of recorded launches: a record is one launch of the suite in a process of its own.

Launches recorded apart differ by far more than interleaved ones, so this detects only large changes; it is for history,
and for machines where base and head cannot run side by side. The value of a case in a launch is the logarithm of the
lower quartile of its rounds. Drift of the whole machine is removed by the speed of the best square product, which is
the same work in every launch; if that differs between the sides, there is no verdict.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import ClassVar, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from perf_tests.gate.samples import ABSENT, SIDES, Clock, NoTiming, Rules, Uncounted
from perf_tests.gate.stages import POWER_OF_DETECTION, Shift
from perf_tests.gate.statistics import (
    CPU_TIME_ADVANTAGE,
    Estimate,
    Flags,
    Floats,
    estimate,
    fit_prior,
    holm,
    mean_of_known,
    moderated,
)
from perf_tests.gate.verdicts import (
    MOST_NEEDED,
    Acceptance,
    CaseResult,
    Effect,
    ExactResult,
    RunVerdict,
    Verdict,
    launches_needed,
    shown_effect,
    slowdowns,
    untimed,
    with_acceptance,
)
from perf_tests.records.record import OUTCOMES, code_of, how_many, machine_differences, run_of
from perf_tests.records.store import StoredRecord, identity_difference

RULES = replace(Rules(), margin=0.01, matters=0.05)
"""Recorded launches scatter more than interleaved ones, so both thresholds are higher."""

FEWEST_BASE_LAUNCHES = 5
FEWEST_HEAD_LAUNCHES = 3

QUANTILE = 0.25
"""The quantile of a launch's rounds: spikes are one-sided, and the minimum depends on the number of rounds."""

LARGEST = 1e100
"""A figure beyond is damaged, and its square would overflow."""

MOST_SLOPE = 1.2
"""The most that a case's time may be assumed to follow the sentinel's; beyond is noise in the slope."""

PRIOR_SLOPE, PRIOR_VARIANCE = MOST_SLOPE / 2, MOST_SLOPE**2 / 12
"""Mean and variance of the slope before a launch is seen: anything up to the most is equally likely."""

SLOPES_DIFFER = 0.3
"""Standard deviation of a case's slope about that of all together: products follow the sentinel, copies less."""

Records = Sequence[StoredRecord]


@dataclass(frozen=True)
class RecordedSides:
    """Launches of base and of head; `base_name` is the start of the commit or of what `code_of` returns instead."""

    base: Records
    head: Records
    base_name: str

    @property
    def why_no_verdict(self) -> str:
        """Why there are too few launches, with the next step; empty if there are enough."""
        if not self.base:
            return (
                "No verdict on time: all earlier records are of the same code. Record "
                f"{FEWEST_BASE_LAUNCHES} launches of another commit (`perf-tests run` is one), or use --against REV."
            )
        if len(self.base) >= FEWEST_BASE_LAUNCHES and len(self.head) >= FEWEST_HEAD_LAUNCHES:
            return ""
        return (
            f"No verdict on time: {self.base_name} has {how_many(len(self.base), 'comparable launch')} and this code "
            f"{len(self.head)}; at least {FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES} are needed "
            "(`perf-tests run` is one). --against REV needs none."
        )


def sides_of(now: StoredRecord, records: Records, baseline: StoredRecord, is_asked: bool) -> RecordedSides:
    """The sides of the run `now` among `records`, oldest first; `is_asked` where the user named `baseline`.

    Otherwise base is the newest other code with enough launches, or the newest other code if none has. Head's launches
    include `now`. Only cases that this run measured too count, with the same identity on the same machine and build.
    """
    rows = {row["fullname"]: row for row in now.data["benchmarks"]}

    def shared(record: StoredRecord) -> StoredRecord:
        """The record with this run's cases alone; the plain comparison reports cases that are gone or no longer fit."""
        kept = [
            row
            for row in record.data["benchmarks"]
            if row["fullname"] in rows and not identity_difference(rows[row["fullname"]], row)
        ]
        return StoredRecord(record.path, {**record.data, "benchmarks": kept, "outcomes": []})

    launches: dict[str, list[StoredRecord]] = {}
    for record in records:
        of_run = run_of(now.data)
        is_same_run = of_run is not None and run_of(record.data) == of_run
        if is_same_run or record.data.get("datetime") == now.data["datetime"]:
            continue
        if machine_differences(record.data["machine_info"], now.data["machine_info"]):
            continue
        if (other := shared(record)).data["benchmarks"]:
            code = code_of(record.data)
            launches[code] = [*launches.pop(code, []), other]  # the code measured last comes last
    own, asked = code_of(now.data), code_of(baseline.data)
    head = [*launches.pop(own, []), shared(now)]
    enough = [code for code, found in launches.items() if len(found) >= FEWEST_BASE_LAUNCHES]
    if not is_asked:
        asked = [asked, *launches, *enough][-1]
    return RecordedSides(launches.get(asked, []), head, asked[:12])


def why_incomparable(base: Records, head: Records) -> str:
    """Why the two sets cannot be compared, in one sentence; empty if they can."""
    first = base[0]
    for record in (*base, *head):
        differences = machine_differences(record.data["machine_info"], first.data["machine_info"])
        if differences:
            return f"{record.name} and {first.name} differ in machine, build or settings: {'; '.join(differences)}."
    rows = {row["fullname"]: row for row in first.data["benchmarks"]}
    for record in (*base, *head):
        for row in record.data["benchmarks"]:
            difference = identity_difference(rows.setdefault(row["fullname"], row), row)
            if difference:
                return f"{row['fullname']} is another case in {record.name}: {difference}."
    for side in (base, head):
        codes = {code_of(record.data) for record in side}
        if len(codes) > 1:
            versions = ", ".join(sorted(codes))
            return f"The records beside {side[0].name} ran several versions of the code ({versions})."
    return ""


@dataclass(frozen=True)
class RecordedResult:
    """The verdicts between two sets of launches and what they rest on."""

    cases: list[CaseResult]
    clock: Clock
    spread: float
    """The typical standard deviation between launches of one side, without machine drift."""
    slope: float
    """How much the cases follow the sentinel: 1 is in proportion."""
    contaminated: str
    """Why there is no verdict; empty if there is one."""
    launches: tuple[int, int]
    detectable: float | None = None
    """The slowdown that so many launches detect with 80 % power, as a share of base's time."""
    minutes_needed: float | None = None
    """Minutes of further launches of head, as long as those recorded, after which each undecided case is decided, if
    its estimate is right, or of the most that are counted; None where no launches help."""

    # What a run has beside, as its report reads it.
    exact: ClassVar[Sequence[ExactResult]] = ()
    uncounted: ClassVar[Sequence[Uncounted]] = ()
    suite: ClassVar[Shift | None] = None

    @property
    def verdict(self) -> RunVerdict:
        if self.contaminated:
            return RunVerdict.CONTAMINATED
        return RunVerdict.FAILED if any(row.is_failure for row in self.cases) else RunVerdict.PASSED

    @property
    def reason(self) -> str:
        return self.contaminated


@dataclass(frozen=True)
class Launches:
    """One side: log times by clock, (cases, launches), and of the sentinel, (launches,); NaN where unknown."""

    logs: dict[Clock, Floats]
    sentinel: Floats
    rounds: dict[Clock, dict[str, list[float]]]
    """Seconds by clock and case, of all launches together."""
    outcomes: dict[str, str]
    """The outcome of each case without a timing, from the last launch."""

    @property
    def counts(self) -> NDArray[np.int_]:
        """Launches with a timing, (cases,)."""
        return np.sum(~np.isnan(self.logs["wall"]), axis=-1)


def conclude_recorded(
    base: Records, head: Records, rules: Rules, accepted: Sequence[Acceptance] = ()
) -> RecordedResult:
    """Verdicts for every case of either side; both sides have passed `why_incomparable`."""
    names = list(dict.fromkeys(row["fullname"] for r in (*base, *head) for row in r.data["benchmarks"]))
    before, now = launches_of(base, names), launches_of(head, names)
    sentinels = sentinels_of(before, now)
    by_wall, wall_slope = compared(before.logs["wall"], now.logs["wall"], *sentinels)
    by_cpu, cpu_slope = compared(before.logs["cpu"], now.logs["cpu"], *sentinels)
    clock = _clock(by_wall, by_cpu, rules)
    found: dict[Clock, Estimate] = {"cpu": by_cpu, "wall": by_wall} if clock == "cpu" else {"wall": by_wall}
    chosen = found[clock]
    enough = (before.counts >= FEWEST_BASE_LAUNCHES) & (now.counts >= FEWEST_HEAD_LAUNCHES)
    # A case with too few launches is undecided, and no hypothesis of Holm's.
    tested = {by: replace(known, mean=np.where(enough, known.mean, np.nan)) for by, known in found.items()}
    slower, faster = judged(tested, rules)
    is_clear = (chosen.upper_limits(rules.clearing_level) < rules.log_matters) & enough
    kinds = ((np.any([*slower.values()], axis=0), Verdict.SLOWER), (faster, Verdict.FASTER), (is_clear, Verdict.OK))
    rows = []
    for place, name in enumerate(names):
        verdict = next((verdict for flags, verdict in kinds if flags[place]), Verdict.UNDECIDED)
        too_few = (
            f"measured in {before.counts[place]} launches of base and {now.counts[place]} of head; a verdict needs at "
            f"least {FEWEST_BASE_LAUNCHES} and {FEWEST_HEAD_LAUNCHES}"
        )
        row = CaseResult(name, verdict, explanation="" if enough[place] else too_few)
        called = {by: bool(flags[place]) for by, flags in slower.items()}
        # A case that neither side has timed is head's loss.
        lost = [
            NoTiming(name, side, launches.outcomes.get(name, ABSENT), "")
            for side, launches in zip(SIDES, (before, now), strict=True)
            if name not in launches.rounds["wall"]
        ]
        rows.append(untimed(name, lost[-1:]) if lost else _with_effects(row, place, found, called, before, now, rules))
    rows += [
        CaseResult(name, Verdict.NOT_MEASURED, explanation=f"head {OUTCOMES[outcome]}")
        for name, outcome in now.outcomes.items()
        if name not in names
    ]
    rows = [with_acceptance(row, accepted) for row in rows]
    spread = math.nan if np.all(np.isnan(chosen.variance)) else float(np.sqrt(np.nanmedian(chosen.variance)))
    detectable = None
    if np.any(enough):
        # Of a typical case, by Holm's first step over all of them.
        error, dof = float(np.nanmedian(chosen.standard_error[enough])), float(np.nanmedian(chosen.dof[enough]))
        levels = rules.alpha / int(np.sum(enough)), 1 - POWER_OF_DETECTION
        detectable = math.expm1(
            rules.log_margin + sum(float(scipy.stats.t.isf(level, dof)) for level in levels) * error
        )
    return RecordedResult(
        rows,
        clock,
        spread,
        cpu_slope if clock == "cpu" else wall_slope,
        contamination(*sentinels, rules),
        (len(base), len(head)),
        detectable,
        _minutes_needed(rows, head),
    )


def _minutes_needed(rows: Sequence[CaseResult], head: Records) -> float | None:
    undecided = [row for row in rows if row.verdict == Verdict.UNDECIDED and row.effect and not row.explanation]
    most = max((row.launches_needed or MOST_NEEDED for row in undecided), default=0)
    minutes = []
    for record in head:
        with suppress(KeyError, TypeError, ValueError):  # a stranger's record may lack either
            times = (record.data["suite"]["started"], record.data["datetime"])
            began, ended = (datetime.fromisoformat(text) for text in times)
            minutes.append(max(0.0, (ended - began).total_seconds() / 60))
    return (most - len(head)) * median(minutes) if minutes and most > len(head) else None


def _with_effects(
    row: CaseResult, place: int, found: Mapping[Clock, Estimate], called: Mapping[Clock, bool], base: Launches,
    head: Launches, rules: Rules,
) -> CaseResult:  # fmt: skip
    """The row with its effect by the clock that decided, unless there are too few launches for one."""

    def effect_by(clock: Clock, verdict: Verdict) -> Effect | None:
        return shown_effect(found[clock], place, int(head.counts[place]), verdict, rules)

    used = next(iter(found))
    slower_by = slowdowns(effect_by, called, rules)
    clock = next(iter(slower_by), used)
    shown = effect_by(clock, row.verdict)
    if shown is None:
        return row
    needed, explanation = None, row.explanation
    if row.verdict == Verdict.UNDECIDED:
        mean, variance = float(found[clock].mean[place]), float(found[clock].variance[place])
        levels = rules.alpha / len(found[clock].mean), rules.clearing_level
        needed = launches_needed(mean, variance, *levels, rules, FEWEST_HEAD_LAUNCHES, base=len(base.sentinel))
        shared = float(np.max(found[clock].shared))
        if shared > variance / found[clock].count[place]:
            needed = None
            explanation = (
                f"the machine changed between the sides, which can move a case by {1.96 * math.sqrt(shared):.1%}; "
                "record base's launches again beside head's"
            )
    return replace(
        row,
        explanation=explanation,
        effect=shown,
        base_seconds=median(base.rounds[clock][row.id]),
        head_seconds=median(head.rounds[clock][row.id]),
        clock=clock,
        launches_needed=needed,
        is_by_guard=clock != used,
        slower_by=slower_by,
    )


def launches_of(records: Records, names: Sequence[str]) -> Launches:
    """The log times of one side's records, cases in the order of `names`."""
    place = {name: number for number, name in enumerate(names)}
    logs: dict[Clock, Floats] = {clock: np.full((len(names), len(records)), np.nan) for clock in get_args(Clock)}
    rounds: dict[Clock, dict[str, list[float]]] = {clock: defaultdict(list) for clock in get_args(Clock)}
    sentinel = np.full(len(records), np.nan)
    for launch, record in enumerate(records):
        for row in record.data["benchmarks"]:
            times: dict[Clock, object] = {"wall": row["stats"]["data"], "cpu": row["extra_info"].get("cpu_seconds")}
            for clock, seconds in times.items():
                if isinstance(seconds, list) and seconds and all(map(_is_positive, seconds)):
                    logs[clock][place[row["fullname"]], launch] = math.log(float(np.quantile(seconds, QUANTILE)))
                    rounds[clock][row["fullname"]] += seconds
        ceilings = [row["extra_info"].get("matmul_ceiling_tflops_per_second") for row in record.data["benchmarks"]]
        known = [-math.log(ceiling) for ceiling in dict.fromkeys(filter(_is_positive, ceilings))]
        sentinel[launch] = float(np.mean(known)) if known else math.nan
    outcomes = {row["id"]: row["outcome"] for record in records for row in record.data["outcomes"]}
    return Launches(logs, sentinel, rounds, outcomes)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < LARGEST


def sentinels_of(base: Launches, head: Launches) -> tuple[Floats, Floats]:
    """Log times of the sentinel, (launches,) each, NaN in a launch without timings.

    All zero where a launch with timings lacks it, on either side: zero beside log times would be a shift.
    """
    for side in (base, head):
        is_timed = np.any(~np.isnan(side.logs["wall"]), axis=0)
        if np.any(np.isnan(side.sentinel) & is_timed):
            return np.zeros_like(base.sentinel), np.zeros_like(head.sentinel)
    return base.sentinel, head.sentinel


def compared(base: Floats, head: Floats, base_sentinel: Floats, head_sentinel: Floats) -> tuple[Estimate, float]:
    """Head less base, (..., cases), from log times (..., cases, launches), without the sentinel's drift; the slope.

    The slope is that of all cases together against the sentinel within each side, so it is independent of the
    difference between the sides. What the launches leave open of it is an error of each difference, in proportion to
    the sentinel's own: a machine that changed between the sides and stood still within them tells nothing of a case.
    """
    products, squares, errors, spare = 0.0, 0.0, 0.0, np.asarray(-1)
    for values, sentinel in ((base, base_sentinel), (head, head_sentinel)):
        away = sentinel - mean_of_known(sentinel, axis=-1)[..., None]
        typical = mean_of_known(values - mean_of_known(values, axis=-1)[..., None], axis=-2)
        products = products + np.nansum(away * typical, axis=-1)
        squares = squares + np.nansum(away**2, axis=-1)
        errors = errors + np.nansum(typical**2, axis=-1)
        spare = spare + np.sum(np.any(~np.isnan(values), axis=-2), axis=-1) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.where(squares > 0, np.divide(products, squares), 0.0)
        scatter = np.maximum(errors - plain * products, 0.0) / np.maximum(spare, 1)
        weight = PRIOR_VARIANCE / (PRIOR_VARIANCE + np.where(squares > 0, scatter / squares, np.inf))
    shift = mean_of_known(head_sentinel, axis=-1) - mean_of_known(base_sentinel, axis=-1)
    slope = np.clip(weight * plain + (1 - weight) * PRIOR_SLOPE, 0.0, MOST_SLOPE)
    slope = np.where(squares + shift**2 > 1e-18, slope, 0.0)  # unknown, or the same but for rounding
    shared = shift**2 * ((1 - weight) * PRIOR_VARIANCE + SLOPES_DIFFER**2)
    before = estimate(base - slope[..., None, None] * base_sentinel[..., None, :])
    now = estimate(head - slope[..., None, None] * head_sentinel[..., None, :])
    dof = before.dof + now.dof
    variance = (before.dof * before.variance + now.dof * now.variance) / dof
    count = before.count * now.count / np.maximum(before.count + now.count, 1)  # 1 / (1 / base + 1 / head)
    difference = Estimate(count, now.mean - before.mean, variance, dof, shared=shared[..., None])
    return moderated(difference, fit_prior(difference)), float(np.mean(slope))


def judged(found: Mapping[Clock, Estimate], rules: Rules) -> tuple[dict[Clock, Flags], Flags]:
    """Flags of the cases that are slower by each clock, and of those that are faster, by Holm over all: (..., cases).

    Where CPU time decides, which then comes first, wall time has its own part of alpha, because CPU time misses waiting
    and lost parallelism.
    """
    (used, chosen), *guard = found.items()
    hypotheses = np.sum(~np.isnan(chosen.mean), axis=-1)
    level = rules.alpha * (1 - rules.guard_share) if guard else rules.alpha
    slower = {used: holm(chosen.slower_p_values(rules.log_margin), level, hypotheses)}
    faster = holm(chosen.faster_p_values(rules.log_margin), level, hypotheses) & ~slower[used]
    for clock, wall in guard:
        p_values = wall.slower_p_values(rules.log_margin)
        slower[clock] = holm(p_values, rules.alpha * rules.guard_share, hypotheses)
        faster = faster & ~slower[clock]
    return slower, faster


def contamination(base: Floats, head: Floats, rules: Rules) -> str:
    """Why the machine changed between the sides, by a t test of the sentinel; empty if it did not.

    The slope removes shifts below `matters`; beyond, cases need not follow in proportion.
    """
    before, now = estimate(base), estimate(head)
    shift = float(now.mean - before.mean)
    error = math.sqrt(float(before.variance / before.count + now.variance / now.count))
    dof = float(np.minimum(before.dof, now.dof))
    if not abs(shift) - rules.log_matters > float(scipy.stats.t.isf(rules.contamination_level / 2, dof)) * error:
        return ""
    return f"the best matrix product takes {math.expm1(shift):+.1%} longer in head's launches, so the machine changed"


def _clock(wall: Estimate, cpu: Estimate, rules: Rules) -> Clock:
    """The clock with less spread within the sides, which is independent of the difference between them."""
    if np.any(np.isnan(cpu.mean) & ~np.isnan(wall.mean)) or np.all(np.isnan(cpu.mean)):
        return "wall"
    if rules.clock != "auto":
        return rules.clock
    ratio = float(np.nanmedian(np.sqrt(cpu.variance / wall.variance)))
    return "cpu" if ratio < CPU_TIME_ADVANTAGE else "wall"
