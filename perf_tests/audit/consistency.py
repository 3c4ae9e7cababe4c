"""Rules between the figures of one table: each takes the steady timings and yields findings."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import log2
from statistics import mean

from perf_tests.audit.figures import Timing
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, NOTICE, SUSPICIOUS, Finding, found
from perf_tests.audit.plausibility import OUTLIER_SHARE, gpu_of
from perf_tests.limits.least_work import AttentionWork, ModelWork
from perf_tests.phases import PHASES, Phase, phase_named
from perf_tests.records.grouped import grouped

SAME_CELL_TOLERANCE = 1.25
PARTS_TOLERANCE = 1.10
MODEL_BACKWARD_OVER_FORWARD = (1.5, 2.9)
PAGING_BACKWARD_OVER_FORWARD = 4.0
LAUNCH_BOUND_SPREAD = 1.15
OPTIMIZER_TOLERANCE = 1.10
COMPARABLE_SPEED_UP = 1.05
LONG_SEQUENCE = 4096
"""From here on attention alone is bound by its kernels, not by their launches."""


def steady(timings: Iterable[Timing]) -> list[Timing]:
    """Those of known work whose figure no slow round dominates."""
    timed = (timing for timing in timings if timing.work is not None and timing.seconds and timing.seconds > 0)
    return [timing for timing in timed if (timing.std_seconds or 0) <= OUTLIER_SHARE * figure(timing)]


def repository(timing: Timing) -> str:
    return timing.series.partition(":")[0]


def same_configuration(timing: Timing) -> tuple[Hashable, ...]:
    return (timing.series, timing.gpu, timing.work, timing.precision_label, timing.implementation)


def phases_of(timings: Iterable[Timing]) -> dict[str, list[Timing]]:
    return grouped(timings, lambda timing: timing.phase)


def configurations(timings: Iterable[Timing]) -> list[dict[str, list[Timing]]]:
    """The timings of each configuration, by phase."""
    return [phases_of(group) for group in grouped(timings, same_configuration).values()]


def figure(timing: Timing) -> float:
    assert timing.seconds is not None
    return timing.seconds


def milliseconds(timings: Iterable[Timing]) -> str:
    return ", ".join(f"{figure(timing) * 1e3:.4g}" for timing in timings) + " ms"


def same_cell_twice(timings: Sequence[Timing]) -> Iterator[Finding]:
    """One configuration and phase of one repository with two times. Which of them is wrong cannot be told."""
    for group in grouped(timings, lambda t: (repository(t), *same_configuration(t)[1:], t.phase)).values():
        ordered, ratio = _fastest_first(group)
        if ratio > SAME_CELL_TOLERANCE:
            why = f"the same labels are {ratio:.2f} apart"
            cause = "two precisions, one of them not waited for, or a profiler running, under one label"
            limit = f"{SAME_CELL_TOLERANCE:g}"
            yield found(SUSPICIOUS, "same cell twice", ordered, milliseconds(ordered), limit, why, cause)


def _fastest_first(group: Sequence[Timing]) -> tuple[list[Timing], float]:
    """The same in order, and the slowest over the fastest."""
    ordered = sorted(group, key=figure)
    return ordered, figure(ordered[-1]) / figure(ordered[0])


def parts_and_whole(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Phases that do not add up to their step, even in the reading that favours the table most."""
    for phases in configurations(timings):
        spread = 1 + max((one.std_seconds or 0) / figure(one) for group in phases.values() for one in group)
        for row in PHASES.values():
            whole, parts = row.name, row.main_parts
            if whole not in phases or len(parts) < 2:
                continue
            longest, shortest = spread * max(map(figure, phases[whole])), min(map(figure, phases[whole])) / spread
            for part in (p.name for p in PHASES.values() if p != row and p.name in phases and _is_inside(p, row)):
                if min(map(figure, phases[part])) > longest * PARTS_TOLERANCE:
                    shown = f"{milliseconds(phases[part])} of {milliseconds(phases[whole])}"
                    why, cause = "a part takes longer than the whole", "times of two configurations under one label"
                    yield found(INCONSISTENT, "part and whole", phases[part] + phases[whole], shown, "1", why, cause)
            if all(part in phases for part in parts):
                yield from _sum_of_parts(phases, whole, parts, longest, shortest)


def _is_inside(part: Phase, whole: Phase) -> bool:
    return part.family == whole.family and set(part.timed) <= set(whole.timed)


