"""Rules between the timings of one table: each takes its steady ones and yields findings."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import log2
from operator import attrgetter
from statistics import mean, median

from perf_tests.audit import figures as labelled
from perf_tests.audit.figures import COMPILED, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, UNFUSED, Finding, Timing, found
from perf_tests.audit.physics import OUTLIER_SHARE, gpu_of, is_impossible, least_kernel_seconds
from perf_tests.hardware.limits import FLOAT32_BYTES, AttentionWork, ModelWork, Work
from perf_tests.phases import PHASES, phase_named
from perf_tests.records.record import grouped


class Table:
    """The timings of a table, what they say of each other, and which of the steady ones belong together.

    Equal works are one object, because hashing one takes longer than all else.
    """

    def __init__(self, timings: Sequence[Timing]) -> None:
        works: dict[Work | None, Work | None] = {}
        known_works = [(one, works.setdefault(one.work, one.work)) for one in timings]
        timings = [one if work is one.work else replace(one, work=work) for one, work in known_works]
        self._by_place = {one.place: one for one in timings}
        known = [one for one in timings if one.work and one.seconds and one.seconds > 0]
        self.cells: dict[Hashable, list[Timing]] = grouped(known, _cell)
        """The timings of each label, steady or not: of one configuration and phase of one repository."""
        self._possible: dict[Hashable, Timing | None] = {}
        """Of labels asked for, the slowest timing that is possible by itself."""
        self.timings = list(filter(_is_steady, known))

    def findings(self) -> list[Finding]:
        """What the timings say of each other, rule by rule."""
        return [finding for rule in RULES for finding in rule(self)]

    def explain(self, finding: Finding) -> Finding:
        """The same finding on one of the timings, with what its repeats, or else other phases, say of the cause."""
        accused = self._by_place[finding.places[0]]
        if (finding.verdict, finding.rule) != (IMPOSSIBLE, "arithmetic"):
            return finding
        if (cell := _cell(accused)) not in self._possible:
            repeats = (one for one in self.cells.get(cell, []) if not is_impossible(one))
            self._possible[cell] = max(repeats, key=_time, default=None)
        if repeat := self._possible[cell]:
            said = f"the same labels stand at {_milliseconds([repeat])} in {repeat.place}"
            return replace(finding, likely_cause=f"{finding.likely_cause}; {said}")
        if accused.phase != "forward" or accused.precision != "fp32":
            return finding
        later = self._with_backward.get(_CONFIGURATION(accused), [])
        slowest = max(later, key=_time, default=accused)
        is_too_much_later = _time(slowest) > (1 + MODEL_BACKWARD_OVER_FORWARD[1]) * _time(accused)
        if not is_too_much_later or any(_share_of_fp32_peak(timing) >= 1 for timing in later):
            return finding
        cause = "the clock was read without waiting for the device; the missing time is in "
        cause += f"{slowest.place}, {slowest.phase}, {_milliseconds([slowest])}"
        return replace(finding, likely_cause=cause)

    @cached_property
    def _with_backward(self) -> dict[Hashable, list[Timing]]:
        """Timings in which a backward pass and what runs before or after it are one figure."""
        rows = ((timing, phase_named(timing.phase)) for timing in self.timings)
        several = (timing for timing, row in rows if row and "backward" in row.timed and len(row.main_parts) > 1)
        return grouped(several, _CONFIGURATION)

    @cached_property
    def configurations(self) -> list[dict[str, list[Timing]]]:
        """The timings of each configuration, by phase."""
        groups = grouped(self.timings, lambda t: (t.series, t.gpu, id(t.work), t.precision_label, t.implementation))
        return [grouped(group, attrgetter("phase")) for group in groups.values()]

    @cached_property
    def forward_passes(self) -> list[Timing]:
        """The forward passes of models."""
        return [one for one in self.timings if one.phase == "forward" and not isinstance(one.work, AttentionWork)]

    @cached_property
    def compiled_pairs(self) -> list[list[tuple[Timing, Timing]]]:
        """Eager and compiled timings of each configuration that has both, by phase and optimizer."""
        pairs = []
        of_ways = (timing for timing in self.timings if timing.implementation in ("eager", "compiled"))
        for group in grouped(of_ways, lambda t: (_repository(t.series), t.gpu, id(t.work), t.precision_label)).values():
            steps = grouped(group, attrgetter("phase", "optimizer")).values()
            ways = [{one.implementation: one for one in reversed(step)} for step in steps]
            pairs.append([(one["eager"], one["compiled"]) for one in ways if len(one) == 2])
        return [pair for pair in pairs if pair]

    @cached_property
    def launch_bound_groups(self) -> list[list[Timing]]:
        """Forward passes of three or more widths whose time per layer is the same, so that the host limits them."""
        groups = []
        of_a_batch = ("work.batch_size", "work.context_length")
        any_width = attrgetter("series", "gpu", "precision_label", "implementation", *of_a_batch)
        for group in grouped(self.forward_passes, any_width).values():
            per_width = {WIDTH(timing): timing for timing in group}
            ordered = [per_width[width] for width in sorted(per_width)]
            times = list(map(_per_layer, ordered))
            spreads = (max(times[:count]) / min(times[:count]) for count in range(1, len(times) + 1))
            flat = [timing for timing, spread in zip(ordered, spreads, strict=True) if spread <= LAUNCH_BOUND_SPREAD]
            if len(flat) >= 3:
                groups.append(flat)
        return groups


WIDTH, LENGTH = attrgetter("work.config.d_model"), attrgetter("work.sequence_length")
_CONFIGURATION = attrgetter("series", "gpu", "work", "precision_label", "implementation")


def _cell(t: Timing) -> Hashable:
    return _repository(t.series), t.gpu, id(t.work), t.precision_label, t.implementation, t.phase, t.optimizer


def _is_steady(timing: Timing) -> bool:
    """Whether no slow round dominates the figure."""
    return (timing.std_seconds or 0) <= OUTLIER_SHARE * _time(timing)


def _time(timing: Timing) -> float:
    """Seconds of a steady timing."""
    assert timing.seconds is not None
    return timing.seconds


def _milliseconds(timings: Sequence[Timing]) -> str:
    """Times as text; of many, the first and the last three."""
    shown = [f"{_time(timing) * 1e3:.4g}" for timing in timings]
    if len(timings) <= 6:
        return f"{', '.join(shown)} ms"
    return f"{', '.join(shown[:3])} ... {', '.join(shown[-3:])} ms ({len(timings)} figures)"


@lru_cache(maxsize=4096)
def _repository(series: str) -> str:
    return series.partition(":")[0]


def _fastest_first(group: Sequence[Timing]) -> tuple[list[Timing], float]:
    """The same in order, and the slowest over the fastest."""
    ordered = sorted(group, key=_time)
    return ordered, _time(ordered[-1]) / _time(ordered[0])


def _ratio_between(over: Timing, under: Timing) -> tuple[float, float]:
    """The least and the highest ratio that the stated deviations allow."""
    off, under_off = over.std_seconds or 0, under.std_seconds or 0
    return (_time(over) - off) / (_time(under) + under_off), (_time(over) + off) / (_time(under) - under_off)


def _share_of_fp32_peak(timing: Timing) -> float:
    """Share of an eager pass; 0 where it is not known, or where another precision's peak applies."""
    flops = timing.work.least_flops(timing.phase, False) if timing.work else None
    gpu = gpu_of(timing)
    peak = timing.matmul_flops_per_second or (gpu.rates["fp32"] if gpu else 0.0)
    if not flops or not peak or not timing.is_eager or timing.precision != "fp32":
        return 0.0
    return flops / _time(timing) / peak


