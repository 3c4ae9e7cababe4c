"""Exact counters of a case without running it: what its phase launches, computes, touches, saves and holds.

Counted on fake tensors by the rules of the case's device type; on a GPU that is known, cuBLAS's workspaces count too.
Not counted: the device's context, oneDNN's workspaces, what the caching allocator loses in blocks that it does not
split, and traffic beyond the minimum."""

import json
import math
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import model as model_package
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training, optimizer_that_runs
from model.transformer import MultiHeadAttention, TransformerLM, blocks_per_checkpoint
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests.hardware.datasheets import CudaLibraries
from perf_tests.hardware.limits import KernelCost, KernelGroup
from perf_tests.hardware.torch_private import DataDependentOutputException, FakeTensorMode, bound_fake_shapes, operator
from perf_tests.phases import FIRST_STEP, FORWARD_PASSES
from perf_tests.predict.costs import FUSED_ATTENTION, MATRIX_PRODUCTS, follow_rules
from perf_tests.predict.counting import (
    FORMER_PASS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    WORKSPACES,
    Counting,
    PartCounters,
    held_after,
)
from perf_tests.records.record import cache_folder
from perf_tests.records.store import write_whole
from perf_tests.user_code.attention import PLAYED, attention_named, is_own
from perf_tests.user_code.guard import OwnModelError, guarded
from perf_tests.user_code.model import OwnModel
from perf_tests.user_code.named import digest_of_suite
from perf_tests.user_code.optimizer import OwnOptimizer, own_optimizer

# Counters of a deep model, exactly, from those of two shallow ones that differ by one layer.
#
# The log of a model of L equal layers is a beginning, L times one layer, and an end. The logs of the two shallow
# models
# agree from the start through every layer of the shallower, and backwards from the end. In between, each layer
# differs
# from its neighbour by the same bytes, so the peak lies in the first layer or the last. For logs of another form,
# the
# common start and end do not cover the deeper log, and NotOfEqualLayersError is raised.


LogStep = list[tuple[str, int]]
"""Categories and bytes, negative when freed, of simultaneous changes."""

Key = TypeVar("Key", bound=Hashable)


class NotOfEqualLayersError(Exception):
    """The counters do not grow by the same amount with each layer; count all layers."""


def extrapolated(few: PartCounters, more: PartCounters, further_layers: int) -> PartCounters:
    """The counters of a model with `further_layers` more layers than `few`, which has one less than `more`."""
    few_steps, few_freed_last = _without_last_frees(_steps(few.changes))
    more_steps, more_freed_last = _without_last_frees(_steps(more.changes))
    from_start, from_end = _common_start(few_steps, more_steps), _common_start(few_steps[::-1], more_steps[::-1])
    if not _is_covered(more_steps, from_start, from_end):
        raise NotOfEqualLayersError("the logs of the two depths differ in the middle")
    at_start = _line(few.held_at_start, more.held_at_start, further_layers)
    at_end = _line(few.held_at_end, more.held_at_end, further_layers)
    before_last_frees = at_end + _line(few_freed_last, more_freed_last, further_layers)
    backwards = [[(category, -size) for category, size in step] for step in few_steps[::-1]]
    early = few_steps[: max(_heights(few_steps[:from_start]), key=lambda item: item[1])[0]]
    # Of steps backwards, the last of equal heights is the first that happened, which a full log would name.
    late = backwards[: max(_heights(backwards[:from_end]), key=lambda item: (item[1], item[0]))[0]]
    peaks = (held_after(chain(*early), at_start), held_after(chain(*late), before_last_frees))
    scalars = _line(
        Counter(saved=few.saved_bytes, reads=few.host_reads),
        Counter(saved=more.saved_bytes, reads=more.host_reads),
        further_layers,
    )
    return PartCounters(
        kernels=_line(few.kernels, more.kernels, further_layers),
        saved_bytes=scalars["saved"],
        held_at_start=at_start,
        held_at_peak=max(peaks, key=Counter.total),
        held_at_end=at_end,
        changes=(),
        allocations=_line(few.allocations, more.allocations, further_layers),
        host_reads=scalars["reads"],
    )


