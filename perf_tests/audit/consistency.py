"""Rules between the figures of one table: each takes its steady timings and yields findings."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import log2
from statistics import mean, median

from perf_tests.audit.figures import (
    COMPILED,
    IMPOSSIBLE,
    INCONSISTENT,
    NOTICE,
    OF_ADAMW,
    SUSPICIOUS,
    UNFUSED,
    Finding,
    Timing,
    found,
)
from perf_tests.audit.physics import OUTLIER_SHARE, gpu_of, is_impossible, least_kernel_seconds
from perf_tests.hardware.limits import FLOAT32_BYTES, AttentionWork, ModelWork, Work
from perf_tests.phases import PHASES, Phase, phase_named
from perf_tests.records.record import grouped

# What rules between figures share: the steady timings of a table, and which of them belong together.


Phases = dict[str, list[Timing]]


class Table:
    """The steady timings of a table."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        works: dict[Work | None, Work | None] = {}
        steady_ones = steady(timings)
        kept = [works.setdefault(one.work, one.work) for one in steady_ones]
        # Equal works as one object, which `same_configuration` relies on.
        self.timings = [
            one if work is one.work else replace(one, work=work) for one, work in zip(steady_ones, kept, strict=True)
        ]

    @cached_property
    def configurations(self) -> list[Phases]:
        """The timings of each configuration, by phase."""
        return [phases_of(group) for group in grouped(self.timings, same_configuration).values()]

    @cached_property
    def forward_passes(self) -> list[Timing]:
        """Of models."""
        return [one for one in self.timings if one.phase == "forward" and not isinstance(one.work, AttentionWork)]


def steady(timings: Iterable[Timing]) -> list[Timing]:
    """Those of known work whose figure no slow round dominates."""
    timed = (timing for timing in timings if timing.work is not None and timing.seconds and timing.seconds > 0)
    return [timing for timing in timed if (timing.std_seconds or 0) <= OUTLIER_SHARE * figure(timing)]


def figure(timing: Timing) -> float:
    assert timing.seconds is not None
    return timing.seconds


def milliseconds(timings: Sequence[Timing]) -> str:
    """Of many, the first and the last three."""
    shown = [
        f"{figure(timing) * 1e3:.4g}" for timing in (timings if len(timings) <= 6 else (*timings[:3], *timings[-3:]))
    ]
    if len(timings) <= 6:
        return f"{', '.join(shown)} ms"
    return f"{', '.join(shown[:3])} ... {', '.join(shown[3:])} ms ({len(timings)} figures)"


def repository(timing: Timing) -> str:
    return _repository(timing.series)


@lru_cache(maxsize=4096)
def _repository(series: str) -> str:
    return series.partition(":")[0]


def same_configuration(timing: Timing) -> tuple[Hashable, ...]:
    """The work by its identity, because hashing one takes longer than all else: of the timings of one `Table`."""
    return (timing.series, timing.gpu, id(timing.work), timing.precision_label, timing.implementation)


def phases_of(timings: Iterable[Timing]) -> Phases:
    return grouped(timings, lambda timing: timing.phase)


def fastest_first(group: Sequence[Timing]) -> tuple[list[Timing], float]:
    """The same in order, and the slowest over the fastest."""
    ordered = sorted(group, key=figure)
    return ordered, figure(ordered[-1]) / figure(ordered[0])


def ratio_between(over: Timing, under: Timing) -> tuple[float, float]:
    """The least and the highest ratio that the stated deviations allow."""
    low = (figure(over) - (over.std_seconds or 0)) / (figure(under) + (under.std_seconds or 0))
    return low, (figure(over) + (over.std_seconds or 0)) / (figure(under) - (under.std_seconds or 0))


def share_of_fp32_peak(timing: Timing) -> float:
    """Of an eager pass; 0 where it is not known, or where another precision's peak applies."""
    flops = timing.work.least_flops(timing.phase, False) if timing.work else None
    gpu = gpu_of(timing)
    peak = timing.matmul_flops_per_second or (gpu.rates["fp32"] if gpu else 0.0)
    if not flops or not peak or not timing.is_eager or timing.precision != "fp32":
        return 0.0
    return flops / figure(timing) / peak


# Attention alone: its backward pass against its forward pass, and its growth with the sequence.
#
# Rules of proportion hold where a launch has enough work, which is batch x length^2, not the length alone.


LONG_SQUARE = 8 * 4096**2
"""Scores of one launch from which kernels bound attention alone, not their launches, and from which blocks of 128 x 128
fill every multiprocessor many times."""