def _per_layer(timing: Timing) -> float:
    assert isinstance(timing.work, ModelWork)
    return _time(timing) / timing.work.config.num_layers


def _square(timing: Timing) -> int:
    """Scores of one launch of attention alone; 0 for a model."""
    return timing.work.batch_size * timing.work.sequence_length**2 if isinstance(timing.work, AttentionWork) else 0


# Phases beside each other: parts and wholes, a backward pass and its forward pass, one optimizer in two precisions.


PARTS_TOLERANCE = 1.10
MODEL_BACKWARD_OVER_FORWARD = (1.5, 2.9)
PAGING_BACKWARD_OVER_FORWARD = 4.0
OPTIMIZER_TOLERANCE = 1.10

FORWARD_LEFT_OUT = "the label leaves out the forward pass, which the backward figure holds too"


def parts_and_whole(table: Table) -> Iterator[Finding]:
    """Phases that do not add up to their step, even in the reading that favours the table most."""
    for phases in table.configurations:
        spread = 1 + max((one.std_seconds or 0) / _time(one) for group in phases.values() for one in group)
        # The fewest and most seconds that the digits of each phase's figures may stand for.
        least = {name: min(_time(one) - one.rounding_seconds for one in group) for name, group in phases.items()}
        most = {name: max(_time(one) + one.rounding_seconds for one in group) for name, group in phases.items()}
        for whole in (name for name in _INSIDE if name in phases):
            parts = PHASES[whole].main_parts
            longest, shortest = spread * most[whole], least[whole] / spread
            for part in (name for name in _INSIDE[whole] if name in phases):
                if least[part] > longest * PARTS_TOLERANCE:
                    shown = f"{_milliseconds(phases[part])} of {_milliseconds(phases[whole])}"
                    why, cause = "a part takes longer than the whole", "times of two configurations under one label"
                    yield found(INCONSISTENT, "part and whole", phases[part] + phases[whole], shown, "1", why, cause)
            if not all(part in phases for part in parts):
                continue
            low, high = sum(least[part] for part in parts), sum(most[part] for part in parts)
            if high * PARTS_TOLERANCE < shortest or low > longest * PARTS_TOLERANCE:
                accused = [timing for name in (*parts, whole) for timing in phases[name]]
                of_parts = " + ".join(_milliseconds(phases[part]) for part in parts)
                shown, limit = f"{of_parts} against {_milliseconds(phases[whole])}", f"{PARTS_TOLERANCE - 1:.0%} apart"
                why = f"the parts are {high / shortest if high < shortest else low / longest:.0%} of the whole"
                cause = "ranges that leave out the loss, the optimizer or gaps between them"
                cause += ", or phases that were not waited for"
                forward = most.get("forward", 0.0) if {"forward", "backward"} <= {*parts} else 0.0
                if forward and low > longest and abs(high - forward - most[whole]) <= (spread - 0.9) * most[whole]:
                    cause = FORWARD_LEFT_OUT
                yield found(INCONSISTENT, "sum of parts", accused, shown, limit, why, cause)