def _steps(changes: tuple[tuple[str, int], ...]) -> list[LogStep]:
    """Each allocation by itself, and simultaneous frees together: their order may depend on addresses."""
    steps: list[LogStep] = []
    for is_allocation, run in groupby(changes, key=lambda change: change[1] > 0):
        if is_allocation:
            steps += [[change] for change in run]
        else:
            freed: Counter[str] = Counter()
            for category, size in run:
                freed[category] += size
            steps.append(sorted(freed.items()))
    return steps


def _without_last_frees(steps: list[LogStep]) -> tuple[list[LogStep], Counter[str]]:
    """The steps up to the last allocation, and what is freed after it, which is of all layers and holds no peak."""
    if not steps or steps[-1][0][1] > 0:
        return steps, Counter()
    return steps[:-1], Counter({category: -size for category, size in steps[-1]})


def _is_covered(steps: list[LogStep], from_start: int, from_end: int) -> bool:
    """Whether common start and end contain each step, except one that only frees and so holds no peak."""
    if from_start + from_end >= len(steps):
        return True
    return from_start + from_end == len(steps) - 1 and all(size < 0 for _, size in steps[from_start])


def _line(few: Counter[Key], more: Counter[Key], further_layers: int) -> Counter[Key]:
    """Each count, extrapolated linearly."""
    line = Counter({key: few[key] + (more[key] - few[key]) * further_layers for key in {**few, **more}})
    if min(line.values(), default=0) < 0:
        raise NotOfEqualLayersError("a count would be negative")
    return +line


def _common_start(few: list[LogStep], more: list[LogStep]) -> int:
    return next((place for place, (one, other) in enumerate(zip(few, more, strict=False)) if one != other), len(few))


def _heights(steps: list[LogStep]) -> Iterator[tuple[int, int]]:
    """Bytes held, relative to the start, after each number of steps."""
    return enumerate(accumulate((sum(size for _, size in step) for step in steps), initial=0))


# Training steps run on fake tensors: each part is counted once, for every phase that contains it.


MODEL_SOURCE = Path(model_package.__file__).parent
HOST = torch.device("cpu")

Parts = dict[str, PartCounters]


@lru_cache(maxsize=256)
def passes(case: LanguageModelCase, all_layers: bool = False) -> Parts:
    """Counters of `inference`, or of `forward`, `loss` and `backward` for every phase that records a graph.

    Counted are a few layers and one more, from which all are extrapolated, unless `all_layers` are asked for. Blocks
    that share a checkpoint count as one layer; those left over follow them, as in the model. A model of the user's own
    is counted whole, because its layers are not known. Only weights and batch are held at the start; the logits are
    freed after the loss. The optimizer of `case` does not matter.
    """
    # The first layer of an inference differs, because the caller still holds its input.
    few = 1 if case.row.records_graph else 2
    blocks = max(1, blocks_per_checkpoint(case.checkpoint))
    layers, left_over = divmod(case.config.num_layers, blocks)
    if all_layers or layers <= few + 1 or case.own is not None:
        return count_passes(case)
    depths = (few * blocks + left_over, (few + 1) * blocks + left_over)
    less, more = (count_passes(replace(case, config=replace(case.config, num_layers=depth))) for depth in depths)
    try:
        return {name: extrapolated(less[name], more[name], layers - few) for name in less}
    except NotOfEqualLayersError:
        return count_passes(case)


def count_passes(case: LanguageModelCase) -> Parts:
    """The same, with every layer counted."""
    with playing(case.device, case.precision) as counting:
        training, tokens_BT, targets_BT = _model_and_batch(case, counting)
        if not case.row.records_graph:
            with counting.part("inference"), torch.no_grad():
                training.forward(tokens_BT)
            return counting.finished()
        with counting.part("forward"):
            logits_BTV = training.forward(tokens_BT)
        with counting.part("loss"):
            loss = training.loss(logits_BTV, targets_BT)
        del logits_BTV
        with counting.part("backward"):
            training.backward(loss)
        counting.register(gradients_of(training), GRADIENTS)
        return counting.finished()


