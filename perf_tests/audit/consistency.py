"""Rules between the figures of one table: each takes its steady timings and yields findings."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from perf_tests.audit import attention_growth
from perf_tests.audit.compilation import compiled_did_nothing, more_than_fusion
from perf_tests.audit.figures import OF_ADAMW, Timing
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, found
from perf_tests.audit.groups import (
    Phases,
    Table,
    fastest_first,
    figure,
    milliseconds,
    ratio_between,
    share_of_fp32_peak,
    steady,
)
from perf_tests.audit.launches import launch_bound, mixed_precision_arms
from perf_tests.audit.repeats import constant_offset, same_cell_twice
from perf_tests.limits.least_work import ModelWork
from perf_tests.phases import PHASES, Phase, phase_named
from perf_tests.records.grouped import grouped

PARTS_TOLERANCE = 1.10
MODEL_BACKWARD_OVER_FORWARD = (1.5, 2.9)
PAGING_BACKWARD_OVER_FORWARD = 4.0
OPTIMIZER_TOLERANCE = 1.10


def parts_and_whole(table: Table) -> Iterator[Finding]:
    """Phases that do not add up to their step, even in the reading that favours the table most."""
    for phases in table.configurations:
        spread = 1 + max((one.std_seconds or 0) / figure(one) for group in phases.values() for one in group)
        for row, parts in _WHOLES:
            whole = row.name
            if whole not in phases:
                continue
            longest, shortest = spread * max(map(_most, phases[whole])), min(map(_least, phases[whole])) / spread
            for part in (p.name for p in PHASES.values() if p != row and p.name in phases and _is_inside(p, row)):
                if min(map(_least, phases[part])) > longest * PARTS_TOLERANCE:
                    shown = f"{milliseconds(phases[part])} of {milliseconds(phases[whole])}"
                    why, cause = "a part takes longer than the whole", "times of two configurations under one label"
                    yield found(INCONSISTENT, "part and whole", phases[part] + phases[whole], shown, "1", why, cause)
            if all(part in phases for part in parts):
                yield from _sum_of_parts(phases, whole, parts, longest, shortest)


_WHOLES = [(row, row.main_parts) for row in PHASES.values() if len(row.main_parts) > 1]


def _is_inside(part: Phase, whole: Phase) -> bool:
    return part.family == whole.family and set(part.timed) <= set(whole.timed)


def _least(timing: Timing) -> float:
    """The fewest seconds that its digits may stand for."""
    return figure(timing) - timing.rounding_seconds


def _most(timing: Timing) -> float:
    """The most."""
    return figure(timing) + timing.rounding_seconds


def _sum_of_parts(
    phases: Phases, whole: str, parts: tuple[str, ...], longest: float, shortest: float
) -> Iterator[Finding]:
    least = sum(min(map(_least, phases[part])) for part in parts)
    most = sum(max(map(_most, phases[part])) for part in parts)
    if most * PARTS_TOLERANCE >= shortest and least <= longest * PARTS_TOLERANCE:
        return
    accused = [timing for name in (*parts, whole) for timing in phases[name]]
    shown = f"{' + '.join(milliseconds(phases[part]) for part in parts)} against {milliseconds(phases[whole])}"
    cause = "ranges that leave out the loss, the optimizer or gaps between them, or phases that were not waited for"
    why = f"the parts are {most / shortest if most < shortest else least / longest:.0%} of the whole"
    yield found(INCONSISTENT, "sum of parts", accused, shown, f"{PARTS_TOLERANCE - 1:.0%} apart", why, cause)


def backward_over_forward(table: Table) -> Iterator[Finding]:
    """A backward pass does twice the arithmetic, and takes twice the time where arithmetic bounds it."""
    low, high = MODEL_BACKWARD_OVER_FORWARD
    for phases in table.configurations:
        with_backward = phases.get("backward", phases.get("forward_backward"))
        if "forward" not in phases or not with_backward:
            continue
        of_forward = 0 if "backward" in phases else 1
        forward, backward = _nearest_to_twice(phases["forward"], with_backward, of_forward)
        ratio = figure(backward) / figure(forward) - of_forward
        least, most = (bound - of_forward for bound in ratio_between(backward, forward))
        shown = f"backward / forward {ratio:.2f}"
        if ratio > PAGING_BACKWARD_OVER_FORWARD and isinstance(forward.work, ModelWork):
            why = f"{milliseconds([backward])} after a forward pass of {milliseconds([forward])}"
            cause = "paging to host memory, or code generated inside the timed rounds"
            limit = f"{PAGING_BACKWARD_OVER_FORWARD:g}"
            yield found(SUSPICIOUS, "paging", [backward], shown, limit, why, cause)
        elif 0.3 < share_of_fp32_peak(forward) <= 1 and (least > high or most < low):
            why = "the forward pass is compute-bound, and the backward pass needs twice its arithmetic"
            cause = "a forward pass that was not waited for" if ratio > high else "a pass that kept no gradient"
            limit = f"{low:g} to {high:g}"
            yield found(SUSPICIOUS, "backward / forward", [forward, backward], shown, limit, why, cause)


def _nearest_to_twice(
    forwards: Sequence[Timing], backwards: Sequence[Timing], of_forward: int
) -> tuple[Timing, Timing]:
    """Of figures with one label, the pair that speaks most for the table: that they differ is another rule's."""
    forward = min(forwards, key=lambda one: abs(figure(backwards[0]) / figure(one) - of_forward - 2))
    return forward, min(backwards, key=lambda one: abs(figure(one) / figure(forward) - of_forward - 2))


