"""Exact counters of a case without running it: what its phase launches, computes, touches, saves and holds.

Counted on fake tensors by the rules of the case's device type; on a GPU that is known, cuBLAS's workspaces count too.
Not counted: the device's context, oneDNN's workspaces, what the caching allocator loses in blocks that it does not
split, and traffic beyond the minimum. `allocator_peaks` replays that allocator."""

import json
import math
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, TypeVar

import numpy
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import optimizer_that_runs
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries
from perf_tests_suite.perf_tests.hardware.limits import KernelCost, KernelGroup
from perf_tests_suite.perf_tests.hardware.torch_private import (
    DataDependentOutputException,
    chunked_cross_entropy,
    operator,
)
from perf_tests_suite.perf_tests.phases import FIRST_STEP, FORWARD_PASSES
from perf_tests_suite.perf_tests.predict.allocator import AllocatorPeaks, AllocatorReplay, SegmentBlock
from perf_tests_suite.perf_tests.predict.costs import (
    FUSED_ATTENTION,
    LINEAR_CROSS_ENTROPY,
    MATRIX_PRODUCTS,
    linear_cross_entropy_flops,
)
from perf_tests_suite.perf_tests.predict.fake_run import fake_run, fake_training
from perf_tests_suite.perf_tests.predict.parts import (
    FORMER_PASS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    WORKSPACES,
    PartCounters,
)
from perf_tests_suite.perf_tests.predict.rounds import attention_passes, passes, updates
from perf_tests_suite.perf_tests.records.record import Json, cache_folder
from perf_tests_suite.perf_tests.records.store import write_whole
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, guarded
from perf_tests_suite.perf_tests.user_code.named import digest_of_suite

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
    """The peak of a whole round, its set-up included, as an allocator reports it."""
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


def counters_of(case: Case, *, all_layers: bool = False, libraries: CudaLibraries | None = None) -> Counters:
    """Counters of one measured round of `case`.

    `all_layers` counts every layer instead of a few. Without `libraries`, those of its card, a GPU is an imaginary one
    without workspaces. Raises NotCountedError.
    """
    reason = case.why_not_counted
    if reason is not None:
        raise NotCountedError(reason)
    what = f"{' with '.join(case.user_code)} cannot be run on fake tensors"
    try:
        with guarded(what) if case.user_code else nullcontext():
            return _counters(case, _parts(case, all_layers), libraries)
    except UserCodeError as error:
        reads = isinstance(error.__cause__, DataDependentOutputException)
        sentence = f"{what}: it reads a value of one" if reads else str(error).rstrip(".")
        if "Expected inputs of BF16" in str(error.__cause__):  # of torch's grouped product
            sentence += (
                "; a model of transformers is counted with --model-arg experts_implementation=batched_mm, whose "
            )
            sentence += "peak is many times a dense model's"
        raise NotCountedError(f"{sentence}.") from error


STANDING = (PARAMETERS, INPUTS, OPTIMIZER_STATE, WORKSPACES, GRADIENTS)
"""What the end of a round leaves; a later one clears the gradients."""

MOST_ROUNDS = 6
"""The most that are replayed until the allocator's segments suit one."""

REPLAY_TOLERANCE = 0.001
"""The share by which the peak of a replayed round may miss the counted one; beyond, it is another round."""