def _model_and_batch(case: LanguageModelCase, counting: Counting) -> tuple[Training, Tensor, Tensor]:
    training = fake_training(
        case.config, case.attention, case.checkpoint, case.precision, "loop", case.device, case.own
    )
    counting.claim(PARAMETERS)
    counting.guesses_values = case.own is None and not is_own(case.attention)
    tokens_BT, targets_BT = (torch.zeros(case.batch_size, case.context_length, dtype=torch.int64) for _ in range(2))
    counting.claim(INPUTS)
    make_loss_scale(training)
    counting.claim(OPTIMIZER_STATE)
    return training, tokens_BT, targets_BT


@lru_cache(maxsize=256)
def updates(config: ModelConfig, optimizer: str, scales_loss: bool, device: str, own: OwnModel | None = None) -> Parts:
    """Counters of `first_update`, which makes the optimizer's state, and of `update`, which finds it there.

    Only weights, gradients and state are held. Raises OwnModelError for an optimizer of the user's that has none.
    """
    precision, own_one = "fp16" if scales_loss else "fp32", own_optimizer(optimizer)
    implementation = optimizer_that_runs("default", torch.device(device)) if own_one else optimizer
    with playing(device, precision) as counting:
        training = fake_training(config, "naive", "none", precision, implementation, device, own)
        counting.claim(PARAMETERS)
        if own_one is not None:
            own_one.put_into(training, training.model)
            _refuse_to_guess(counting, training, own_one)
        make_loss_scale(training)
        counting.claim(OPTIMIZER_STATE)
        for parameter in training.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        counting.claim(GRADIENTS)
        with counting.part("first_update"):
            training.update()
        counting.claim(OPTIMIZER_STATE)
        with counting.part("update"):
            training.update()
        if own_one is not None:
            with counting.part("next_update"):
                training.update()
        parts = counting.finished()
    if own_one is not None and parts["update"].kernels != parts.pop("next_update").kernels:
        raise OwnModelError(f"the second and the third step of {own_one.name} differ, so neither counts for all.")
    return parts


def _refuse_to_guess(counting: Counting, training: Training, own: OwnOptimizer) -> None:
    """Where the step reads a value or leaves its form to the device, counts would be of another step."""
    if counting.on_cuda and any(group.get("foreach", False) is None for group in training.optimizer.param_groups):
        raise OwnModelError(f"{own.name} lets PyTorch choose `foreach` by the device; set it to True or False.")

    def guess(whether: bool) -> Callable[..., None]:
        return lambda *_: setattr(counting, "guesses_values", whether)

    training.optimizer.register_step_pre_hook(guess(False))
    training.optimizer.register_step_post_hook(guess(True))


@lru_cache(maxsize=256)
def attention_passes(case: AttentionCase) -> Parts:
    """Counters of both phases of attention alone, by phase; query, key, value and output gradient are there."""
    with playing(case.device, case.precision) as counting:
        size = (case.batch_size, case.sequence_length, case.head_dim)
        leaves = [torch.zeros(size).requires_grad_() for _ in range(3)]
        gradient_BTK = torch.zeros(size)
        counting.claim(INPUTS)
        counting.guesses_values = not is_own(case.attention)
        attention = attention_named(case.attention, PLAYED).build()
        with counting.part("attention_forward"), PRECISIONS[case.precision].autocast(HOST):
            output_BTK = attention(*leaves)
        cast_gradient_BTK = gradient_BTK.to(output_BTK.dtype)
        with counting.part("attention_backward"):
            output_BTK.backward(cast_gradient_BTK)
        counting.register((leaf.grad for leaf in leaves if leaf.grad is not None), GRADIENTS)
        return counting.finished()


@contextmanager
def playing(device: str, precision: str) -> Iterator[Counting]:
    """Count fake tensors by the rules of a device type, "cuda" or "cpu", recording a graph.

    Raises RuntimeError inside autocast, whose weight copies would outlive the passes counted.
    """
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("counters cannot be taken inside torch.autocast; leave it first.")
    float32_rate = "fp32" if PRECISIONS[precision].float32_matmul_precision == "highest" else "tf32"
    try:
        with torch.enable_grad(), FakeTensorMode(), Counting(device, float32_rate, MODEL_SOURCE) as counting:
            yield counting
    finally:
        bound_fake_shapes()