BACKWARD_OVER_FORWARD = (1.3, 4.0)
"""Twice the products, and passes over two squares instead of one."""

SPIKE = 2.0
"""Over the ratio at other lengths: a ratio that lasts over all lengths belongs to the kernel."""

EXPONENT = (1.8, 2.2)


def attention_backward_over_forward(table: Table) -> Iterator[Finding]:
    pairs = [
        (phases["attention_forward"][0], phases["attention_backward"][0])
        for phases in table.configurations
        if "attention_forward" in phases and "attention_backward" in phases
    ]
    large = [pair for pair in pairs if square(pair[0]) >= LONG_SQUARE]
    for group in grouped(large, lambda pair: _any_length(pair[0])).values():
        ratios = [figure(backward) / figure(forward) for forward, backward in group]
        for place, (forward, backward) in enumerate(group):
            others = ratios[:place] + ratios[place + 1 :]
            finding = _ratio(forward, backward, median(others) if others else None)
            if finding:
                yield finding


def _ratio(forward: Timing, backward: Timing, elsewhere: float | None) -> Finding | None:
    low, high = BACKWARD_OVER_FORWARD
    # A mask made in the forward pass costs up to as many passes over one square as attention over each sequence's.
    for_mask = 1 + 1 / _work(forward).batch_size
    ratio, (least, most) = figure(backward) / figure(forward), ratio_between(backward, forward)
    shown, limit = f"backward / forward {ratio:.2f}", f"{low / for_mask:.2g} to {high:g}"
    if forward.attention in (UNFUSED, COMPILED) and most < low / for_mask:
        verdict = INCONSISTENT if most < 1 / for_mask else SUSPICIOUS
        why = "a backward pass has twice the products of its forward pass"
        cause = "query, key and value that require no gradient, so that the backward pass leaves attention out"
        return found(verdict, "attention backward", [backward], shown, limit, why, cause, low / ratio)
    is_spike = elsewhere is not None and least > max(high, SPIKE * elsewhere)
    if is_spike or (elsewhere is None and forward.attention == UNFUSED and least > high):
        why = "outside of the range seen for attention"
        why += f", and {elsewhere:.2f} at other lengths" if elsewhere else ""
        cause = "code generated in the timed rounds"
        return found(SUSPICIOUS, "attention backward", [backward], shown, limit, why, cause, ratio / high)
    return None


def exponent(table: Table) -> Iterator[Finding]:
    """Twice the sequence is four times the square: time grows with an exponent of 2 between large launches."""
    low, high = EXPONENT
    alone = [t for t in table.timings if t.is_eager and square(t) >= LONG_SQUARE]
    for group in grouped(alone, lambda timing: (*_any_length(timing), timing.phase)).values():
        for shorter, longer in pairwise(sorted(group, key=lambda timing: _work(timing).sequence_length)):
            is_twice = _work(longer).sequence_length == 2 * _work(shorter).sequence_length
            if square(shorter) < 4 * LONG_SQUARE or not is_twice:
                continue
            least, most = map(log2, ratio_between(longer, shorter))
            if most < low or least > high:
                why = f"{milliseconds([shorter])} grew to {milliseconds([longer])} over twice the sequence"
                cause = "other work in the timed pass, or no gradient through attention"
                power = log2(figure(longer) / figure(shorter))
                shown, limit = f"exponent {power:.2f}", f"{low:g} to {high:g}"
                excess = 2 ** abs(power - 2)
                yield found(INCONSISTENT, "attention exponent", [longer], shown, limit, why, cause, excess)


def _any_length(timing: Timing) -> tuple[Hashable, ...]:
    """The configuration without its length."""
    work = _work(timing)
    labels = (timing.series, timing.gpu, timing.precision_label, timing.implementation)
    return (*labels, work.batch_size, work.head_dim)


def _work(timing: Timing) -> AttentionWork:
    assert isinstance(timing.work, AttentionWork)
    return timing.work


def square(timing: Timing) -> int:
    """Scores of one launch of attention alone; 0 for a model."""
    if not isinstance(timing.work, AttentionWork):
        return 0
    return timing.work.batch_size * timing.work.sequence_length**2


# Compiled figures against eager ones: compilation that did nothing, and compilation that did too much.


SAME = (0.98, 1.02)