_INSIDE = {
    whole.name: [
        part.name
        for part in PHASES.values()
        if part != whole and part.family == whole.family and {*part.timed} <= {*whole.timed}
    ]
    for whole in PHASES.values()
    if len(whole.main_parts) > 1
}
"""Phases that are parts of another, by its name."""


def backward_over_forward(table: Table) -> Iterator[Finding]:
    """Check that a backward pass takes twice the time where arithmetic bounds it: it does twice as much."""
    low, high = MODEL_BACKWARD_OVER_FORWARD
    launched = {timing.place for group in table.launch_bound_groups for timing in group}
    for phases in table.configurations:
        forwards, backwards = phases.get("forward"), phases.get("backward", phases.get("forward_backward"))
        if not forwards or not backwards:
            continue
        of_forward = 0 if "backward" in phases else 1
        # Of figures with one label, the pair that speaks most for the table: that they differ is another rule's.
        first = backwards[0]
        forward = min(forwards, key=lambda one: abs(_time(first) / _time(one) - of_forward - 2))
        backward = min(backwards, key=lambda one: abs(_time(one) / _time(forward) - of_forward - 2))
        ratio = _time(backward) / _time(forward) - of_forward
        least, most = (bound - of_forward for bound in _ratio_between(backward, forward))
        shown = f"backward / forward {ratio:.2f}"
        # Near enough to its peak, and no launches limit its widths.
        is_compute_bound = 0.3 < _share_of_fp32_peak(forward) <= 1 and forward.place not in launched
        if ratio > PAGING_BACKWARD_OVER_FORWARD and isinstance(forward.work, ModelWork):
            why = f"{_milliseconds([backward])} after a forward pass of {_milliseconds([forward])}"
            cause = "paging to host memory, or code generated inside the timed rounds"
            limit = f"{PAGING_BACKWARD_OVER_FORWARD:g}"
            yield found(SUSPICIOUS, "paging", [backward], shown, limit, why, cause)
        elif (least > high or most < low) and is_compute_bound:
            why = "the forward pass is compute-bound, and the backward pass needs twice its arithmetic"
            cause = "a forward pass that was not waited for" if ratio > high else "a pass that kept no gradient"
            if low < ratio - 1 < high and not of_forward:
                cause = f"{FORWARD_LEFT_OUT}, or {cause}"
            limit = f"{low:g} to {high:g}"
            yield found(SUSPICIOUS, "backward / forward", [forward, backward], shown, limit, why, cause)


