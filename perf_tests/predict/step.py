"""Whether a training step or attention alone fits on a machine, how long it takes, and which checkpoint suits it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import FITS, FRAGMENTATION_SHARE, MAY_NOT_FIT, CudaLibraries, Room
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, KernelGroup, Part, PredictedTime, predicted_time
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, FIRST_STEP, LANGUAGE_MODEL, phases_of, place_of
from perf_tests_suite.perf_tests.predict.allocator import AllocatorPeaks, DeviceFullError
from perf_tests_suite.perf_tests.predict.counters import Allocation, Counters, allocator_peaks, counters_of
from perf_tests_suite.perf_tests.predict.parts import OPTIMIZER_STATE

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.predict.calibration import Calibration

CONTEXT_STEP = 64
"""Suggested contexts are multiples of this."""


SINGLE_REMEDIES = (
    ("optimizer", "fused", ("foreach",)), ("attention", "sdpa", ("naive",)),
    ("checkpoint", "attention", ("none",)), ("checkpoint", "block", ("none", "attention")),
)  # fmt: skip
"""What is tried where the step does not fit: a field of its case, the value, and those that it takes the place of."""

MOST_SEQUENCES = 4096
"""No larger batch is looked for."""


@dataclass(frozen=True)
class TargetMachine:
    """The machine of a prediction, which need not be this one."""

    name: str
    device: str
    """Device type, "cuda" or "cpu"."""
    room: Room
    ceilings: Ceilings
    has_published_times: bool
    """Whether the range of a predicted time is known from published ones."""
    libraries: CudaLibraries | None = None
    calibration: "Calibration | None" = None
    """What passes tell that were measured on it; None unless some were given."""


@dataclass(frozen=True)
class PredictedCase:
    """Peak and time of one phase."""

    case: Case
    peak_bytes: int
    peak_part: str
    """The part of the round that reaches the peak: `forward`, `loss`, `backward`, `optimizer`, ..."""
    bytes_by_category: dict[str, int]
    """Bytes that add up to the peak."""
    verdict: str
    time: PredictedTime
    is_range_known: bool
    """Whether the range of `time` is known, from published times of like cases."""
    largest_allocations: tuple[Allocation, ...]
    libraries: CudaLibraries | None
    without_calibration: PredictedTime | None = None
    """The same as `time` on any host of the card; None where nothing calibrates it."""
    by_do_bench: PredictedTime | None = None
    """The same as `time` of attention alone as `triton.testing.do_bench` times it, where launches run ahead."""

    @property
    def in_blocks(self) -> AllocatorPeaks | None:
        """The peaks of CUDA's caching allocator without a limit; None on a CPU and where they are not known."""
        return allocator_peaks(self.case, self.libraries)

    @property
    def fits(self) -> bool:
        return self.verdict == FITS

    @property
    def without_evidence(self) -> str | None:
        """What no published time is of, where that leaves the range of `time` unknown."""
        case = self.case
        if self.is_range_known:
            return None
        if case.device != "cuda":
            return "a CPU"
        if case.precision.endswith("-tensors"):
            return "tensors in 16 bits, but by do_bench"
        if case.user_model is not None:
            return "a model of your own"
        if not isinstance(case, LanguageModelCase) or case.attention != "naive":
            return f"{case.attention} attention"
        if case.user_optimizer is not None:
            return "an optimizer of your own"
        return f"AdamW {case.optimizer}{' alone' * (case.phase_row.main_parts == ('optimizer',))}"


@dataclass(frozen=True)
class StepPrediction:
    """Every phase of one training step and, if the whole does not fit, changes that were tried."""

    machine: TargetMachine
    phases: dict[str, PredictedCase]
    remedies: dict[str, PredictedCase]
    """The step under each change, as typed, cheapest first."""
    unavoidable_bytes: int
    """Parameters, gradients and optimizer state, which no batch, context or checkpoint changes."""
    largest_batch: int | None
    """The most sequences whose full step fits; None where those asked for do not."""
    first_step: PredictedCase
    """The step that makes the optimizer's state; its time is of no use, because nothing is warm yet."""

    @property
    def is_hopeless(self) -> bool:
        """Whether the unavoidable bytes alone do not fit."""
        return self.machine.room.verdict(self.unavoidable_bytes) != FITS

    @property
    def step(self) -> PredictedCase:
        return self.phases["full_step"]

    @property
    def fits(self) -> bool:
        return self.step.fits

    @property
    def peaks(self) -> dict[str, PredictedCase]:
        """What has a peak of its own: every phase, before the full step the first one where it differs."""
        differs = self.first_step.peak_bytes != self.step.peak_bytes
        phases = self.phases | ({FIRST_STEP: self.first_step} if differs else {})
        return dict(sorted(phases.items(), key=lambda item: place_of(item[0])))