def fake_training(
    config: ModelConfig,
    attention: str,
    checkpoint: str,
    precision: str,
    optimizer: str,
    device: str,
    own: OwnModel | None = None,
) -> Training:
    """A model in training on the host, to run by the rules of a device type; `own` in place of the suite's."""
    if own is not None:
        return Training(own.build(config), PRECISIONS[precision], HOST, optimizer)
    model = TransformerLM(config, attention_named(attention, PLAYED).build(), checkpoint)
    if device == "cuda" and checkpoint != "none":
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                follow_rules(module)
    return Training(model, PRECISIONS[precision], HOST, optimizer)


def make_loss_scale(training: Training) -> None:
    """A scaler makes its scale at its first use."""
    training.scaler.scale(torch.zeros(()))


def gradients_of(training: Training) -> list[Tensor]:
    return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]


# Model FLOPs of a user's model: PyTorch's FlopCounterMode over one step on tensors without content.
#
# Fused attention counts over the full T x T square, without the scores that its backward pass computes again, as
# the
# formula of our own model does; what a checkpoint inside the model recomputes counts as part of its backward pass.


_WORDS_OF_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear", "bilinear",
    "trilinear", "convolution", "conv1d", "conv2d", "conv3d", "attention", "lstm", "gru", "rnn", "cdist", "addr",
    "cholesky", "eig", "eigh", "geqrf", "inv", "inverse", "lstsq", "lu", "qr", "solve", "svd",
}  # fmt: skip
"""Words of an operation's name that say it multiplies matrices, or factorises one."""

Shape = Sequence[int]

_SMALL = ("aten", "prim", "prims")
"""Namespaces whose operations are known by name; any other may multiply."""


