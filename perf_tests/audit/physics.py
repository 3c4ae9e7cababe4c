"""What no hardware can reach: a time below that of its arithmetic or traffic, memory beyond the card or below the
weights."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from perf_tests_suite.perf_tests.audit import figures as labelled
from perf_tests_suite.perf_tests.audit.figures import Figure, Finding, Memory, NotJudged, Timing
from perf_tests_suite.perf_tests.hardware.datasheets import GIB, GPUS, Gpu, pieces_named, strongest_named
from perf_tests_suite.perf_tests.hardware.limits import AttentionWork, ModelWork
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, phase_named

MEASURED_CEILING_MARGIN = 1.25
"""Factor by which a measured ceiling may be too low, because it carries the same noise as the figure."""

BEYOND_EVERY_CARD = 2.0
"""Times the highest peak of a datasheet here, which no card has: of those that lack one AMD's MI300X has 1.3 times."""

_SEVERAL = re.compile(r"[dh]gx|node|cluster|pod|slice|tpu|gpus|cards|chips|nvl\d\d")
"""Words for more than one card that give no number."""

UPDATE_BYTES, ADAMW_BYTES = 12, 28
"""Bytes of a parameter that a step moves in fp32: any optimizer reads weight and gradient and writes the weight; AdamW
reads and writes two moments too."""

PRODUCTS = {"inference": 2, "forward": 2, "backward": 4}
"""Products over the T x T square: scores and output; the gradients of values, probabilities, queries and keys."""
TILED_PRODUCTS = {"inference": 2, "forward": 2, "backward": 5}
"""A kernel that never holds the square computes the scores once more (Dao, arXiv:2307.08691, section 3.1.2)."""
SOFTMAX_PASSES = {"inference": 2, "forward": 2, "backward": 3}
"""Passes over the square of a softmax in one kernel."""


MOST_EXCESS = 1e9
"""Excess of a figure that no factor relates to its limit."""

Said = Finding | NotJudged


def judge(figure: Figure | NotJudged) -> list[Said]:
    """Every limit that the figure is beyond, or why it is held to none; nothing where it is possible."""
    if isinstance(figure, NotJudged):
        return [figure]
    of_kind = _said_of_memory(figure) if isinstance(figure, Memory) else _said_of_time(figure)
    return list(of_kind)


def gpu_of(row: Figure) -> Gpu | None:
    """The card; None where the row names none with a datasheet here."""
    return _gpu_named(row.gpu)


@lru_cache(maxsize=4096)
def _gpu_named(text: str) -> Gpu | None:
    with suppress(ValueError):
        return strongest_named(text)
    return None


def _why_no_gpu(row: Figure) -> str:
    if pieces_named(row.gpu) > 1:
        return f"{row.gpu!r} are several cards, which share the work"
    return f"GPU {row.gpu!r} has no datasheet here" if row.gpu else "no GPU stated"


def _found(row: Figure, rule: str, figure: str, limit: str, why: str, excess: float) -> Finding:
    return Finding(rule, (row.place,), row.describe().removeprefix(": "), figure, limit, why, row.series, excess)


# Times.


_PRECISIONS = sorted({name for gpu in GPUS.values() for name in gpu.rates})
ANY_CARD = Gpu(
    "a card without a datasheet here",
    memory_bytes=2**63,
    bytes_per_second=float("inf"),
    rates={name: max(BEYOND_EVERY_CARD * gpu.rates.get(name, 0.0) for gpu in GPUS.values()) for name in _PRECISIONS},
    l2_cache_bytes=None,
    aliases=(),
)


