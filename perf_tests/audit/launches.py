"""Models whose time is the host's for launching: what their figures then say nothing of."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from statistics import mean

from perf_tests.audit.figures import Timing
from perf_tests.audit.finding import NOTICE, SUSPICIOUS, Finding, found
from perf_tests.audit.groups import Table, figure, milliseconds, repository
from perf_tests.limits.least_work import ModelWork
from perf_tests.records.grouped import grouped

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