@lru_cache(maxsize=64)
def pass_flops(case: LanguageModelCase) -> dict[str, int]:
    """FLOPs of the `forward` and the `backward` pass of `case`, whatever its phase."""
    with playing(case.device, case.precision) as counting:
        training = fake_training(case.config, "own", "none", case.precision, "loop", case.device, case.own)
        counting.guesses_values = False
        tokens_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64)
        forward, backward = (FlopCounterMode(display=False, custom_mapping=_formulas()) for _ in range(2))
        with forward:
            logits_BTV = training.forward(tokens_BT)
        loss = training.loss(logits_BTV, tokens_BT)
        with backward:
            training.backward(loss)
        return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def products_outside(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Of operations by name, those that multiply matrices, or might, and are not `known`."""
    return sorted(name for name in set(names) - set(known) if _may_multiply(name))


def names_with_executed_flops() -> set[str]:
    return {*MATRIX_PRODUCTS, *FUSED_ATTENTION}


def names_with_model_flops() -> set[str]:
    return {str(packet) for packet in flop_registry} | names_with_executed_flops()


def _may_multiply(name: str) -> bool:
    namespace, _, operation = name.partition(".")
    return namespace not in _SMALL or not _WORDS_OF_PRODUCTS.isdisjoint(operation.split("_"))


def _formulas() -> dict[Any, Callable[..., int]]:
    attention = {
        operator(name.removeprefix("aten.")): _attention_formula(query, 2 if name.endswith("_backward") else 1)
        for name, (_, query, _) in FUSED_ATTENTION.items()
    }
    return {**attention, operator("convolution_backward"): _convolution_backward}


def _attention_formula(query: int, times: int) -> Callable[..., int]:
    """Scores and output, and backward a gradient for each factor of both; fewer heads of keys cost as many products."""

    def flops(*shapes: Any, **named: Any) -> int:
        *batch, queries, width = shapes[query]
        keys, value_width = shapes[query + 2][-2:]
        return times * 2 * math.prod(batch) * queries * keys * (width + value_width)

    return flops


def _convolution_backward(grad_out: Shape, x: Shape, weight: Shape, *others: Any, **_: Any) -> int:
    """The products of the forward pass, once for each gradient asked for, of input and weight.

    PyTorch's own formula leaves the groups out of the gradient of the weight.
    """
    _bias, _stride, _padding, _dilation, is_transposed, _output_padding, _groups, wanted = others[:8]
    batch, _channels, *positions = x if is_transposed else grad_out
    return sum(wanted[:2]) * 2 * batch * math.prod(positions) * math.prod(weight)


LARGEST_ALLOCATIONS = 8


class NotCountedError(ValueError):
    """The case has no exact counters; the message gives the reason."""


@dataclass(frozen=True)
class PartPeak:
    """Peak of one part of a round, everything resident included."""

    part: str
    is_timed: bool
    peak_bytes: int
    bytes_by_category: dict[str, int]


@dataclass(frozen=True)
class Allocation:
    """Equal blocks of memory, made at one place of a round."""

    bytes: int
    count: int
    operator: str
    place: str
    """`model/attention.py:48` or `backward pass`; empty where no line of the model made it."""


@dataclass(frozen=True)
class Counters:
    """One round of one case."""

    parameters: int | None
    model_flops: int | None
    """None for a phase without matrix products, and this and the next where an operation's are not known."""
    executed_flops: int | None
    matmul_calls: int
    kernel_launches: int
    bytes_touched: int
    saved_bytes: int
    """Saved for the backward pass by set-up and timed parts, each storage once, without parameters and inputs."""
    peak_bytes: int
    """Of a whole round, its set-up included, as an allocator reports it."""
    host_reads: int
    """Values that the host waits for in timed parts, as `.item()` does."""
    kernels: tuple[KernelGroup, ...]
    parts: tuple[PartPeak, ...]
    largest_allocations: tuple[Allocation, ...]

    @property
    def highest_part(self) -> PartPeak:
        """The part that reaches the peak of the round."""
        return max(self.parts, key=lambda part: part.peak_bytes)


@dataclass(frozen=True)
class _Part:
    """A part of a round, and what other parts hold meanwhile."""

    name: str
    counters: PartCounters
    is_timed: bool
    beside: Counter[str]


def counters_of(
    case: Case,
    *,
    all_layers: bool = False,
    libraries: CudaLibraries | None = None,
) -> Counters:
    """Counters of one measured round of `case`.

    `all_layers` counts every layer instead of a few. Without `libraries`, those of its card, a GPU is an imaginary one
    without workspaces. Raises NotCountedError.
    """
    reason = case.why_not_counted
    if reason is not None:
        raise NotCountedError(reason)
    if not case.own_code:
        return _counters(case, _with_workspaces(_parts(case, all_layers), libraries))
    what = f"{' with '.join(case.own_code)} cannot be played on tensors without content"
    try:
        with guarded(what):
            return _counters(case, _with_workspaces(_parts(case, all_layers), libraries))
    except OwnModelError as error:
        reads = isinstance(error.__cause__, DataDependentOutputException)
        raise NotCountedError(f"{what}: it reads a value of one." if reads else str(error)) from error


def _parts(case: Case, all_layers: bool) -> list[_Part]:
    if isinstance(case, LanguageModelCase):
        return _language_model_parts(case, all_layers)
    counted = attention_passes(case.in_phase("attention_forward"))
    timed = {f"attention_{part}": part in case.row.timed for part in case.row.parts}
    return [_Part(name, counted[name], timed[name], Counter()) for name in timed]


def update_flops(case: Case) -> int:
    """Of the products in one step of the user's optimizer; 0 without one, and for one that cannot be played."""
    if case.own_optimizer is None:
        return 0
    counters, _ = counters_or_reason(case.in_phase("optimizer"))
    return (counters.executed_flops or 0) if counters else 0


def _with_workspaces(parts: Sequence[_Part], libraries: CudaLibraries | None) -> list[_Part]:
    workspaces = Counter({WORKSPACES: libraries.workspace_bytes * _multiplying_threads(parts)} if libraries else {})
    return [replace(part, beside=part.beside + workspaces) for part in parts]


def _multiplying_threads(parts: Sequence[_Part]) -> int:
    """Host threads that launch matrix products in a round: autograd has its own for the backward pass."""
    multiplying = (part for part in parts if any(kernel.name in MATRIX_PRODUCTS for kernel in part.counters.kernels))
    return len({part.name.endswith("backward") for part in multiplying})


def counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """The case's exact counters, or None and one sentence why not."""
    try:
        return counters_of(case, libraries=libraries), None
    except NotCountedError as error:
        return None, str(error)
    except Exception as error:
        # An operation unknown to the counters, in another torch for example, must not cost the case its timing.
        return None, f"counting failed: {type(error).__name__}: {error}"


def _language_model_parts(case: LanguageModelCase, all_layers: bool) -> list[_Part]:
    names, timed, is_first_step = case.row.parts, case.row.timed, case.phase == FIRST_STEP
    # One count serves every phase of these passes.
    same = replace(case, zero_grad=DEFAULT_ZERO_GRAD, holds_former_pass=False)
    counted = passes(replace(same, phase=names[0], optimizer=None), all_layers)
    beside = {name: Counter[str]() for name in names}
    if case.row.holds_logits:
        beside["backward"] += counted["loss"].held_at_end - counted["backward"].held_at_start
    if case.holds_former_pass and not is_first_step:
        beside[names[0]] += Counter({FORMER_PASS: _former_pass_bytes(case, counted)})
    if "zero_grad" in timed and case.zero_grad == "after-forward" and not is_first_step:
        old_gradients = Counter({GRADIENTS: counted["backward"].held_at_end[GRADIENTS]})
        beside["forward"] += old_gradients
        beside["loss"] += old_gradients
    if case.updates:
        optimizer = optimizer_that_runs(case.optimizer or "default", torch.device(case.device))
        scales_loss = PRECISIONS[case.precision].scales_loss
        counted_updates = updates(case.config, optimizer, scales_loss, case.device, case.own)
        updating = counted_updates["first_update" if is_first_step else "update"]
        state = (updating.held_at_start - counted["forward"].held_at_start)[OPTIMIZER_STATE]
        for name in ("forward", "loss", "backward"):
            beside[name] += Counter({OPTIMIZER_STATE: state})
        inputs = Counter({INPUTS: counted["backward"].held_at_end[INPUTS]})
        step = counted["backward"].held_at_end + beside["backward"] - updating.held_at_start
        beside["optimizer"] = step if case.row.holds_logits else inputs
        counted = {**counted, "optimizer": updating}
    return [_Part(name, counted[name], name in timed, beside[name]) for name in names if name in counted]


def _former_pass_bytes(case: LanguageModelCase, counted: Parts) -> int:
    """Its logits, and where no backward pass freed it the graph behind them."""
    logits_bytes = case.tokens * case.config.vocab_size * (4 if case.precision in ("fp32", "tf32") else 2)
    graph_bytes = counted["forward"].saved_bytes if case.row.records_graph and not case.row.has_backward else 0
    return graph_bytes + logits_bytes


def _counters(case: Case, parts: Sequence[_Part]) -> Counters:
    kernels = sum((part.counters.kernels for part in parts if part.is_timed), Counter[KernelCost]())
    peaks = []
    for part in parts:
        held = part.counters.held_at_peak + part.beside
        peaks.append(PartPeak(part.name, part.is_timed, held.total(), dict(sorted(held.items()))))
    made = sum((part.counters.allocations for part in parts), Counter[tuple[int, str, str]]())
    largest = sorted(made.items(), key=lambda item: (-item[0][0], item[0][1:]))[:LARGEST_ALLOCATIONS]
    return Counters(
        parameters=case.parameters,
        model_flops=_model_flops(case, {kernel.name for kernel in kernels}),
        executed_flops=_executed_flops(case, kernels),
        matmul_calls=sum(calls for kernel, calls in kernels.items() if kernel.name in MATRIX_PRODUCTS),
        kernel_launches=kernels.total(),
        bytes_touched=sum(kernel.bytes * calls for kernel, calls in kernels.items()),
        saved_bytes=sum(part.counters.saved_bytes for part in parts if part.name != "inference"),
        peak_bytes=max(peak.peak_bytes for peak in peaks),
        host_reads=sum(part.counters.host_reads for part in parts if part.is_timed),
        kernels=tuple(KernelGroup(**vars(kernel), calls=calls) for kernel, calls in kernels.items()),
        parts=tuple(peaks),
        largest_allocations=tuple(Allocation(size, count, *made_by) for (size, *made_by), count in largest),
    )


def _model_flops(case: Case, names: Collection[str]) -> int | None:
    if not isinstance(case, LanguageModelCase) or case.own is None:
        return case.model_flops
    timed = [name.replace("inference", "forward") for name in case.row.timed if name in FORWARD_PASSES]
    if not timed or products_outside(names, names_with_model_flops()):
        return None
    flops = pass_flops(replace(case, phase="forward", optimizer=None))
    return sum(flops[name] for name in timed)


def _executed_flops(case: Case, kernels: Counter[KernelCost]) -> int | None:
    names = (kernel.name for kernel in kernels)
    if case.own_code and products_outside(names, names_with_executed_flops()):
        return None
    return sum(kernel.flops * calls for kernel, calls in kernels.items())


# The memory that a case needs, so that one that cannot fit is not tried.


def needed_bytes(case: Case) -> int:
    """Peak of one round, everything resident included; of a case without exact counters what certainly exists."""
    counters, _ = counters_or_reason(case)
    return case.least_bytes if counters is None else counters.peak_bytes


# Exact counters of the suite's own cases, kept between runs: counting the same case in the same code gives the
# same.
#
# A file holds one case, below a folder that is named for everything else that a count depends on: each source file
# of the
# suite, torch, Python, the processor's instructions, torch's environment. So a change of any of them counts again.
# What
# is the user's own (a model, an attention, an optimizer) is counted in every run, because its code may lie
# anywhere. The
# ledger, the proofs and `predict` always count. A run with another `XDG_CACHE_HOME` keeps its own.


MOST_FOLDERS = 8
"""Of as many states of the code; then the one that was written to longest ago is removed."""

_OF_TORCH = ("TORCH_", "PYTORCH_", "ATEN_")
"""How names of environment variables begin that torch reads; those of Inductor, which torch sets itself, change nothing
that is counted."""


def kept_counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """As `counters_or_reason`, read from the cache if it holds the case. One that has no counters is asked again."""
    if case.own_code:
        return counters_or_reason(case, libraries)
    path = _path(case, libraries)
    if path is None:
        return counters_or_reason(case, libraries)
    known = _read(path, _key(case, libraries))
    if known is not None:
        return known, None
    counters, reason = counters_or_reason(case, libraries)
    if counters is not None:
        with suppress(OSError):  # or the next run counts again
            _write(path, {"case": _key(case, libraries), "counters": asdict(counters)})
    return counters, reason


def environment() -> dict[str, Any]:
    """Everything that a count depends on beside its case. Raises OSError where the source cannot be read."""
    return {
        "source": digest_of_suite(),
        "torch": [torch.__version__, torch.version.git_version],
        "python": [sys.version, numpy.__version__],
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_OF_TORCH)},
    }