def _said_of_time(timing: Timing) -> Iterator[Said]:
    gpu, seconds = gpu_of(timing), timing.most_seconds
    if timing.seconds is None or seconds is None:
        yield NotJudged(timing.place, "no figure")
    elif timing.seconds <= 0:
        yield _found(timing, "time", f"{timing.seconds * 1e3:g} ms", "0 ms", "a pass takes time", MOST_EXCESS)
    elif reason := _why_not_judged(timing, gpu):
        yield NotJudged(timing.place, reason)
    elif timing.is_update:  # without products: the measured ceiling of a CPU says nothing of it
        yield from [NotJudged(timing.place, _why_no_gpu(timing))] if gpu is None else _update(timing, seconds, gpu)
    elif gpu is not None or timing.matmul_flops_per_second:
        yield from _arithmetic(timing, seconds, gpu or ANY_CARD)
        yield from _traffic(timing, seconds, gpu or ANY_CARD)
        yield from _resident(timing, gpu or ANY_CARD)
    else:
        is_one = pieces_named(timing.gpu) == 1 and not _SEVERAL.search(timing.gpu.casefold())
        beyond = list(_arithmetic(timing, seconds, ANY_CARD)) if is_one else []
        yield from beyond or [NotJudged(timing.place, _why_no_gpu(timing))]


def _why_not_judged(timing: Timing, gpu: Gpu | None) -> str:
    """The reason, apart from a card that is not known."""
    if timing.work is None:
        return timing.without_work
    if timing.is_update:
        return "the card's cache is not known" if gpu is not None and gpu.l2_cache_bytes is None else ""
    row = phase_named(timing.phase)
    if row is None or row.forward_multiple is None:
        return f"phase {timing.phase!r} has no known arithmetic"
    if timing.matmul_flops_per_second:
        return ""
    if timing.precision is None:
        is_stated = timing.precision_label != labelled.NO_PRECISION
        return f"precision {timing.precision_label!r} is not certain" if is_stated else labelled.NO_PRECISION
    if gpu is not None and timing.precision not in gpu.rates:
        return f"{gpu.name} has no {timing.precision} path, so something else ran"
    return ""


def _arithmetic(timing: Timing, seconds: float, gpu: Gpu) -> Iterator[Said]:
    """Matrix products above the peak rate of the labelled precision."""
    rate, why = _least_flops(timing) / seconds, "no machine exceeds its peak rate"
    if measured := timing.matmul_flops_per_second:
        peak = MEASURED_CEILING_MARGIN * measured
        limit = f"{peak / 1e12:.4g} TFLOP/s ({MEASURED_CEILING_MARGIN:g} x the best product measured there)"
    else:
        assert timing.precision is not None
        peak, stated = _peak(gpu, timing.precision)
        inferred = ", GPU inferred, not stated" if timing.gpu_is_inferred else ""
        limit = f"{stated} ({timing.precision} on {gpu.name}{inferred})"
        if timing.precision == "fp32" and gpu.rates.get("tf32", 0.0) > gpu.rates["fp32"]:
            tf32_peak, stated = _peak(gpu, "tf32")
            why += f"; TF32 could, with up to {stated}" if rate <= tf32_peak else f", nor that of TF32, {stated}"
    if rate <= peak:
        return
    printed = (timing.seconds or seconds) * 1e3
    at_least = "at least " if seconds > 1.001 * printed / 1e3 else ""
    figure = f"{printed:.4g} ms is {at_least}{rate / 1e12:.4g} TFLOP/s"
    yield _found(timing, "arithmetic", figure, limit, why, rate / peak)


def _peak(gpu: Gpu, precision: str) -> tuple[float, str]:
    """FLOP/s that the card cannot exceed, and in words."""
    rated, times = gpu.rates[precision], gpu.clock_margin_of(precision)
    return rated * times, f"{rated / 1e12:.4g} TFLOP/s{f' x {times:g} for its clock' if times > 1 else ''}"


def _least_flops(timing: Timing) -> float:
    """FLOPs of the matrix products that its kernels cannot skip.

    Op by op, and under torch.compile, which leaves products to the library and knows no mask, they cover the whole
    square. A kernel of blocks skips the masked half, and computes the scores once more in its backward pass.
    """
    work, row = timing.work, phase_named(timing.phase)
    assert work is not None
    assert row is not None
    is_whole = timing.attention in (labelled.UNFUSED, labelled.COMPILED) or not timing.is_causal
    flops = work.least_flops(timing.phase, leaves_masked_half=not is_whole)
    assert flops is not None
    if timing.attention != labelled.TILED or not isinstance(work, AttentionWork):
        return flops
    return flops * sum(map(TILED_PRODUCTS.__getitem__, row.main_parts)) / sum(map(PRODUCTS.__getitem__, row.main_parts))