@lru_cache(maxsize=256)
def allocator_peaks(
    case: Case, libraries: CudaLibraries | None = None, room_bytes: int | None = None
) -> AllocatorPeaks | None:
    """Replay a round of `case` by the rules of CUDA's caching allocator, after rounds that make its segments suit it.

    None on a CPU and where no replayed round has the counted peak. Raises DeviceFullError where a device with
    `room_bytes` is too small for one of the rounds, and NotCountedError as `counters_of` does.
    """
    counters = counters_of(case, libraries=libraries)
    if case.device != "cuda":
        return None
    parts = _parts(case, all_layers=False)
    rounds = [[(part.name, part.counters.log_before, part.counters.log) for part in parts]] * MOST_ROUNDS
    if case.phase == FIRST_STEP:
        del rounds[1:]
    elif isinstance(case, LanguageModelCase) and case.updates:
        rounds[0] = [*rounds[0][:-1], ("optimizer", (), _updates(case)["first_update"].log)]
    replay, former, peaks = AllocatorReplay(room_bytes), list[SegmentBlock](), AllocatorPeaks(0, 0, 0)
    replay.run(parts[0].counters.log_before)
    if libraries is not None:
        size = libraries.workspace_bytes
        replay.run(((WORKSPACES, size, 0),) * (counters.parts[0].bytes_by_category.get(WORKSPACES, 0) // size))
    clears_late = isinstance(case, LanguageModelCase) and case.zero_grad == "after-forward"
    clears_before = "backward" if clears_late and "zero_grad" in case.phase_row.timed else parts[0].name
    for one_round in rounds:
        replay.allocator.forget_peaks()
        left: list[SegmentBlock] = []
        for name, before, during in one_round:
            if name == clears_before:
                replay.free(replay.take((GRADIENTS,)))
            if name not in (parts[0].name, "optimizer"):
                left += replay.run(before, keeps_freed=case.phase_row.holds_logits)
            replay.run(during)
            if name == parts[0].name:
                replay.free(former)
        left += replay.take(STANDING, others=True)
        former = left if isinstance(case, LanguageModelCase) and case.holds_former_pass else []
        replay.free([] if former else left)
        if peaks == (peaks := replay.allocator.peaks()):
            break
    is_round = abs(peaks.requested_bytes / counters.peak_bytes - 1) <= REPLAY_TOLERANCE
    return peaks if is_round else None


def update_flops(case: Case) -> int:
    """Count the FLOPs of products in a step of the user's optimizer; 0 without one or where it cannot be counted."""
    if case.user_optimizer is None:
        return 0
    counters, _ = counters_or_reason(case.in_phase("optimizer"))
    return (counters.executed_flops or 0) if counters else 0


def counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """The case's exact counters, or None and one sentence why not."""
    try:
        return counters_of(case, libraries=libraries), None
    except NotCountedError as error:
        return None, str(error)
    except Exception as error:
        # An operation unknown to the counters, in another torch for example, must not cost the case its timing.
        return None, f"counting failed: {type(error).__name__}: {error}"


def _parts(case: Case, all_layers: bool) -> list[_Part]:
    names, timed, is_first_step = case.phase_row.parts, case.phase_row.timed, case.phase == FIRST_STEP
    if not isinstance(case, LanguageModelCase):
        alone = attention_passes(case.in_phase("attention_forward"))
        return [_Part(f"attention_{one}", alone[f"attention_{one}"], one in timed, Counter()) for one in names]
    # One count serves every phase of these passes.
    same = replace(case, zero_grad=DEFAULT_ZERO_GRAD, holds_former_pass=False)
    counted = passes(replace(same, phase=names[0], optimizer=None), all_layers)
    beside = {name: Counter[str]() for name in names}
    if case.phase_row.holds_logits:
        beside["backward"] += counted["loss"].live_at_end - counted["backward"].live_at_start
    if case.holds_former_pass and not is_first_step:
        # Its logits, unless it returned the loss, and where no backward pass freed it the graph behind them.
        logits_bytes = (
            0
            if case.computes_loss
            else case.tokens * case.config.vocab_size * (4 if case.precision in ("fp32", "tf32") else 2)
        )
        has_graph = case.phase_row.records_graph and not case.phase_row.has_backward
        graph_bytes = counted["forward"].saved_bytes if has_graph else 0
        beside[names[0]] += Counter({FORMER_PASS: graph_bytes + logits_bytes})
    if "zero_grad" in timed and case.zero_grad == "after-forward" and not is_first_step:
        old_gradients = Counter({GRADIENTS: counted["backward"].live_at_end[GRADIENTS]})
        beside["forward"] += old_gradients
        beside["loss"] += old_gradients
    if case.updates:
        updating = _updates(case)["first_update" if is_first_step else "update"]
        state = (updating.live_at_start - counted["forward"].live_at_start)[OPTIMIZER_STATE]
        for name in ("forward", "loss", "backward"):
            beside[name] += Counter({OPTIMIZER_STATE: state})
        inputs = Counter({INPUTS: counted["backward"].live_at_end[INPUTS]})
        step = counted["backward"].live_at_end + beside["backward"] - updating.live_at_start
        beside["optimizer"] = step if case.phase_row.holds_logits else inputs
        counted = {**counted, "optimizer": updating}
    return [_Part(name, counted[name], name in timed, beside[name]) for name in names if name in counted]


def _updates(case: LanguageModelCase) -> dict[str, PartCounters]:
    optimizer = optimizer_that_runs(case.optimizer or "default", torch.device(case.device))
    precision = "fp16" if PRECISIONS[case.precision].scales_loss else "fp32"
    # One count serves every case of a model and an optimizer.
    case = replace(case, phase="optimizer", precision=precision, optimizer=optimizer, batch_size=1)
    case = replace(case, zero_grad=DEFAULT_ZERO_GRAD, holds_former_pass=False)
    return updates(case if case.user_model else replace(case, attention="naive", checkpoint="none"))


def _counters(case: Case, parts: Sequence[_Part], libraries: CudaLibraries | None) -> Counters:
    kernels = sum((part.counters.kernels for part in parts if part.is_timed), Counter[KernelCost]())
    # Each host thread that launches matrix products has a workspace: autograd has its own for the backward pass.
    multiplying = [part for part in parts if any(kernel.name in MATRIX_PRODUCTS for kernel in part.counters.kernels)]
    threads = len({part.name.endswith("backward") for part in multiplying})
    workspaces = Counter({WORKSPACES: libraries.workspace_bytes * threads} if libraries else {})
    peaks = []
    for part in parts:
        held = part.counters.live_at_peak + part.beside + workspaces
        peaks.append(PartPeak(part.name, part.is_timed, held.total(), dict(sorted(held.items()))))
    made = sum((part.counters.allocations for part in parts), Counter[tuple[int, str, str]]())
    largest = sorted(made.items(), key=lambda item: (-item[0][0], item[0][1:]))[:LARGEST_ALLOCATIONS]
    names = {kernel.name for kernel in kernels}
    flops = sum(kernel.flops * calls for kernel, calls in kernels.items())
    return Counters(
        parameters=case.parameters,
        model_flops=_model_flops(case, names),
        executed_flops=None if case.user_code and products_outside(names, WITH_EXECUTED_FLOPS) else flops,
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
    if not isinstance(case, LanguageModelCase) or case.user_model is None:
        return case.model_flops
    timed = [name.replace("inference", "forward") for name in case.phase_row.timed if name in FORWARD_PASSES]
    if not timed or products_outside(names, {*map(str, flop_registry), *WITH_EXECUTED_FLOPS}):
        return None
    flops = pass_flops(replace(case, phase="forward", optimizer=None))
    return sum(flops[name] for name in timed)


def needed_bytes(case: Case) -> int:
    """Peak of one round, everything resident included; of a case without exact counters what certainly exists."""
    counters, _ = counters_or_reason(case)
    return case.least_bytes if counters is None else counters.peak_bytes


# Model FLOPs of a user's model: PyTorch's FlopCounterMode over one step on fake tensors.
#
# Fused attention counts over the full T x T square, without the scores that its backward pass computes again, as the
# formula of our own model does; what a checkpoint inside the model recomputes counts as part of its backward pass.


WITH_EXECUTED_FLOPS = {*MATRIX_PRODUCTS, *FUSED_ATTENTION, LINEAR_CROSS_ENTROPY}
"""Operations whose FLOPs are counted as executed."""

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
    formulas: dict[Any, Callable[..., int]] = {operator("convolution_backward"): _convolution_backward}
    for name, (_, query, _) in FUSED_ATTENTION.items():
        formulas[operator(name.removeprefix("aten."))] = partial(_attention, query, 1 + name.endswith("_backward"))
    if (chunked := chunked_cross_entropy()) is not None:
        formulas[chunked] = linear_cross_entropy_flops
    with fake_run(case.device, case.precision) as counting:
        training = fake_training(case)
        counting.guesses_values = False
        tokens_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64)
        forward, backward = (FlopCounterMode(display=False, custom_mapping=formulas) for _ in range(2))
        with forward:
            logits_BTV = training.forward(tokens_BT)
        loss = training.loss(logits_BTV, tokens_BT)
        with backward:
            training.backward(loss)
        return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def products_outside(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the operations, by name, that multiply matrices, or might, and are not `known`."""

    def may_multiply(name: str) -> bool:
        namespace, _, operation = name.partition(".")
        return namespace not in _SMALL or not _WORDS_OF_PRODUCTS.isdisjoint(operation.split("_"))

    return sorted(filter(may_multiply, set(names) - set(known)))


def _attention(query: int, times: int, *shapes: Any, **named: Any) -> int:
    """Scores and output, and backward a gradient for each factor of both; fewer heads of keys cost as many products."""
    *batch, queries, width = shapes[query]
    keys, value_width = shapes[query + 2][-2:]
    return times * 2 * math.prod(batch) * queries * keys * (width + value_width)


def _convolution_backward(grad_out: Shape, x: Shape, weight: Shape, *others: Any, **_: Any) -> int:
    """The products of the forward pass, once for each gradient asked for, of input and weight.

    PyTorch's own formula leaves the groups out of the gradient of the weight.
    """
    _bias, _stride, _padding, _dilation, is_transposed, _output_padding, _groups, wanted = others[:8]
    batch, _channels, *positions = x if is_transposed else grad_out
    return sum(wanted[:2]) * 2 * batch * math.prod(positions) * math.prod(weight)


# Exact counters of the suite's own cases, kept between runs: counting the same case in the same code gives the same.
#
# A file holds one case, below a folder that is named for everything else that a count depends on: each source file of
# the suite, torch, Python, the processor's instructions, torch's environment. So a change of any of them counts again.
# What is the user's own (a model, an attention, an optimizer) is counted in every run, because its code may lie
# anywhere. The ledger, the claims and `predict` always count. A run with another `XDG_CACHE_HOME` keeps its own.


MOST_FOLDERS = 8
"""Folders of as many states of the code; then the one that was written to longest ago is removed."""


_OF_TORCH = ("TORCH_", "PYTORCH_", "ATEN_")
"""How names of environment variables begin that torch reads; those of Inductor, which torch sets itself, change nothing
that is counted."""


def kept_counters_or_reason(case: Case, libraries: CudaLibraries | None = None) -> tuple[Counters | None, str | None]:
    """Read the counters from the cache if it holds the case, else count. A case without counters is asked again."""
    if case.user_code:
        return counters_or_reason(case, libraries)
    key, variables = f"{case!r} {libraries!r}", sorted(os.environ.items())
    try:
        depends_on = {
            "source": digest_of_suite(),
            "torch": [torch.__version__, torch.version.git_version],
            "python": [sys.version, numpy.__version__],
            "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "variables": {name: value for name, value in variables if name.startswith(_OF_TORCH)},
        }
    except OSError:  # the source cannot be read
        return counters_or_reason(case, libraries)
    state, name = (sha256(text.encode()).hexdigest()[:32] for text in (json.dumps(depends_on), key))
    file = f"counters/{state}/{name}.json"
    known = kept(file, key, "counters", _counters_of_json)
    if known is not None:
        return known, None
    counters, reason = counters_or_reason(case, libraries)
    if counters is not None:
        keep(file, key, "counters", asdict(counters))
        # Another run may be removing the same ones, or reading one, which then counts again.
        with suppress(OSError):
            by_age = sorted((cache_folder() / "counters").iterdir(), key=lambda folder: folder.stat().st_mtime)
            for old in by_age[:-MOST_FOLDERS]:
                shutil.rmtree(old, ignore_errors=True)
    return counters, reason


def _counters_of_json(given: Json) -> Counters:
    kinds = {"kernels": KernelGroup, "parts": PartPeak, "largest_allocations": Allocation}
    return Counters(**{**given, **{name: tuple(kind(**row) for row in given[name]) for name, kind in kinds.items()}})


Kept = TypeVar("Kept")


def kept(file: str, identity: Any, name: str, build: Callable[[Any], Kept]) -> Kept | None:
    """Return what `keep` wrote, built anew; None where the file is missing, broken or of another identity."""
    try:
        data = json.loads((cache_folder() / file).read_bytes())
        # As JSON gives it back: tuples are lists there.
        return build(data[name]) if data["identity"] == json.loads(json.dumps(identity)) else None
    # Anybody may have written the file; JSON nested too deep is a RecursionError.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def keep(file: str, identity: Any, name: str, values: Any) -> None:
    """Write what only an equal identity may read; where that fails, the next run finds it out again."""
    with suppress(OSError):
        path = cache_folder() / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"identity": identity, name: values}, allow_nan=False, indent=1).encode())