def _key(case: Case, libraries: CudaLibraries | None) -> str:
    return f"{case!r} {libraries!r}"


def _path(case: Case, libraries: CudaLibraries | None) -> Path | None:
    """None where the source cannot be read."""
    try:
        folder = _digest(json.dumps(environment()))
    except OSError:
        return None
    return cache_folder() / "counters" / folder / f"{_digest(_key(case, libraries))}.json"


@cache
def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def _read(path: Path, key: str) -> Counters | None:
    """None if the file is missing, broken or of another case."""
    try:
        data = json.loads(path.read_bytes())
        return _kept_counters(data["counters"]) if data["case"] == key else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _kept_counters(given: Mapping[str, Any]) -> Counters:
    """Raises TypeError or KeyError for data of another shape."""
    lists = {"kernels": KernelGroup, "parts": PartPeak, "largest_allocations": Allocation}
    return Counters(**{**given, **{name: tuple(kind(**row) for row in given[name]) for name, kind in lists.items()}})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _forget_the_oldest(path.parent.parent)
    write_whole(path, json.dumps(content, allow_nan=False).encode())


def _forget_the_oldest(folder: Path) -> None:
    """Another run may be removing the same ones, or reading one, which then counts again."""
    with suppress(OSError):
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-MOST_FOLDERS]:
            shutil.rmtree(path, ignore_errors=True)