def _update(timing: Timing, seconds: float, gpu: Gpu) -> Iterator[Said]:
    """An optimizer's step in less than its bytes take.

    The cache keeps at most its size of what came before, and of what is written last.
    """
    assert isinstance(timing.work, ModelWork)
    assert gpu.l2_cache_bytes is not None
    parameters = timing.work.config.parameters
    moved = ADAMW_BYTES if timing.optimizer in labelled.OF_ADAMW else UPDATE_BYTES
    least = (moved * parameters - 2 * gpu.l2_cache_bytes) / gpu.bytes_per_second
    why = f"{'AdamW' if moved == ADAMW_BYTES else 'an update'} moves {moved} bytes of each of {parameters:,} parameters"
    yield from _faster_than_memory(timing, "update", seconds, least, gpu, why)


def _traffic(timing: Timing, seconds: float, gpu: Gpu) -> Iterator[Said]:
    """Attention op by op in less than its kernels take one after the other.

    Each product reads or writes the square once, and takes the longer of that and of its arithmetic. Softmax reads and
    writes it; its gradient reads two and writes one. Of every pass the cache keeps at most its own size.
    """
    work, row, precision, cache = timing.work, phase_named(timing.phase), timing.precision, gpu.l2_cache_bytes
    is_alone = isinstance(work, AttentionWork) and row is not None and row.family == ATTENTION_ALONE
    if not is_alone or not timing.is_eager or cache is None or precision is None or precision not in gpu.rates:
        return
    assert isinstance(work, AttentionWork)
    assert row is not None
    square = work.batch_size * work.sequence_length**2
    passing = (square * (4 if precision in ("fp32", "tf32") else 2) - cache) / gpu.bytes_per_second
    product = 2 * square * work.head_dim / _peak(gpu, precision)[0]
    products, passes = (sum(map(count.__getitem__, row.main_parts)) for count in (PRODUCTS, SOFTMAX_PASSES))
    why = "the scores do not fit into the cache, and products and softmax pass them through memory one after the other"
    if passing > 0:
        least = products * max(product, passing) + passes * passing
        yield from _faster_than_memory(timing, "traffic", seconds, least, gpu, why)


def _faster_than_memory(timing: Timing, rule: str, seconds: float, least: float, gpu: Gpu, why: str) -> Iterator[Said]:
    if seconds < least:
        limit = f"{least * 1e3:.4g} ms ({gpu.bytes_per_second / 1e9:.4g} GB/s, {gpu.name})"
        yield _found(timing, rule, f"{seconds * 1e3:.4g} ms", limit, why, least / seconds)


def _resident(timing: Timing, gpu: Gpu) -> Iterator[Said]:
    """Weights, and gradients of a backward pass, beyond the card's memory."""
    needed = timing.work.least_resident_bytes(timing.phase) if timing.work and timing.has_fp32_weights else None
    if needed and needed > gpu.memory_bytes:
        figure, limit = f"{needed / GIB:.4g} GiB must be resident", f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})"
        yield _found(timing, "memory", figure, limit, "weights and gradients in fp32", needed / gpu.memory_bytes)


# Amounts of memory.


def _said_of_memory(memory: Memory) -> Iterator[Said]:
    value, most, gpu = memory.value_bytes, memory.most_bytes, gpu_of(memory)
    if value is None or most is None:
        yield NotJudged(memory.place, "no figure")
        return
    shown = f"{value / GIB:.4g} GiB"
    if value < 0:
        yield _found(memory, "amount", shown, "0 GiB", "an amount of memory is not negative", MOST_EXCESS)
        return
    if gpu is not None and value > gpu.memory_bytes:
        limit, why = f"{gpu.memory_bytes / GIB:.4g} GiB ({gpu.name})", "no more is allocated than the card has"
        yield _found(memory, "card memory", shown, limit, why, value / gpu.memory_bytes)
    if memory.least_bytes and most < memory.least_bytes:
        limit, why = f"{memory.least_bytes / GIB:.4g} GiB", "the weights alone are larger"
        yield _found(memory, "weights", shown, limit, why, memory.least_bytes / max(most, 1.0))
    elif gpu is None and not memory.least_bytes:
        yield NotJudged(memory.place, _why_no_gpu(memory))
