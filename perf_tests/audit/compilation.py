"""Compiled figures against eager ones: compilation that did nothing, and compilation that did too much."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from perf_tests.audit.attention_growth import LONG_SQUARE, square
from perf_tests.audit.figures import COMPILED, Timing
from perf_tests.audit.finding import SUSPICIOUS, Finding, found
from perf_tests.audit.groups import Table, figure, milliseconds, repository
from perf_tests.audit.plausibility import gpu_of, least_kernel_seconds
from perf_tests.limits.least_work import FLOAT32_BYTES, AttentionWork, ModelWork, Work
from perf_tests.phases import phase_named
from perf_tests.records.grouped import grouped

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