def optimizer_and_precision(table: Table) -> Iterator[Finding]:
    """Check that an update takes the same time under every precision: AdamW's weights are fp32."""
    updates = [timing for timing in table.timings if timing.is_update]
    for group in grouped(updates, lambda t: (t.series, t.gpu, id(t.work), t.optimizer)).values():
        ordered, ratio = _fastest_first(group)
        if len({timing.precision for timing in group}) > 1 and ratio > OPTIMIZER_TOLERANCE:
            why = "the update works on fp32 weights whatever the forward pass computes in"
            cause = "work of another phase inside the range, or a busy device in one of the runs"
            limit = f"{OPTIMIZER_TOLERANCE - 1:.0%} apart"
            yield found(SUSPICIOUS, "optimizer and precision", ordered, _milliseconds(ordered), limit, why, cause)


# Attention alone: its backward pass against its forward pass, and its growth with the sequence.
#
# Rules of proportion hold where a launch has enough work, which is batch x length^2, not the length alone.


LONG_SQUARE = 8 * 4096**2
"""Scores of one launch from which kernels bound attention alone, not their launches, and from which blocks of 128 x 128
fill every multiprocessor many times."""

BACKWARD_OVER_FORWARD = (1.3, 4.0)
"""Twice the products, and passes over two squares instead of one."""

SPIKE = 2.0
"""Least multiple of the ratio at other lengths: a ratio that lasts over all lengths belongs to the kernel."""

EXPONENT = (1.8, 2.2)

_ANY_LENGTH = attrgetter("series", "gpu", "precision_label", "implementation", "work.batch_size", "work.head_dim")


def attention_backward_over_forward(table: Table) -> Iterator[Finding]:
    """Check the ratio to twice the products: less is a pass without gradients, a spike is generated code."""
    low, high = BACKWARD_OVER_FORWARD
    ends = ("attention_forward", "attention_backward")
    pairs = [[phases[end][0] for end in ends] for phases in table.configurations if all(end in phases for end in ends)]
    large = [pair for pair in pairs if _square(pair[0]) >= LONG_SQUARE]
    for group in grouped(large, lambda pair: _ANY_LENGTH(pair[0])).values():
        ratios = [_time(backward) / _time(forward) for forward, backward in group]
        for place, (forward, backward) in enumerate(group):
            others = ratios[:place] + ratios[place + 1 :]
            elsewhere = median(others) if others else None
            # A mask made in the forward pass costs up to as many passes over one square as attention over each
            # sequence's.
            for_mask = 1 + LENGTH(forward) ** 2 / _square(forward)
            ratio, (least, most) = ratios[place], _ratio_between(backward, forward)
            shown, limit = f"backward / forward {ratio:.2f}", f"{low / for_mask:.2g} to {high:g}"
            is_spike = elsewhere is not None and least > max(high, SPIKE * elsewhere)
            if forward.attention in (UNFUSED, COMPILED) and most < low / for_mask:
                verdict = INCONSISTENT if most < 1 / for_mask else SUSPICIOUS
                why = "a backward pass has twice the products of its forward pass"
                cause = "query, key and value that require no gradient, so that the backward pass leaves attention out"
                yield found(verdict, "attention backward", [backward], shown, limit, why, cause, low / ratio)
            elif is_spike or (elsewhere is None and forward.attention == UNFUSED and least > high):
                why = "outside of the range seen for attention"
                why += f", and {elsewhere:.2f} at other lengths" if elsewhere else ""
                cause = "code generated in the timed rounds"
                yield found(SUSPICIOUS, "attention backward", [backward], shown, limit, why, cause, ratio / high)