SQUARE_PASSES = 10
"""Over the T x T square, that fusion saves at most in a forward pass: scale and mask read and write it, and a softmax
written out as maximum, difference, exponential, sum and quotient reads or writes it eight times; one kernel instead
reads and writes it once (14 with those of the two products, which stay, against 4)."""
WIDTH_PASSES = 50
"""The same over (tokens, width of the model), in a block: two norms, two rotations, two residual sums."""
FEED_FORWARD_PASSES = 8
"""The same over (tokens, width of the feed-forward): the activation and its product with the up projection."""
ELEMENTWISE_BANDWIDTH_SHARE = 1 / 3
"""Of the datasheet's bandwidth, that eager elementwise kernels reach at least on large tensors."""
LAUNCHING_SECONDS = 4e-3
"""For one block's forward pass on a slow host, 80 launches of 50 us: above it, launches hide behind kernels and fusion
saves no time by launching less."""


def compiled_did_nothing(table: Table) -> Iterator[Finding]:
    """Compiled and eager times equal in every phase measured both ways, of which there are two or more."""
    low, high = SAME
    for pairs in _pairs(table):
        ratios = [figure(eager) / figure(compiled) for eager, compiled in pairs]
        is_alike = all(low <= ratio <= high for ratio in ratios)
        is_launched = isinstance(pairs[0][0].work, AttentionWork) and square(pairs[0][0]) < LONG_SQUARE
        if len(pairs) >= 2 and is_alike and not is_launched and not any(_peaks_differ(*pair) for pair in pairs):
            accused = [compiled for _, compiled in pairs]
            shown = f"eager / compiled {', '.join(f'{ratio:.3f}' for ratio in ratios)}"
            why = "compiling changed no phase"
            cause = "torch.compile fell back to eager code, for instance at its limit of recompilations"
            yield found(SUSPICIOUS, "compiled did nothing", accused, shown, f"{low:g} to {high:g}", why, cause)


@lru_cache(maxsize=1)  # for the two rules
def _pairs(table: Table) -> list[list[tuple[Timing, Timing]]]:
    """Eager and compiled timings of one configuration, by phase and optimizer."""
    both = [timing for timing in table.timings if timing.implementation in ("eager", "compiled")]
    pairs = []
    for group in grouped(both, lambda t: (repository(t), t.gpu, id(t.work), t.precision_label)).values():
        eager, compiled = (_by_step(t for t in group if t.implementation == way) for way in ("eager", "compiled"))
        shared = [(eager[step][0], compiled[step][0]) for step in compiled if step in eager]
        if shared:
            pairs.append(shared)
    return pairs


def _by_step(timings: Iterable[Timing]) -> dict[tuple[str, str], list[Timing]]:
    return grouped(timings, lambda timing: (timing.phase, timing.optimizer))


def _peaks_differ(one: Timing, other: Timing) -> bool:
    if one.peak_bytes is None or other.peak_bytes is None:
        return False
    return abs(one.peak_bytes - other.peak_bytes) > 0.01 * one.peak_bytes


def more_than_fusion(table: Table) -> Iterator[Finding]:
    """Fusion saves passes over memory, and neither products nor the square between them."""
    for pair in (pair for pairs in _pairs(table) for pair in pairs):
        eager, compiled = pair
        saved, most = figure(eager) - figure(compiled), most_saved_seconds(eager)
        if most is not None and saved > most:
            shown = f"{milliseconds([eager])} became {milliseconds([compiled])}, {saved * 1e3:.4g} ms less"
            why = "the passes over memory that fusion leaves out take less"
            limit = f"{most * 1e3:.4g} ms at a third of the bandwidth"
            yield found(SUSPICIOUS, "more than fusion", [compiled], shown, limit, why, _cause(compiled), saved / most)
    for timing in table.timings:
        least = least_kernel_seconds(timing, gpu_of(timing)) if timing.attention == COMPILED else None
        if least is not None and figure(timing) < least:
            why = "products and a fused softmax, one after the other, take longer"
            shown, limit = milliseconds([timing]), f"{least * 1e3:.4g} ms"
            excess = least / figure(timing)
            yield found(SUSPICIOUS, "more than fusion", [timing], shown, limit, why, _cause(timing), excess)


def _cause(timing: Timing) -> str:
    if timing.precision == "fp32":
        return "TF32 in the compiled pass alone, or a kernel of blocks instead of the compiled code"
    return "a kernel of blocks instead of the compiled code, or a pass that was not waited for"


def most_saved_seconds(eager: Timing) -> float | None:
    """The passes over memory that fusion can leave out, at a third of the bandwidth; None where launches may decide."""
    gpu, row = gpu_of(eager), phase_named(eager.phase)
    multiple = row.forward_multiple if row else None
    if gpu is None or multiple is None or eager.work is None or eager.precision not in ("fp32", "tf32"):
        return None
    is_large = square(eager) >= LONG_SQUARE
    if isinstance(eager.work, ModelWork):
        is_large = figure(eager) >= multiple * LAUNCHING_SECONDS * eager.work.config.num_layers
    bandwidth = ELEMENTWISE_BANDWIDTH_SHARE * gpu.bytes_per_second
    return multiple * fused_bytes(eager.work) / bandwidth if is_large else None