def _sum_of_parts(
    phases: dict[str, list[Timing]], whole: str, parts: tuple[str, ...], longest: float, shortest: float
) -> Iterator[Finding]:
    least = sum(min(map(figure, phases[part])) for part in parts)
    most = sum(max(map(figure, phases[part])) for part in parts)
    if most * PARTS_TOLERANCE >= shortest and least <= longest * PARTS_TOLERANCE:
        return
    accused = [timing for name in (*parts, whole) for timing in phases[name]]
    shown = f"{' + '.join(milliseconds(phases[part]) for part in parts)} against {milliseconds(phases[whole])}"
    cause = "ranges that leave out the loss, the optimizer or gaps between them, or phases that were not waited for"
    why = f"the parts are {most / shortest if most < shortest else least / longest:.0%} of the whole"
    yield found(INCONSISTENT, "sum of parts", accused, shown, f"{PARTS_TOLERANCE - 1:.0%} apart", why, cause)


def backward_over_forward(timings: Sequence[Timing]) -> Iterator[Finding]:
    """A backward pass does twice the arithmetic, and takes twice the time where arithmetic bounds it."""
    low, high = MODEL_BACKWARD_OVER_FORWARD
    for phases in configurations(timings):
        with_backward = phases.get("backward", phases.get("forward_backward"))
        if "forward" not in phases or not with_backward:
            continue
        forward, backward = phases["forward"][0], with_backward[0]
        ratio = figure(backward) / figure(forward) - (0 if "backward" in phases else 1)
        shown = f"backward / forward {ratio:.2f}"
        if ratio > PAGING_BACKWARD_OVER_FORWARD and isinstance(forward.work, ModelWork):
            why = f"{milliseconds([backward])} after a forward pass of {milliseconds([forward])}"
            cause = "paging to host memory, or code generated inside the timed rounds"
            limit = f"{PAGING_BACKWARD_OVER_FORWARD:g}"
            yield found(SUSPICIOUS, "paging", [backward], shown, limit, why, cause)
        elif 0.3 < _share_of_fp32_peak(forward) <= 1 and not low <= ratio <= high:
            why = "the forward pass is compute-bound, and the backward pass needs twice its arithmetic"
            cause = "a forward pass that was not waited for" if ratio > high else "a pass that kept no gradient"
            limit = f"{low:g} to {high:g}"
            yield found(SUSPICIOUS, "backward / forward", [forward, backward], shown, limit, why, cause)


def _share_of_fp32_peak(timing: Timing) -> float:
    """0 where it is not known, or where another precision's peak applies."""
    flops = timing.work.least_flops(timing.phase, False) if timing.work else None
    gpu = gpu_of(timing)
    peak = timing.matmul_flops_per_second or (gpu.rates["fp32"] if gpu else 0.0)
    if not flops or not peak or not timing.is_eager or timing.precision != "fp32":
        return 0.0
    return flops / figure(timing) / peak