@dataclass(frozen=True)
class AttentionPrediction:
    """Attention alone, cell by cell, smallest first."""

    machine: TargetMachine
    cells: tuple[PredictedCase, ...]

    @property
    def smallest_that_does_not_fit(self) -> PredictedCase | None:
        return min((cell for cell in self.cells if not cell.fits), key=lambda cell: cell.peak_bytes, default=None)

    @property
    def fits(self) -> bool:
        return self.smallest_that_does_not_fit is None


@dataclass(frozen=True)
class CheckpointChoice:
    """One training step under several checkpoints, in the order asked for."""

    machine: TargetMachine
    steps: tuple[PredictedCase, ...]

    @property
    def smallest(self) -> PredictedCase:
        """The smallest peak; of equal ones the fastest step."""
        return min(self.steps, key=lambda step: (step.peak_bytes, step.time.seconds))

    @property
    def fastest_that_fits(self) -> PredictedCase | None:
        """The fastest step that fits; of equally fast ones the smallest peak."""
        fitting = [step for step in self.steps if step.fits]
        return min(fitting, key=lambda step: (step.time.seconds, step.peak_bytes), default=None)

    @property
    def fits(self) -> bool:
        return self.fastest_that_fits is not None


def predict_step(case: LanguageModelCase, machine: TargetMachine) -> StepPrediction:
    """Predictions of all phases of `case`, whatever its own.

    Raises NotCountedError for a case without exact counters, and ValueError where the machine lacks the precision.
    """
    phases = {row.name: predict_case(replace(case, phase=row.name), machine) for row in phases_of(LANGUAGE_MODEL)}
    first_step = predict_case(replace(case, phase=FIRST_STEP), machine)
    weights, gradients = (limits.FLOAT32_BYTES * (count or 0) for count in (case.parameters, case.trainable_parameters))
    # AdamW keeps two moments in float32; the state of the user's optimizer is counted.
    counted_state = phases["full_step"].bytes_by_category.get(OPTIMIZER_STATE, 0)
    state = 2 * gradients if case.user_optimizer is None else counted_state
    prediction = StepPrediction(machine, phases, {}, weights + gradients + state, None, first_step)
    if prediction.fits:
        return replace(prediction, largest_batch=largest_batch(replace(case, phase="full_step"), machine))
    if prediction.is_hopeless:
        return prediction
    return replace(prediction, remedies=_remedies(replace(case, phase="full_step"), machine))


def largest_batch(case: LanguageModelCase, machine: TargetMachine) -> int:
    """The most sequences that fit, where the batch of `case` does; no more than MOST_SEQUENCES are tried.

    The peak is a line of the batch, a steeper one beyond some batch: where it meets the room, and what fragmentation
    takes before, lie close to the most.
    """

    def peak_bytes(batch_size: int) -> int:
        return counters_of(replace(case, batch_size=batch_size), libraries=machine.libraries).peak_bytes

    most = max(MOST_SEQUENCES, case.batch_size)
    low, high, guess = case.batch_size, most + 1, 2 * case.batch_size
    room = machine.room.bytes / (1 + FRAGMENTATION_SHARE)
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        slope = (peak_bytes(guess) - peak_bytes(low)) / (guess - low)
        if verdict_on(replace(case, batch_size=guess), machine) == FITS:
            low = guess
        else:
            high = guess
        guess = (low + high) // 2 if high <= most else low + int((room - peak_bytes(low)) / slope)
        room = machine.room.bytes
    return low


def predict_attention(cases: Iterable[AttentionCase], machine: TargetMachine) -> AttentionPrediction:
    """Predictions of attention alone, in the order of `cases`."""
    return AttentionPrediction(machine, tuple(predict_case(case, machine) for case in cases))


def choose_checkpoint(case: LanguageModelCase, checkpoints: Sequence[str], machine: TargetMachine) -> CheckpointChoice:
    """The full step of `case` under each of `checkpoints`; raises as `predict_step` does."""
    step = replace(case, phase="full_step")
    return CheckpointChoice(machine, tuple(predict_case(replace(step, checkpoint=one), machine) for one in checkpoints))