def fused_bytes(work: Work) -> int:
    """Of a forward pass in fp32."""
    if isinstance(work, AttentionWork):
        return SQUARE_PASSES * work.batch_size * work.sequence_length**2 * FLOAT32_BYTES
    return _fused_bytes_of_model(work)


def _fused_bytes_of_model(work: ModelWork) -> int:
    config, tokens = work.config, work.batch_size * work.context_length
    square_bytes = SQUARE_PASSES * work.batch_size * config.num_heads * work.context_length**2
    rows = tokens * (WIDTH_PASSES * config.d_model + FEED_FORWARD_PASSES * config.d_ff)
    return config.num_layers * (square_bytes + rows) * FLOAT32_BYTES


# One label with two times, and two tables of one card: which of the figures is at fault, as far as the file tells.


SAME_CELL_TOLERANCE = 1.25
SCATTER_SHARE, SCATTER_RATIO = 0.05, 3.0
"""Deviation over mean from which a figure is a disturbed one, if it is so many times the other's."""

MOST_SERIES = 30
"""Of one card, that are compared with each other."""

FASTER_THAN_LABEL = "another precision under this label, or a pass that was not waited for"
DISTURBED = "a busy device or rounds that were not warmed up: the slower figures scatter more"
LESS_WARMUP = "no or one warm-up round before the slower figures"
SINGLE_ROUND = "a profiler running, or a single round, in the slower figures"
ONE_AGAINST_MANY = "another set-up in the one that differs, which its labels do not tell"
UNKNOWN = "two set-ups that the labels do not tell apart"


@dataclass(frozen=True)
class Repeat:
    """The figures of one label, split at the largest gap between them."""

    faster: list[Timing]
    slower: list[Timing]

    @property
    def ordered(self) -> list[Timing]:
        return [*self.faster, *self.slower]

    def cause(self) -> str:
        """As far as these figures tell it."""
        if any(map(is_impossible, self.faster)) and not all(map(is_impossible, self.slower)):
            return FASTER_THAN_LABEL
        if _scatter(self.slower) > max(SCATTER_SHARE, SCATTER_RATIO * _scatter(self.faster)):
            return DISTURBED
        if _most_apart(one.rounds for one in self.slower) == 1 < _most_apart(one.rounds for one in self.faster):
            return SINGLE_ROUND
        if _most_apart(one.warmup_rounds for one in self.slower) < min(
            2, _most_apart(one.warmup_rounds for one in self.faster)
        ):
            return LESS_WARMUP
        return UNKNOWN

    def accused(self, cause: str) -> list[Timing]:
        if cause == FASTER_THAN_LABEL:
            return self.faster
        if cause in (DISTURBED, LESS_WARMUP, SINGLE_ROUND):
            return self.slower
        return min(self.faster, self.slower, key=len) if cause == ONE_AGAINST_MANY else self.ordered


def _scatter(timings: Sequence[Timing]) -> float:
    return max((one.std_seconds or 0) / figure(one) for one in timings)


def _most_apart(counts: Iterable[int | None]) -> int:
    """Unknown ones are as many as usual."""
    return max(10 if count is None else count for count in counts)


def same_cell_twice(table: Table) -> Iterator[Finding]:
    """One configuration and phase of one repository with two times."""
    labels = grouped(
        table.timings, lambda t: (repository(t), *same_configuration(t)[1:], t.phase, t.optimizer)
    ).values()
    repeats = [repeat for group in labels if len(group) > 1 for repeat in _split(group)]
    for of_one_file in grouped(repeats, lambda repeat: repository(repeat.faster[0])).values():
        causes = [repeat.cause() for repeat in of_one_file]
        known = Counter(cause for cause in causes if cause != UNKNOWN)
        for repeat, cause in zip(of_one_file, causes, strict=True):
            yield _finding(repeat, cause, known)


def _split(group: Sequence[Timing]) -> list[Repeat]:
    ordered, ratio = fastest_first(group)
    if ratio <= SAME_CELL_TOLERANCE:
        return []
    gaps = [figure(after) / figure(before) for before, after in pairwise(ordered)]
    cut = 1 + gaps.index(max(gaps))
    return [Repeat(ordered[:cut], ordered[cut:])]