def attention_backward_over_forward(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Attention's backward pass does at least the work of its forward pass, if there is a gradient to compute."""
    for phases in configurations(timings):
        forward, backward = phases.get("attention_forward"), phases.get("attention_backward")
        if not forward or not backward or _length(forward[0]) < LONG_SEQUENCE:
            continue
        ratio = figure(backward[0]) / figure(forward[0])
        low, high = 1.3, 4.0
        shown, limit = f"backward / forward {ratio:.2f}", f"{low:g} to {high:g}"
        if ratio < 1:
            why = "a backward pass is not shorter than its forward pass"
            cause = "query, key and value that require no gradient, so that the backward pass leaves attention out"
            yield found(INCONSISTENT, "attention backward", [backward[0]], shown, limit, why, cause)
        elif not low <= ratio <= high:
            why, cause = "outside of the range seen for attention", "code generated in the timed rounds"
            yield found(SUSPICIOUS, "attention backward", [backward[0]], shown, limit, why, cause)


def attention_exponent(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Twice the sequence is four times the square: time grows with an exponent of 2 between long sequences."""

    def series(timing: Timing) -> Hashable:
        assert isinstance(timing.work, AttentionWork)
        work = replace(timing.work, sequence_length=0)
        return (*same_configuration(replace(timing, work=work)), timing.phase)

    for group in grouped((t for t in timings if _length(t) >= LONG_SEQUENCE and t.is_eager), series).values():
        for shorter, longer in pairwise(sorted(group, key=_length)):
            if _length(shorter) < 2 * LONG_SEQUENCE or _length(longer) != 2 * _length(shorter):
                continue
            exponent = log2(figure(longer) / figure(shorter))
            low, high = 1.8, 2.2
            if not low <= exponent <= high:
                why = f"{milliseconds([shorter])} grew to {milliseconds([longer])} over twice the sequence"
                cause = "other work in the timed pass, or no gradient through attention"
                shown, limit = f"exponent {exponent:.2f}", f"{low:g} to {high:g}"
                yield found(INCONSISTENT, "attention exponent", [longer], shown, limit, why, cause)


def _length(timing: Timing) -> int:
    """Of attention alone; 0 for a model."""
    return timing.work.sequence_length if isinstance(timing.work, AttentionWork) else 0


def launch_bound_groups(timings: Sequence[Timing]) -> list[list[Timing]]:
    """Forward passes of three or more depths whose time per layer is the same although their width is not."""

    def series(timing: Timing) -> Hashable:
        work = _of_model(timing)
        shape = (work.batch_size, work.context_length)
        return (timing.series, timing.gpu, shape, timing.precision_label, timing.implementation)

    groups = []
    for group in grouped(_forward_passes(timings), series).values():
        per_width = sorted({_of_model(timing).config.d_model: timing for timing in group}.items())
        ordered = [timing for _, timing in per_width]
        flat = [timing for count, timing in enumerate(ordered, start=1) if _are_flat(ordered[:count])]
        if len(flat) >= 3:
            groups.append(flat)
    return groups


def _forward_passes(timings: Iterable[Timing]) -> list[Timing]:
    return [timing for timing in timings if isinstance(timing.work, ModelWork) and timing.phase == "forward"]


def _are_flat(group: Sequence[Timing]) -> bool:
    times = [_per_layer(timing) for timing in group]
    return max(times) <= LAUNCH_BOUND_SPREAD * min(times)


def _per_layer(timing: Timing) -> float:
    return figure(timing) / _of_model(timing).config.num_layers


def _of_model(timing: Timing) -> ModelWork:
    assert isinstance(timing.work, ModelWork)
    return timing.work


def launch_bound(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Time per layer that does not grow with the layer is the host's time for launching it."""
    for group in launch_bound_groups(timings):
        per_layer = mean(map(_per_layer, group)) * 1e3
        why = f"{len(group)} widths take the same time per layer, so the host limits them, not the device"
        shown, limit = f"{per_layer:.3g} ms per layer", f"{LAUNCH_BOUND_SPREAD - 1:.0%} apart"
        cause = "launching kernels takes longer than running them: this says nothing of the device or the precision"
        yield found(NOTICE, "launch-bound", group, shown, limit, why, cause)


def mixed_precision_arms(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Two precisions, both bound by launches: the device does not explain a difference between them."""
    bound = [timing for group in launch_bound_groups(timings) for timing in group]
    for group in grouped(bound, lambda t: (repository(t), t.gpu, t.work, t.implementation)).values():
        full = [timing for timing in group if timing.precision == "fp32"]
        half = [timing for timing in group if timing.precision in ("bf16", "fp16")]
        for slow, fast in zip(full, half, strict=False):
            speed_up = figure(slow) / figure(fast)
            if speed_up > COMPARABLE_SPEED_UP:
                shown = f"{milliseconds([slow])} against {milliseconds([fast])}, {speed_up:.2f} times as fast"
                why = "both arms are bound by launches, and autocast only adds launches"
                cause = "one arm was measured under a profiler or on a busier host"
                limit = f"{COMPARABLE_SPEED_UP:g}"
                yield found(SUSPICIOUS, "arms not comparable", [slow, fast], shown, limit, why, cause)


def optimizer_and_precision(timings: Sequence[Timing]) -> Iterator[Finding]:
    """AdamW updates fp32 weights under every precision, so its time is the same."""
    updates = [timing for timing in timings if timing.phase == "optimizer" and timing.has_fp32_weights]
    for group in grouped(updates, lambda timing: (timing.series, timing.gpu, timing.work)).values():
        ordered, ratio = _fastest_first(group)
        if len({timing.precision for timing in group}) > 1 and ratio > OPTIMIZER_TOLERANCE:
            why = "the update works on fp32 weights whatever the forward pass computes in"
            cause = "work of another phase inside the range, or a busy device in one of the runs"
            limit = f"{OPTIMIZER_TOLERANCE - 1:.0%} apart"
            yield found(SUSPICIOUS, "optimizer and precision", ordered, milliseconds(ordered), limit, why, cause)


def compiled_did_nothing(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Compiled and eager times equal in every phase measured both ways, of which there are two or more."""
    low, high = 0.98, 1.02
    for group in grouped(timings, lambda t: (repository(t), t.gpu, t.work, t.precision_label)).values():
        eager, compiled = (phases_of(t for t in group if t.implementation == way) for way in ("eager", "compiled"))
        pairs = [(eager[phase][0], compiled[phase][0]) for phase in compiled if phase in eager]
        ratios = [figure(one) / figure(other) for one, other in pairs]
        is_alike = all(low <= ratio <= high for ratio in ratios)
        if len(pairs) >= 2 and is_alike and not any(_peaks_differ(*pair) for pair in pairs):
            accused = [other for _, other in pairs]
            shown = f"eager / compiled {', '.join(f'{ratio:.3f}' for ratio in ratios)}"
            why = "compiling changed no phase"
            cause = "torch.compile fell back to eager code, for instance at its limit of recompilations"
            yield found(SUSPICIOUS, "compiled did nothing", accused, shown, f"{low:g} to {high:g}", why, cause)


def _peaks_differ(one: Timing, other: Timing) -> bool:
    if one.peak_bytes is None or other.peak_bytes is None:
        return False
    return abs(one.peak_bytes - other.peak_bytes) > 0.01 * one.peak_bytes


def constant_offset(timings: Sequence[Timing]) -> Iterator[Finding]:
    """Two series of one card that differ by the same time at every size, as by constant work inside one range."""
    forward = [timing for timing in _forward_passes(timings) if timing.is_eager]
    for group in grouped(forward, lambda t: (t.gpu, t.precision_label)).values():
        series = [{t.work: t for t in reversed(one)} for one in grouped(group, lambda t: t.series).values()]
        for one, other in combinations(series, 2):
            shared = [work for work in reversed(one) if work in other]
            lower, upper = sorted(
                ([table[work] for work in shared] for table in (one, other)), key=lambda rows: sum(map(figure, rows))
            )
            gaps = [figure(high) - figure(low) for low, high in zip(lower, upper, strict=True)]
            times = [figure(low) for low in lower]
            is_offset = len(gaps) >= 4 and min(gaps) > 0 and max(gaps) < 1.3 * min(gaps)
            if is_offset and max(times) > 3 * min(times) and min(gaps) > min(times) / 2:
                shown = f"{min(gaps) * 1e3:.3g} to {max(gaps) * 1e3:.3g} ms more at {len(gaps)} sizes"
                why = "another series of the same card lacks a time that does not grow with the model"
                cause = "the profiler's start inside the range"
                yield found(SUSPICIOUS, "constant offset", upper, shown, "1.3 between sizes", why, cause)


_RULES = (
    parts_and_whole,
    backward_over_forward,
    attention_backward_over_forward,
    attention_exponent,
    same_cell_twice,
    compiled_did_nothing,
    mixed_precision_arms,
    optimizer_and_precision,
    constant_offset,
    launch_bound,
)


def findings_between(timings: Sequence[Timing]) -> list[Finding]:
    judged = steady(timings)
    return [finding for rule in _RULES for finding in rule(judged)]


def with_neighbours(finding: Finding, timings: Sequence[Timing]) -> Finding:
    """The same finding, with the cause that other phases of its configuration suggest."""
    accused = next(timing for timing in timings if timing.place == finding.places[0])
    is_impossible = (finding.verdict, finding.rule) == (IMPOSSIBLE, "arithmetic")
    if not is_impossible or accused.phase != "forward" or accused.precision != "fp32":
        return finding
    same = [t for t in steady(timings) if same_configuration(t) == same_configuration(accused)]
    later = [t for t in same if (row := phase_named(t.phase)) and "backward" in row.timed and len(row.main_parts) > 1]
    slowest = max(later, key=figure, default=accused)
    is_too_much_later = figure(slowest) > (1 + MODEL_BACKWARD_OVER_FORWARD[1]) * figure(accused)
    if not is_too_much_later or any(_share_of_fp32_peak(timing) >= 1 for timing in later):
        return finding
    cause = (
        "the clock was read without waiting for the device; the missing time is in "
        f"{slowest.place}, {slowest.phase}, {milliseconds([slowest])}"
    )
    return replace(finding, likely_cause=cause)