def worthwhile_checkpoints(num_layers: int) -> list[str]:
    """`none`, `attention`, `block` and, for each number of checkpoints, the fewest blocks that share one.

    Other block counts need no less: they keep as many inputs, recompute all blocks too and hold more of them at once.
    """
    shared = sorted({-(-num_layers // checkpoints) for checkpoints in range(1, num_layers + 1)})
    return ["none", "attention", "block", *(str(blocks) for blocks in shared if blocks > 1)]


def verdict_on(case: Case, machine: TargetMachine) -> str:
    """Return whether it fits, by the allocator's rules where they can be replayed, else by a share for fragmentation.

    A device that could not give all that the allocator would keep is replayed with its own room.
    """
    peak_bytes, room = counters_of(case, libraries=machine.libraries).peak_bytes, machine.room
    if peak_bytes > room.bytes or (in_blocks := allocator_peaks(case, machine.libraries)) is None:
        return room.verdict(peak_bytes)
    try:
        if in_blocks.reserved_bytes > room.bytes:
            allocator_peaks(case, machine.libraries, room.bytes)
    except DeviceFullError:
        return MAY_NOT_FIT
    return FITS


def predict_case(case: Case, machine: TargetMachine) -> PredictedCase:
    counters = counters_of(case, libraries=machine.libraries)
    highest = counters.highest_part
    parts, ceilings = parts_of(case, counters), machine.ceilings
    by_do_bench = None
    time = without = predicted_time(parts, ceilings)
    if machine.calibration is not None and case.phase_row.family == LANGUAGE_MODEL:
        time = predicted_time(parts, ceilings, spread=machine.calibration.spread(case.phase, case.precision))
    if case.phase_row.family == ATTENTION_ALONE and ceilings.launches_overlap:
        by_do_bench = predicted_time(parts, ceilings, limits.DO_BENCH_BYTES / ceilings.bytes_per_second)
    return PredictedCase(
        case=case,
        peak_bytes=counters.peak_bytes,
        peak_part=highest.part,
        bytes_by_category=highest.bytes_by_category,
        verdict=verdict_on(case, machine),
        time=time,
        without_calibration=None if time is without else without,
        # Of tensors in 16 bits there are times by do_bench alone.
        is_range_known=machine.has_published_times
        and evidence_of(case) is not None
        and not case.precision.endswith("-tensors"),
        largest_allocations=counters.largest_allocations,
        libraries=machine.libraries,
        by_do_bench=by_do_bench,
    )


def evidence_of(case: Case, by_do_bench: bool = False) -> str | None:
    """The class of published times that tells how often the range of this case's time holds; None without one."""
    if not isinstance(case, LanguageModelCase):
        name = {"naive": limits.ALONE, "softmax": limits.SOFTMAX_ALONE}.get(case.attention or "")
        return limits.BY_DO_BENCH[name] if by_do_bench and name else name
    if case.attention != "naive" or case.user_optimizer is not None:
        return None
    if case.phase_row.main_parts == ("optimizer",):
        return limits.UPDATES if case.optimizer == "loop" else None
    if case.phase_row.trains:
        return limits.FULL_STEPS if case.optimizer in ("loop", "foreach") else None
    return limits.WHOLE_MODELS


def parts_of(case: Case, counters: Counters) -> list[Part]:
    """The phase, split where another thread launches: a step is a forward pass, a backward pass and an update."""
    if len(case.phase_row.main_parts) < 2:
        return [_part(counters.kernels, kind_of_launches(case))]
    kinds = {"forward": limits.FORWARD, "backward": limits.BACKWARD, "optimizer": limits.LOOP}
    parts, loss = [], counted(counters.kernels)  # what remains of the step
    for name, kind in kinds.items():
        is_run = name in case.phase_row.timed and (name != "optimizer" or case.updates)
        kernels = counters_of(case.in_phase(name)).kernels if is_run else ()
        loss -= counted(kernels)
        parts.append((list(kernels), kind))
    parts[0][0].extend(replace(kernel, calls=calls) for kernel, calls in loss.items())
    return [_part(kernels, kind) for kernels, kind in parts]


def kind_of_launches(case: Case) -> str:
    """Return the kind of launches of a phase with one main part."""
    if case.phase_row.is_backward:
        return limits.BACKWARD
    if case.phase_row.main_parts == ("optimizer",):
        return limits.LOOP
    return limits.BARE if case.phase_row.family == ATTENTION_ALONE else limits.FORWARD


def _part(kernels: Iterable[KernelGroup], kind: str) -> Part:
    kernels = tuple(kernels)
    return Part(sum(kernel.calls for kernel in kernels), kernels, kind)


def counted(kernels: Iterable[KernelGroup]) -> Counter[KernelGroup]:
    """The number of calls of each kernel."""
    counts: Counter[KernelGroup] = Counter()
    for kernel in kernels:
        counts[replace(kernel, calls=1)] += kernel.calls
    return counts


def _remedies(case: LanguageModelCase, machine: TargetMachine) -> dict[str, PredictedCase]:
    """Changes that cost nothing first, then those that cost time, then those that change the training."""

    def changed(**fields: Any) -> PredictedCase:
        return predict_case(replace(case, **fields), machine)

    is_ours = case.user_model is None  # one of the user's has its own attention and checkpoints
    tried = {
        f"--{field} {value}": changed(**{field: value})
        for field, value, instead_of in SINGLE_REMEDIES
        if getattr(case, field) in instead_of and (is_ours or field == "optimizer")
    }
    is_enough = any(step.fits for step in tried.values())

    def try_largest(option: str, values: Sequence[int], step_at: Callable[[int], PredictedCase]) -> None:
        """Try the last of ascending values at which the step fits, if any."""
        if fitting := bisect_left(values, True, key=lambda value: not step_at(value).fits):
            best = values[fitting - 1]
            tried[f"{option} {best}"] = step_at(best)

    contexts = range(CONTEXT_STEP, case.context_length, CONTEXT_STEP)
    try_largest("--batch-size", range(1, case.batch_size), lambda size: changed(batch_size=size))
    try_largest("--context", contexts, lambda one: changed(config=case.config.at_context(one), context_length=one))
    if is_ours and not is_enough:
        fused = {"optimizer": "fused"} if case.user_optimizer is None else {}
        leanest = {**fused, "attention": "sdpa", "checkpoint": "block"}
        step = changed(**leanest)
        if step.case != case:
            tried[" ".join(f"--{field} {value}" for field, value in leanest.items())] = step
        if case.batch_size > 1 and not step.fits:
            tried["... and --batch-size 1"] = changed(**leanest, batch_size=1)
    return tried


# What a training loop chooses beside its model: how AdamW runs, when gradients are cleared, what it still holds.
OPTIMIZERS = ("loop", "foreach", "fused")


CLEARED_EARLY = "gradients are cleared before the forward pass (--zero-grad before-forward)"


FREED_EARLY = "the loop frees the outputs of the former pass (no --hold former-pass)"


@dataclass(frozen=True)
class Condition:
    """What the loop must do for the step to fit."""

    text: str
    otherwise: PredictedCase
    """The step in the other order; it fits where the one asked for does not."""


@dataclass(frozen=True)
class ContextPrediction:
    """One training step at several context lengths, in the order asked for."""

    machine: TargetMachine
    rows: tuple[tuple[PredictedCase, PredictedCase, tuple[Condition, ...]], ...]
    """Each step, its forward pass as training pays it, and what decides whether the step fits."""

    @property
    def fits(self) -> bool:
        return all(step.fits for step, _, _ in self.rows)


def optimizer_variants(case: LanguageModelCase, machine: TargetMachine) -> dict[str, PredictedCase]:
    """The step of `case` under each implementation of AdamW; none where the optimizer is the user's own."""
    if case.user_optimizer is not None:
        return {}
    return {name: predict_case(replace(case, optimizer=name), machine) for name in OPTIMIZERS}


def conditions_of(step: PredictedCase, machine: TargetMachine) -> tuple[Condition, ...]:
    """What decides whether the step fits: orders and holders for which the verdict is another."""
    case = step.case
    assert isinstance(case, LanguageModelCase)
    other_order = "after-forward" if case.zero_grad == DEFAULT_ZERO_GRAD else DEFAULT_ZERO_GRAD
    others = {
        CLEARED_EARLY: replace(case, zero_grad=other_order),
        FREED_EARLY: replace(case, holds_former_pass=not case.holds_former_pass),
    }
    if case.zero_grad == "before-step":  # nothing is updated, so there is nothing to compare with
        del others[CLEARED_EARLY]
    tried = [Condition(words, predict_case(other, machine)) for words, other in others.items()]
    return tuple(condition for condition in tried if condition.otherwise.fits != step.fits)


def predict_contexts(cases: list[LanguageModelCase], machine: TargetMachine) -> ContextPrediction:
    """The full step of each of `cases`; raises as `predict_step` does."""
    pairs = [[predict_case(replace(case, phase=of), machine) for of in ("full_step", "forward")] for case in cases]
    return ContextPrediction(machine, tuple((step, forward, conditions_of(step, machine)) for step, forward in pairs))