def exponent(table: Table) -> Iterator[Finding]:
    """The exponent of time: twice the sequence is four times the square, so that it grows with an exponent of 2
    between large launches.
    """
    low, high = EXPONENT
    alone = [t for t in table.timings if t.is_eager and _square(t) >= LONG_SQUARE]
    for group in grouped(alone, lambda timing: (*_ANY_LENGTH(timing), timing.phase)).values():
        for shorter, longer in pairwise(sorted(group, key=LENGTH)):
            if _square(shorter) < 4 * LONG_SQUARE or LENGTH(longer) != 2 * LENGTH(shorter):
                continue
            least, most = map(log2, _ratio_between(longer, shorter))
            if most < low or least > high:
                why = f"{_milliseconds([shorter])} grew to {_milliseconds([longer])} over twice the sequence"
                cause = "other work in the timed pass, or no gradient through attention"
                power = log2(_time(longer) / _time(shorter))
                shown, limit = f"exponent {power:.2f}", f"{low:g} to {high:g}"
                excess = 2 ** abs(power - 2)
                yield found(INCONSISTENT, "attention exponent", [longer], shown, limit, why, cause, excess)


# Compiled figures against eager ones: compilation that did nothing, and compilation that did too much.


SAME = (0.98, 1.02)

SQUARE_PASSES = 10
"""Passes over the T x T square that fusion saves at most, going forward: scale and mask read and write it, and a
softmax written out as maximum, difference, exponential, sum and quotient reads or writes it eight times; one kernel
instead reads and writes it once (14 with those of the two products, which stay, against 4)."""
WIDTH_PASSES = 50
"""The same over (tokens, width of the model), in a block: two norms, two rotations, two residual sums."""
FEED_FORWARD_PASSES = 8
"""The same over (tokens, width of the feed-forward): the activation and its product with the up projection."""
ELEMENTWISE_BANDWIDTH_SHARE = 1 / 3
"""Share of the datasheet's bandwidth that eager elementwise kernels reach at least on large tensors."""
LAUNCHING_SECONDS = 4e-3
"""Launches of one block's forward pass on a slow host, 80 of 50 us: above it, they hide behind kernels and fusion
saves no time by launching less."""


def compiled_did_nothing(table: Table) -> Iterator[Finding]:
    """Compiled and eager times equal in every phase measured both ways, of which there are two or more."""
    low, high = SAME
    for pairs in table.compiled_pairs:
        ratios = [_time(eager) / _time(compiled) for eager, compiled in pairs]
        is_alike = all(low <= ratio <= high for ratio in ratios)
        is_launched = isinstance(pairs[0][0].work, AttentionWork) and _square(pairs[0][0]) < LONG_SQUARE
        peaks = ((eager.peak_bytes, compiled.peak_bytes) for eager, compiled in pairs)
        saves_memory = any(a is not None and b is not None and abs(a - b) > 0.01 * a for a, b in peaks)
        if len(pairs) >= 2 and is_alike and not is_launched and not saves_memory:
            accused = [compiled for _, compiled in pairs]
            shown = f"eager / compiled {', '.join(f'{ratio:.3f}' for ratio in ratios)}"
            why = "compiling changed no phase"
            cause = "torch.compile fell back to eager code, for instance at its limit of recompilations"
            yield found(SUSPICIOUS, "compiled did nothing", accused, shown, f"{low:g} to {high:g}", why, cause)


def more_than_fusion(table: Table) -> Iterator[Finding]:
    """Fusion saves passes over memory, and neither products nor the square between them."""

    def cause(timing: Timing) -> str:
        if timing.precision == "fp32":
            return "TF32 in the compiled pass alone, or a kernel of blocks instead of the compiled code"
        return "a kernel of blocks instead of the compiled code, or a pass that was not waited for"

    for eager, compiled in (pair for pairs in table.compiled_pairs for pair in pairs):
        saved, most = _time(eager) - _time(compiled), _most_saved_seconds(eager)
        if most is not None and saved > most:
            shown = f"{_milliseconds([eager])} became {_milliseconds([compiled])}, {saved * 1e3:.4g} ms less"
            why = "the passes over memory that fusion leaves out take less"
            limit = f"{most * 1e3:.4g} ms at a third of the bandwidth"
            yield found(SUSPICIOUS, "more than fusion", [compiled], shown, limit, why, cause(compiled), saved / most)
    for timing in table.timings:
        least = least_kernel_seconds(timing, gpu_of(timing)) if timing.attention == COMPILED else None
        if least is not None and _time(timing) < least:
            why = "products and a fused softmax, one after the other, take longer"
            shown, limit, excess = _milliseconds([timing]), f"{least * 1e3:.4g} ms", least / _time(timing)
            yield found(SUSPICIOUS, "more than fusion", [timing], shown, limit, why, cause(timing), excess)