def _finding(repeat: Repeat, cause: str, known: Counter[str]) -> Finding:
    """Where the figures do not tell the cause, that of most other repeats in the file is the likeliest."""
    said = cause
    if cause == UNKNOWN and known:
        cause, count = known.most_common(1)[0]
        said = f"{cause}, as for {count} other labels of this file"
    elif cause == UNKNOWN and len(repeat.faster) != len(repeat.slower):
        said = cause = ONE_AGAINST_MANY
    accused = repeat.accused(cause)
    ratio = figure(repeat.ordered[-1]) / figure(repeat.ordered[0])
    why, limit = f"the same labels are {ratio:.2f} apart", f"{SAME_CELL_TOLERANCE:g}"
    return found(
        SUSPICIOUS,
        "same cell twice",
        accused,
        milliseconds(repeat.ordered),
        limit,
        why,
        said,
        ratio / SAME_CELL_TOLERANCE,
    )


def constant_offset(table: Table) -> Iterator[Finding]:
    """Two series of one card that differ by the same time at every size, as by constant work inside one range."""
    forward = [timing for timing in table.forward_passes if timing.is_eager]
    for group in grouped(forward, lambda t: (t.gpu, t.precision_label)).values():
        series = [{id(t.work): t for t in reversed(one)} for one in grouped(group, lambda t: t.series).values()]
        for one, other in combinations(series[:MOST_SERIES], 2):
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


# Models whose time is the host's for launching: what their figures then say nothing of.


LAUNCH_BOUND_SPREAD = 1.15
COMPARABLE_SPEED_UP = 1.05


@lru_cache(maxsize=1)  # for the two rules
def launch_bound_groups(table: Table) -> list[list[Timing]]:
    """Forward passes of three or more depths whose time per layer is the same although their width is not."""

    def series(timing: Timing) -> Hashable:
        work = _of_model(timing)
        shape = (work.batch_size, work.context_length)
        return (timing.series, timing.gpu, shape, timing.precision_label, timing.implementation)

    groups = []
    for group in grouped(table.forward_passes, series).values():
        per_width = sorted({_of_model(timing).config.d_model: timing for timing in group}.items())
        ordered = [timing for _, timing in per_width]
        flat = [timing for count, timing in enumerate(ordered, start=1) if _are_flat(ordered[:count])]
        if len(flat) >= 3:
            groups.append(flat)
    return groups


def _are_flat(group: Sequence[Timing]) -> bool:
    times = [_per_layer(timing) for timing in group]
    return max(times) <= LAUNCH_BOUND_SPREAD * min(times)


def _per_layer(timing: Timing) -> float:
    return figure(timing) / _of_model(timing).config.num_layers


def _of_model(timing: Timing) -> ModelWork:
    assert isinstance(timing.work, ModelWork)
    return timing.work


def launch_bound(table: Table) -> Iterator[Finding]:
    """Time per layer that does not grow with the layer is the host's time for launching it."""
    for group in launch_bound_groups(table):
        per_layer = mean(map(_per_layer, group)) * 1e3
        why = f"{len(group)} widths take the same time per layer, so the host limits them, not the device"
        shown, limit = f"{per_layer:.3g} ms per layer", f"{LAUNCH_BOUND_SPREAD - 1:.0%} apart"
        cause = "launching kernels takes longer than running them: this says nothing of the device or the precision"
        yield found(NOTICE, "launch-bound", group, shown, limit, why, cause)


def mixed_precision_arms(table: Table) -> Iterator[Finding]:
    """Two precisions, both bound by launches: the device does not explain a difference between them."""
    bound: Iterable[Timing] = [timing for group in launch_bound_groups(table) for timing in group]
    for group in grouped(bound, lambda t: (repository(t), t.gpu, id(t.work), t.implementation)).values():
        full = [timing for timing in group if timing.precision == "fp32"]
        half = [timing for timing in group if timing.precision in ("bf16", "fp16")]
        for slow, fast in zip(full, half, strict=False):
            speed_up = figure(slow) / figure(fast)
            if speed_up > COMPARABLE_SPEED_UP:
                shown = f"{milliseconds([slow])} against {milliseconds([fast])}, {speed_up:.2f} times as fast"
                why = "both arms are bound by launches, and autocast only adds launches"
                cause = "one arm was measured under a profiler or on a busier host"
                limit = f"{COMPARABLE_SPEED_UP:g}"
                yield found(SUSPICIOUS, "arms not comparable", [slow, fast], shown, limit, why, cause, speed_up)


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
    attention_backward_over_forward,
    exponent,
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