def optimizer_and_precision(table: Table) -> Iterator[Finding]:
    """AdamW updates fp32 weights under every precision, so its time is the same."""
    updates = [t for t in table.timings if t.phase == "optimizer" and t.has_fp32_weights and t.optimizer in OF_ADAMW]
    for group in grouped(updates, lambda t: (t.series, t.gpu, id(t.work), t.optimizer)).values():
        ordered, ratio = fastest_first(group)
        if len({timing.precision for timing in group}) > 1 and ratio > OPTIMIZER_TOLERANCE:
            why = "the update works on fp32 weights whatever the forward pass computes in"
            cause = "work of another phase inside the range, or a busy device in one of the runs"
            limit = f"{OPTIMIZER_TOLERANCE - 1:.0%} apart"
            yield found(SUSPICIOUS, "optimizer and precision", ordered, milliseconds(ordered), limit, why, cause)


_RULES = (
    parts_and_whole,
    backward_over_forward,
    attention_growth.backward_over_forward,
    attention_growth.exponent,
    same_cell_twice,
    compiled_did_nothing,
    more_than_fusion,
    mixed_precision_arms,
    optimizer_and_precision,
    constant_offset,
    launch_bound,
)


def findings_between(timings: Sequence[Timing]) -> list[Finding]:
    table = Table(timings)
    return [finding for rule in _RULES for finding in rule(table)]


class Neighbours:
    """The timings around a finding, to name its cause by."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        self._by_place = {timing.place: timing for timing in timings}
        self._same: dict[Hashable, list[Timing]] | None = None

    def explain(self, finding: Finding) -> Finding:
        """The same finding, with the cause that other phases of its configuration suggest."""
        accused = self._by_place[finding.places[0]]
        is_impossible = (finding.verdict, finding.rule) == (IMPOSSIBLE, "arithmetic")
        if not is_impossible or accused.phase != "forward" or accused.precision != "fp32":
            return finding
        if self._same is None:
            self._same = grouped(filter(_is_more_than_backward, steady(self._by_place.values())), _configuration)
        later = self._same.get(_configuration(accused), [])
        slowest = max(later, key=figure, default=accused)
        is_too_much_later = figure(slowest) > (1 + MODEL_BACKWARD_OVER_FORWARD[1]) * figure(accused)
        if not is_too_much_later or any(share_of_fp32_peak(timing) >= 1 for timing in later):
            return finding
        cause = (
            "the clock was read without waiting for the device; the missing time is in "
            f"{slowest.place}, {slowest.phase}, {milliseconds([slowest])}"
        )
        return replace(finding, likely_cause=cause)


def _configuration(timing: Timing) -> Hashable:
    return (timing.series, timing.gpu, timing.work, timing.precision_label, timing.implementation)


def _is_more_than_backward(timing: Timing) -> bool:
    """Whether a backward pass and what runs before or after it are one figure."""
    row = phase_named(timing.phase)
    return row is not None and "backward" in row.timed and len(row.main_parts) > 1