def _most_saved_seconds(eager: Timing) -> float | None:
    """The passes over memory that fusion can leave out, at a third of the bandwidth; None where launches may decide."""
    work, gpu, row = eager.work, gpu_of(eager), phase_named(eager.phase)
    multiple = row.forward_multiple if row else None
    if gpu is None or multiple is None or work is None or eager.precision not in ("fp32", "tf32"):
        return None
    if isinstance(work, AttentionWork):
        is_large, elements = _square(eager) >= LONG_SQUARE, SQUARE_PASSES * _square(eager)
    else:
        config, tokens = work.config, work.batch_size * work.context_length
        is_large = _time(eager) >= multiple * LAUNCHING_SECONDS * config.num_layers
        square = work.batch_size * config.num_heads * work.context_length**2
        rows = tokens * (WIDTH_PASSES * config.d_model + FEED_FORWARD_PASSES * config.d_ff)
        elements = config.num_layers * (SQUARE_PASSES * square + rows)
    bandwidth = ELEMENTWISE_BANDWIDTH_SHARE * gpu.bytes_per_second
    return multiple * elements * FLOAT32_BYTES / bandwidth if is_large else None


# One label with two times, and two tables of one card: which of the figures is at fault, as far as the file tells.


SAME_CELL_TOLERANCE = 1.25
SCATTER_SHARE, SCATTER_RATIO = 0.05, 3.0
"""Deviation over mean from which a figure is a disturbed one, if it is so many times the other's."""

USUAL_ROUNDS = 10
"""Rounds, and warm-up rounds, of a figure that does not say how many."""

MOST_SERIES = 30
"""Series of one card that are compared with each other."""

FASTER_THAN_LABEL = "another precision under this label, or a pass that was not waited for"
DISTURBED = "a busy device or rounds that were not warmed up: the slower figures scatter more"
LESS_WARMUP = "no or one warm-up round before the slower figures"
SINGLE_ROUND = "a profiler running, or a single round, in the slower figures"
ONE_AGAINST_MANY = "another set-up in the one that differs, which its labels do not tell"
NOT_TOLD = "two set-ups that the labels do not tell apart"


def same_cell_twice(table: Table) -> Iterator[Finding]:
    """One configuration and phase of one repository with two times."""
    repeats = []
    for group in (list(filter(_is_steady, cell)) for cell in table.cells.values() if len(cell) > 1):
        ordered, ratio = _fastest_first(group) if group else ([], 1.0)
        if ratio > SAME_CELL_TOLERANCE:  # split at the largest gap
            gaps = [_time(after) / _time(before) for before, after in pairwise(ordered)]
            cut = 1 + gaps.index(max(gaps))
            repeats.append((ordered[:cut], ordered[cut:]))
    for of_one_file in grouped(repeats, lambda repeat: _repository(repeat[0][0].series)).values():
        causes = [_cause_of_repeat(*repeat) for repeat in of_one_file]
        known = Counter(cause for cause in causes if cause != NOT_TOLD)
        for (faster, slower), own_cause in zip(of_one_file, causes, strict=True):
            ordered, cause, said = [*faster, *slower], own_cause, own_cause
            if cause == NOT_TOLD and known:  # that of most other repeats in the file is the likeliest
                cause, count = known.most_common(1)[0]
                said = f"{cause}, as for {count} other labels of this file"
            elif cause == NOT_TOLD and len(faster) != len(slower):
                said = cause = ONE_AGAINST_MANY
            fewer = min(faster, slower, key=len)
            accused = {FASTER_THAN_LABEL: faster, ONE_AGAINST_MANY: fewer, NOT_TOLD: ordered}.get(cause, slower)
            ratio = _time(ordered[-1]) / _time(ordered[0])
            why, limit = f"the same labels differ by a factor of {ratio:.2f}", f"{SAME_CELL_TOLERANCE:g}"
            shown, excess = _milliseconds(ordered), ratio / SAME_CELL_TOLERANCE
            yield found(SUSPICIOUS, "same cell twice", accused, shown, limit, why, said, excess)


