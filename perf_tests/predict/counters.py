"""Exact counters of a case without running it: what its phase launches, computes, touches, saves and holds.

Counted on fake tensors by the rules of the case's device type; on a GPU that is known, cuBLAS's workspaces count too.
Not counted: the device's context, oneDNN's workspaces, what the caching allocator loses in blocks that it does not
split, and traffic beyond the minimum. `allocator_peaks` replays that allocator."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests_suite.perf_tests.cases.model_names import optimizer_that_runs, scales_loss
from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries
from perf_tests_suite.perf_tests.hardware.limits import KernelCost, KernelGroup
from perf_tests_suite.perf_tests.phases import FIRST_STEP
from perf_tests_suite.perf_tests.predict import recorded
from perf_tests_suite.perf_tests.predict.allocator import AllocatorPeaks, AllocatorReplay, SegmentBlock
from perf_tests_suite.perf_tests.predict.costs import FUSED_ATTENTION, LINEAR_CROSS_ENTROPY, MATRIX_PRODUCTS
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
    if not case.user_code:
        return _counters(case, _parts(case, all_layers), libraries, case.model_flops)
    from perf_tests_suite.perf_tests.predict import own_code  # late: only what is the user's own needs torch

    with own_code.guarded_count(case):
        parts = _parts(case, all_layers)
        # A prediction has no use for them, and they cost a fake run of their own in each batch.
        flops = None if recorded.is_in_use() else own_code.model_flops(case, _kernels(parts))
        return _counters(case, parts, libraries, flops)


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
    optimizer = optimizer_that_runs(case.optimizer or "default", case.device)
    precision = "fp16" if scales_loss(case.precision) else "fp32"
    # One count serves every case of a model and an optimizer.
    case = replace(case, phase="optimizer", precision=precision, optimizer=optimizer, batch_size=1)
    case = replace(case, zero_grad=DEFAULT_ZERO_GRAD, holds_former_pass=False)
    return updates(case if case.user_model else replace(case, attention="naive", checkpoint="none"))


def _kernels(parts: Iterable[_Part]) -> Counter[KernelCost]:
    """The timed ones."""
    return sum((part.counters.kernels for part in parts if part.is_timed), Counter[KernelCost]())


def _counters(case: Case, parts: Sequence[_Part], libraries: CudaLibraries | None, model_flops: int | None) -> Counters:
    kernels = _kernels(parts)
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
        model_flops=model_flops,
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


def needed_bytes(case: Case) -> int:
    """Peak of one round, everything resident included; of a case without exact counters what certainly exists."""
    counters, _ = counters_or_reason(case)
    return case.least_bytes if counters is None else counters.peak_bytes


WITH_EXECUTED_FLOPS = {*MATRIX_PRODUCTS, *FUSED_ATTENTION, LINEAR_CROSS_ENTROPY}
"""Operations whose FLOPs are counted as executed."""

_WORDS_OF_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear", "bilinear",
    "trilinear", "convolution", "conv1d", "conv2d", "conv3d", "attention", "lstm", "gru", "rnn", "cdist", "addr",
    "cholesky", "eig", "eigh", "geqrf", "inv", "inverse", "lstsq", "lu", "qr", "solve", "svd",
}  # fmt: skip
"""Words of an operation's name that say it multiplies matrices, or factorises one."""


_SMALL = ("aten", "prim", "prims")
"""Namespaces whose operations are known by name; any other may multiply."""


def products_outside(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the operations, by name, that multiply matrices, or might, and are not `known`."""

    def may_multiply(name: str) -> bool:
        namespace, _, operation = name.partition(".")
        return namespace not in _SMALL or not _WORDS_OF_PRODUCTS.isdisjoint(operation.split("_"))

    return sorted(filter(may_multiply, set(names) - set(known)))
