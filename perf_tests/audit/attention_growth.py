"""Attention alone: its backward pass against its forward pass, and its growth with the sequence.

Rules of proportion hold where a launch has enough work, which is batch x length^2, not the length alone.
"""

from collections.abc import Hashable, Iterator
from itertools import pairwise
from math import log2
from statistics import median

from perf_tests.audit.figures import COMPILED, UNFUSED, Timing
from perf_tests.audit.finding import INCONSISTENT, SUSPICIOUS, Finding, found
from perf_tests.audit.groups import Table, figure, milliseconds, ratio_between
from perf_tests.limits.least_work import AttentionWork
from perf_tests.records.grouped import grouped

LONG_SQUARE = 8 * 4096**2
"""Scores of one launch from which kernels bound attention alone, not their launches, and from which blocks of 128 x 128
fill every multiprocessor many times."""

BACKWARD_OVER_FORWARD = (1.3, 4.0)
"""Twice the products, and passes over two squares instead of one."""

SPIKE = 2.0
"""Over the ratio at other lengths: a ratio that lasts over all lengths belongs to the kernel."""

EXPONENT = (1.8, 2.2)


def backward_over_forward(table: Table) -> Iterator[Finding]:
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