def _cause_of_repeat(faster: Sequence[Timing], slower: Sequence[Timing]) -> str:
    """Why one label has two times, as far as its figures tell."""

    def scatter(timings: Sequence[Timing]) -> float:
        return max((one.std_seconds or 0) / _time(one) for one in timings)

    def most(counts: Iterable[int | None]) -> int:
        return max(USUAL_ROUNDS if count is None else count for count in counts)

    if any(map(is_impossible, faster)) and not all(map(is_impossible, slower)):
        return FASTER_THAN_LABEL
    if scatter(slower) > max(SCATTER_SHARE, SCATTER_RATIO * scatter(faster)):
        return DISTURBED
    if most(one.rounds for one in slower) == 1 < most(one.rounds for one in faster):
        return SINGLE_ROUND
    if most(one.warmup_rounds for one in slower) < min(2, most(one.warmup_rounds for one in faster)):
        return LESS_WARMUP
    return NOT_TOLD


def constant_offset(table: Table) -> Iterator[Finding]:
    """Two series of one card that differ by the same time at every size, as by constant work inside one range."""
    forward = [timing for timing in table.forward_passes if timing.is_eager]
    for group in grouped(forward, attrgetter("gpu", "precision_label")).values():
        series = [{id(t.work): t for t in reversed(one)} for one in grouped(group, attrgetter("series")).values()]
        for pair in combinations(series[:MOST_SERIES], 2):
            shared = [work for work in reversed(pair[0]) if work in pair[1]]
            rows = [[timings[work] for work in shared] for timings in pair]
            lower, upper = sorted(rows, key=lambda row: sum(map(_time, row)))
            gaps = [_time(high) - _time(low) for low, high in zip(lower, upper, strict=True)]
            times = [_time(low) for low in lower]
            is_offset = len(gaps) >= 4 and min(gaps) > 0 and max(gaps) < 1.3 * min(gaps)
            if is_offset and max(times) > 3 * min(times) and min(gaps) > min(times) / 2:
                shown = f"{min(gaps) * 1e3:.3g} to {max(gaps) * 1e3:.3g} ms more at {len(gaps)} sizes"
                why = "another series of the same card lacks a time that does not grow with the model"
                cause = "the profiler's start inside the range"
                yield found(SUSPICIOUS, "constant offset", upper, shown, "1.3 between sizes", why, cause)


# Models whose time is the host's for launching: what their figures then say nothing of.


LAUNCH_BOUND_SPREAD = 1.15
COMPARABLE_SPEED_UP = 1.05


def launch_bound(table: Table) -> Iterator[Finding]:
    """Time per layer that does not grow with the layer is the host's time for launching it."""
    for group in table.launch_bound_groups:
        shown, limit = f"{mean(map(_per_layer, group)) * 1e3:.3g} ms per layer", f"{LAUNCH_BOUND_SPREAD - 1:.0%} apart"
        why = f"{len(group)} widths take the same time per layer, so the host limits them, not the device"
        cause = "launching kernels takes longer than running them: this says nothing of the device or the precision"
        yield found(labelled.NOTICE, "launch-bound", group, shown, limit, why, cause)


def mixed_precision_arms(table: Table) -> Iterator[Finding]:
    """Two precisions, both bound by launches: the device does not explain a difference between them."""
    bound = [timing for group in table.launch_bound_groups for timing in group]
    for group in grouped(bound, lambda t: (_repository(t.series), t.gpu, id(t.work), t.implementation)).values():
        full = [timing for timing in group if timing.precision == "fp32"]
        half = [timing for timing in group if timing.precision in ("bf16", "fp16")]
        for slow, fast in zip(full, half, strict=False):
            speed_up = _time(slow) / _time(fast)
            if speed_up > COMPARABLE_SPEED_UP:
                shown = f"{_milliseconds([slow])} against {_milliseconds([fast])}, {speed_up:.2f} times as fast"
                why = "both arms are bound by launches, and autocast only adds launches"
                cause = "one arm was measured under a profiler or on a busier host"
                limit = f"{COMPARABLE_SPEED_UP:g}"
                yield found(SUSPICIOUS, "arms not comparable", [slow, fast], shown, limit, why, cause, speed_up)


RULES: tuple[Callable[[Table], Iterator[Finding]], ...] = (
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
