"""Rules between amounts of memory, and against the model whose peak they are."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perf_tests.audit.figures import NO_PRECISION, OF_ADAMW, Memory, is_another_model, labelled_precision
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, found
from perf_tests.limits.datasheets import GIB, pieces_named
from perf_tests.limits.least_work import FLOAT32_BYTES, SIZES, ModelConfig, saved_bytes
from perf_tests.records.grouped import grouped

WEIGHTS_OF_ADAMW = 4
"""Times the bytes of the weights: they, their gradients and two moments."""
LONG_SEQUENCE = 8192
"""From here on the T x T matrices dominate attention's memory."""


def below_weights(figures: Sequence[Memory]) -> Iterator[Finding]:
    """A peak below the weights alone, or a training step's below AdamW's state."""
    for memory in figures:
        config, per_weight = _config(memory), _weight_bytes(memory)
        if config is None or per_weight is None or "peak" not in memory.mode:
            continue
        if memory.most_bytes is None or memory.most_bytes < 0:
            continue
        weights = per_weight * config.parameters
        trained = WEIGHTS_OF_ADAMW * weights
        if memory.most_bytes + memory.rounding_bytes < weights:
            why = f"the weights in {'fp32' if per_weight == FLOAT32_BYTES else '16 bits'} are larger"
            yield _found(IMPOSSIBLE, "weights", memory, weights, why, "another model, a wrong unit, or half weights")
        elif _is_step_of_adamw(memory) and memory.most_bytes < 0.98 * trained:
            why = "weights, gradients and AdamW's two moments are larger"
            cause = "no optimizer state was ever made, as when gradients are cleared before the update"
            yield _found(SUSPICIOUS, "optimizer state", memory, trained, why, cause)


def _is_step_of_adamw(memory: Memory) -> bool:
    return memory.mode.startswith("full_step_peak") and memory.optimizer in OF_ADAMW


def _config(memory: Memory) -> ModelConfig | None:
    """The known shape with this width and depth; None for a block alone or a shard of the state."""
    if memory.kind != "model" or "block" in memory.size or is_another_model(memory.size):
        return None
    if pieces_named(memory.gpu) > 1:
        return None
    shapes = (config for config in SIZES.values() if memory.d_ff in (None, config.d_ff))
    return next((c for c in shapes if (c.d_model, c.num_layers) == (memory.width, memory.layers)), None)


def _weight_bytes(memory: Memory) -> int | None:
    """Of one parameter, at least: half-precision weights unless the label says autocast. None for other formats."""
    if memory.precision_label in ("", NO_PRECISION):
        return FLOAT32_BYTES
    precision = labelled_precision(memory.precision_label)
    is_mixed = re.search("amp|autocast|mixed", memory.precision_label.casefold())
    return None if precision is None else FLOAT32_BYTES if is_mixed or precision in ("fp32", "tf32") else 2


def flat_over_context(figures: Sequence[Memory]) -> Iterator[Finding]:
    """A step's peak below weights, moments and the tensors that its forward pass saves."""
    for memory in figures:
        config = _config(memory)
        is_step = memory.mode == "full_step_peak" and _is_step_of_adamw(memory)
        is_step = is_step and not memory.is_compiled and memory.checkpoint == "none"
        if config is None or not is_step or memory.most_bytes is None or not memory.batch_size or not memory.length:
            continue
        if not memory.precision_label.startswith(("fp32", "tf32")):
            continue
        trained = WEIGHTS_OF_ADAMW * FLOAT32_BYTES * config.parameters
        needed = trained - FLOAT32_BYTES * config.parameters + saved_bytes(config, memory.batch_size, memory.length)
        if 0.98 * trained <= memory.most_bytes < 0.95 * needed:
            why = "weights, moments and what autograd keeps of an eager pass are larger at this context"
            cause = "a figure of another context, or one read off a plot"
            yield _found(SUSPICIOUS, "saved tensors", memory, needed, why, cause)


def saved_squares(figures: Sequence[Memory]) -> Iterator[Finding]:
    """Before its backward pass eager attention holds a whole number of T x T matrices beside its inputs."""
    after_inputs = [memory for memory in figures if memory.mode == "after_inputs"]
    inputs = {_attention_key(memory): memory.value_bytes for memory in after_inputs if memory.value_bytes is not None}
    for memory in figures:
        is_long = memory.length is not None and memory.length >= LONG_SEQUENCE
        if memory.kind != "attention" or memory.mode != "before_backward" or not is_long or memory.is_compiled:
            continue
        if memory.checkpoint != "none":
            continue
        if memory.value_bytes is None or not memory.batch_size or not memory.width or not memory.length:
            continue
        tensor = memory.batch_size * memory.length * memory.width * FLOAT32_BYTES
        square = memory.batch_size * memory.length**2 * FLOAT32_BYTES
        rest = memory.value_bytes - inputs.get(_attention_key(memory), 4 * tensor)
        count = rest / square
        if abs(count - round(count)) > 0.1 + 4 * tensor / square or round(count) not in (1, 2, 3):
            why = f"{count:.2f} matrices of {square / GIB:.3g} GiB are held, not 1, 2 or 3"
            cause = "another batch than stated, inputs that require no gradient, or a fused kernel"
            yield _found(SUSPICIOUS, "saved squares", memory, square, why, cause)


def _attention_key(memory: Memory) -> tuple[object, ...]:
    return (memory.series, memory.gpu, memory.width, memory.length, memory.batch_size, memory.is_compiled)


def shrinking_peaks(figures: Sequence[Memory]) -> Iterator[Finding]:
    """More memory for less context, all else alike."""
    peaks = [m for m in figures if m.kind == "model" and "peak" in m.mode and m.length and m.value_bytes]
    groups = grouped(peaks, _set_up)
    for group in groups.values():
        for shorter, longer in pairwise(sorted(group, key=lambda memory: memory.length or 0)):
            most, least = longer.most_bytes or 0, shorter.value_bytes or 0
            if longer.length != shorter.length and most < 0.97 * least:
                why = f"context {shorter.length} has more"
                yield _found(INCONSISTENT, "shrinking peak", longer, least, why, "two cells exchanged, or two set-ups")


def _set_up(memory: Memory) -> tuple[object, ...]:
    """All but the context."""
    labels = (memory.precision_label, memory.is_compiled, memory.checkpoint, memory.optimizer)
    return (memory.series, memory.gpu, memory.size, memory.batch_size, memory.mode, *labels)


def _found(verdict: str, rule: str, memory: Memory, limit_bytes: float, why: str, cause: str) -> Finding:
    figure, limit = f"{(memory.value_bytes or 0) / GIB:.4g} GiB", f"{limit_bytes / GIB:.4g} GiB"
    return found(verdict, rule, [memory], figure, limit, why, cause)


RULES = (below_weights, flat_over_context, saved_squares, shrinking_peaks)
