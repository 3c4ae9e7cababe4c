"""What rules between figures share: the steady timings of a table, and which of them belong together."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from perf_tests.audit.figures import Timing
from perf_tests.audit.plausibility import OUTLIER_SHARE, gpu_of
from perf_tests.limits.least_work import AttentionWork, Work
from perf_tests.records.grouped import grouped

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
