"""Whether a training step or attention alone fits on a machine, how long it takes, and which checkpoint suits it."""

import json
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests.cases.sharing import Sharing
from perf_tests.hardware.clock import matmul_rate, memory_rate, strided_rate
from perf_tests.hardware.datasheets import FITS, FRAGMENTATION_SHARE, CudaLibraries, Gpu, Room
from perf_tests.hardware.device import Device, proc_values
from perf_tests.hardware.limits import (
    AFTERWARDS,
    BACKWARD,
    BARE,
    FLOAT32_BYTES,
    FORWARD,
    KERNEL_SECONDS,
    LAST_WAVE_ELEMENTS,
    SHARDED,
    Ceilings,
    KernelGroup,
    Message,
    ParameterShapes,
    Part,
    PredictedTime,
    kept_bytes,
    predicted_time,
    sent_bytes,
    step_messages,
    working_bytes,
)
from perf_tests.hardware.machine import OtherProcesses, stable_facts
from perf_tests.phases import ATTENTION_ALONE, FIRST_STEP, LANGUAGE_MODEL, phases_of, place_of
from perf_tests.predict.counters import Allocation, Counters, counters_of, counters_or_reason
from perf_tests.predict.counting import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perf_tests.predict.ledger import parameter_shapes
from perf_tests.records.record import Json, cache_folder
from perf_tests.records.store import write_whole

CONTEXT_STEP = 64
"""Suggested contexts are multiples of this."""


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


@dataclass(frozen=True)
class PredictedCase:
    """Peak and time of one phase."""

    case: Case
    peak_bytes: int
    peak_part: str
    """The part of the round that reaches the peak: `forward`, `loss`, `backward`, `optimizer`, ..."""
    bytes_by_category: dict[str, int]
    """Adds up to the peak."""
    verdict: str
    time: PredictedTime
    is_range_known: bool
    """Of `time`, from published times of like cases."""
    largest_allocations: tuple[Allocation, ...]

    @property
    def fits(self) -> bool:
        return self.verdict == FITS


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
        phases = dict(self.phases)
        if self.first_step.peak_bytes != self.step.peak_bytes:
            phases[FIRST_STEP] = self.first_step
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
        """Of equally fast ones the smallest peak."""
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
    unavoidable_bytes = _unavoidable_bytes(case, phases["full_step"])
    prediction = StepPrediction(machine, phases, {}, unavoidable_bytes, None, first_step)
    if prediction.fits:
        return replace(prediction, largest_batch=largest_batch(replace(case, phase="full_step"), machine))
    if prediction.is_hopeless:
        return prediction
    return replace(prediction, remedies=_remedies(replace(case, phase="full_step"), machine))


def _unavoidable_bytes(case: LanguageModelCase, step: PredictedCase) -> int:
    """AdamW keeps two moments in float32; the state of the user's optimizer is counted."""
    weights, gradients = (FLOAT32_BYTES * (count or 0) for count in (case.parameters, case.trainable_parameters))
    state = 2 * gradients if case.own_optimizer is None else step.bytes_by_category.get(OPTIMIZER_STATE, 0)
    return weights + gradients + state


def largest_batch(case: LanguageModelCase, machine: TargetMachine) -> int:
    """The most sequences that fit, where the batch of `case` does; no more than MOST_SEQUENCES are tried.

    The peak is a line of the batch, a steeper one beyond some batch: the line through two meets the room at the most.
    """

    def peak_bytes(batch_size: int) -> int:
        return counters_of(replace(case, batch_size=batch_size), libraries=machine.libraries).peak_bytes

    def fits(batch_size: int) -> bool:
        return machine.room.verdict(peak_bytes(batch_size)) == FITS

    room = machine.room.bytes / (1 + FRAGMENTATION_SHARE)
    most = max(MOST_SEQUENCES, case.batch_size)
    low, high = case.batch_size, 2 * case.batch_size
    for _ in range(8):
        slope = (peak_bytes(high) - peak_bytes(low)) / (high - low)
        guess = min(max(case.batch_size, int(low + (room - peak_bytes(low)) / slope)), most)
        if fits(guess) and (guess == most or not fits(guess + 1)):
            return guess
        low, high = (guess, guess + 1) if fits(guess) else (guess - 1, guess)
    batches = range(case.batch_size, 2 * high)
    best = largest_that_fits(batches, lambda size: predict_case(replace(case, batch_size=size), machine))
    return case.batch_size if best is None else best[0]


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


def predict_case(case: Case, machine: TargetMachine) -> PredictedCase:
    counters = counters_of(case, libraries=machine.libraries)
    highest = counters.highest_part
    time = predicted_time(parts_of(case, counters), machine.ceilings)
    return PredictedCase(
        case=case,
        peak_bytes=counters.peak_bytes,
        peak_part=highest.part,
        bytes_by_category=highest.bytes_by_category,
        verdict=machine.room.verdict(counters.peak_bytes),
        time=time,
        is_range_known=_is_range_known(case, machine),
        largest_allocations=counters.largest_allocations,
    )


def _is_range_known(case: Case, machine: TargetMachine) -> bool:
    """Published times are of unfused attention, in whole models and alone, and of AdamW."""
    return machine.has_published_times and case.attention == "naive" and case.own_optimizer is None


def parts_of(case: Case, counters: Counters) -> list[Part]:
    """The phase, split where another thread launches: a step is a forward pass, a backward pass and an update."""
    if len(case.row.main_parts) < 2:
        return [_part(counters.kernels, kind_of_launches(case))]
    forward, backward, update = (
        counters_of(case.in_phase(part)).kernels if part in case.row.timed and is_run else ()
        for part, is_run in (("forward", True), ("backward", True), ("optimizer", case.updates))
    )
    # The rest is the loss.
    loss = counted(counters.kernels) - counted(forward) - counted(backward) - counted(update)
    ahead = [*forward, *(replace(kernel, calls=calls) for kernel, calls in loss.items())]
    return [_part(ahead, FORWARD), _part(backward, BACKWARD), _part(update, BARE)]


def kind_of_launches(case: Case) -> str:
    """Of a phase with one main part."""
    if case.row.is_backward:
        return BACKWARD
    return BARE if case.row.family == ATTENTION_ALONE or case.row.main_parts == ("optimizer",) else FORWARD


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
    changes = [
        ("--optimizer fused", replace(case, optimizer="fused"), case.optimizer == "foreach"),
        ("--attention sdpa", replace(case, attention="sdpa"), case.attention == "naive"),
        ("--checkpoint attention", replace(case, checkpoint="attention"), case.checkpoint == "none"),
        ("--checkpoint block", replace(case, checkpoint="block"), case.checkpoint in ("none", "attention")),
    ]
    if case.own is not None:  # its attention and checkpoints are its own
        changes = changes[:1]
    tried = {change: predict_case(changed, machine) for change, changed, is_new in changes if is_new}
    is_enough = any(step.fits for step in tried.values())
    tried |= _smaller(case, machine)
    if case.own is not None:
        return tried
    fused = {"optimizer": "fused"} if case.own_optimizer is None else {}
    leanest: dict[str, Any] = {**fused, "attention": "sdpa", "checkpoint": "block"}
    if not is_enough:
        step = predict_case(replace(case, **leanest), machine)
        if step.case != case:
            tried[" ".join(f"--{option} {value}" for option, value in leanest.items())] = step
        if case.batch_size > 1 and not step.fits:
            tried["... and --batch-size 1"] = predict_case(replace(case, **leanest, batch_size=1), machine)
    return tried


def _smaller(case: LanguageModelCase, machine: TargetMachine) -> dict[str, PredictedCase]:
    """The largest batch and the longest context that fit, if any do."""

    def of_batch(size: int) -> PredictedCase:
        return predict_case(replace(case, batch_size=size), machine)

    def of_context(context: int) -> PredictedCase:
        config = case.config.at_context(context)
        return predict_case(replace(case, config=config, context_length=context), machine)

    batch = largest_that_fits(range(1, case.batch_size), of_batch)
    context = largest_that_fits(range(CONTEXT_STEP, case.context_length, CONTEXT_STEP), of_context)
    found = {"--batch-size": batch, "--context": context}
    return {f"{option} {best[0]}": best[1] for option, best in found.items() if best is not None}


def largest_that_fits(
    values: Sequence[int], predicted: Callable[[int], PredictedCase]
) -> tuple[int, PredictedCase] | None:
    """The last of ascending `values` whose prediction fits, by bisection; None if none does."""
    best = None
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        found = predicted(values[middle])
        if found.fits:
            best, low = (values[middle], found), middle + 1
        else:
            high = middle
    return best


# What is known about a case before it is measured: its exact counters and the least time that this machine needs.
#
# From a measured time, an `Expectation` derives further figures and detects an impossible one.


Count = Callable[[Case, CudaLibraries | None], tuple[Counters | None, str | None]]
"""How a case's exact counters are come by."""

WALL_OVER_DEVICE = 0.95
"""Wall time may be this fraction of device time, because events have a finite resolution."""

MEASURED_AGAIN = 5
"""How often a ceiling is measured again, a second each on a CPU, before a time is called impossible."""


@dataclass(frozen=True)
class Expectation:
    """Where `counters` is None, `counters_reason` says why. `least_flops` is a lower bound of what is executed."""

    case: Case
    counters: Counters | None
    counters_reason: str | None
    least_flops: Mapping[str, int]
    """By the precision of the products; empty where no bound is known."""
    ceilings: Ceilings | None
    gpu: Gpu | None

    def derived(self, median_seconds: float) -> Json:
        """Fields of `extra_info`, null where unknown."""
        predicted = self._roofline()
        roofline_seconds = predicted.kernel_seconds if predicted else None
        exact = ("executed_flops", "kernel_launches", "bytes_touched", "saved_bytes")
        return {
            **{name: getattr(self.counters, name, None) for name in exact},
            "predicted_peak_bytes": self.counters.peak_bytes if self.counters else None,
            "counters_reason": self.counters_reason,
            "roofline_seconds": roofline_seconds,
            "launching_seconds": predicted.launching_seconds if predicted else None,
            "roofline_fraction": roofline_seconds / median_seconds if roofline_seconds else None,
            "bound": predicted.bound if predicted else None,
            "memory_ceiling_gigabytes_per_second": self.ceilings.bytes_per_second / 1e9 if self.ceilings else None,
            "mfu": self._mfu(median_seconds),
            "sustained_matmul_tflops_per_second": self._sustained_teraflops(),
        }

    @property
    def model_flops(self) -> int | None:
        """Of one round; of a model of the user's own only counted ones, and None where they are not known."""
        if self.case.own is not None:
            return self.counters.model_flops if self.counters else None
        return self.case.model_flops

    def _roofline(self) -> PredictedTime | None:
        if self.counters is None or self.ceilings is None:
            return None
        kind = BACKWARD if self.case.row.timed[-1] == "backward" else FORWARD
        part = Part(self.counters.kernel_launches, self.counters.kernels, kind)
        # Nothing that is not measured on this machine belongs to its roofline.
        ceilings = replace(self.ceilings, kernel_seconds=0.0, last_wave_elements=0)
        try:
            return predicted_time([part], ceilings)
        except ValueError:  # the machine has no rate for this precision
            return None

    def _sustained_teraflops(self) -> float | None:
        """Of large products in the case's precision under load; `matmul_ceiling_tflops_per_second` is the burst."""
        rates = self.ceilings.matmul_flops_per_second if self.ceilings else {}
        rate = rates.get(self.case.precision.removesuffix("-unscaled"))
        return None if rate is None else rate / 1e12

    def _mfu(self, median_seconds: float) -> float | None:
        """Model FLOPs utilisation against the datasheet (Chowdhery et al., "PaLM", 2022, appendix B)."""
        peak = self.gpu.flops_per_second(self.case.precision) if self.gpu else None
        if peak is None or self.model_flops is None:
            return None
        return self.model_flops / median_seconds / peak

    def is_over_ceiling(self, median_seconds: float) -> bool:
        """Whether the products run faster than the best square one measured here; traffic may be served by caches."""
        rates = self.ceilings.highest_flops_per_second if self.ceilings else {}
        return sum(flops / rates[name] for name, flops in self.least_flops.items() if name in rates) > median_seconds

    def least_seconds(self) -> tuple[float, str]:
        """The time of the arithmetic alone at this machine's highest rate, and that rate in words."""
        rates, words = self._highest_rates()
        return sum(flops / rates[name] for name, flops in self.least_flops.items() if name in rates), words

    def _highest_rates(self) -> tuple[dict[str, float], str]:
        if self.gpu is not None:
            rated = {precision: self.gpu.flops_per_second(precision) for precision in self.least_flops}
            margin = self.gpu.clock_margin
            return {name: rate * margin for name, rate in rated.items() if rate}, f"the datasheet of {self.gpu.name}"
        if self.ceilings is None:
            return {}, ""
        measured = self.ceilings.highest_flops_per_second
        words = f"{MEASURED_CEILING_MARGIN:g} x the best square product of this machine"
        return {name: rate * MEASURED_CEILING_MARGIN for name, rate in measured.items()}, words


def expect(
    case: Case,
    ceilings: Ceilings | None,
    gpu: Gpu | None,
    libraries: CudaLibraries | None = None,
    count: Count = counters_or_reason,
) -> Expectation:
    """Count the case on fake tensors; nothing runs on the device."""
    counters, reason = count(case, libraries)
    return Expectation(case, counters, reason, _least_flops(case, counters), ceilings, gpu)


def _least_flops(case: Case, counters: Counters | None) -> dict[str, int]:
    """Executed FLOPs by precision; of uncounted cases what no compiler can skip, nothing of a user's model."""
    if counters is not None:
        by_rate: dict[str, int] = defaultdict(int)
        for kernel in counters.kernels:
            if kernel.flops:
                by_rate[kernel.rate] += kernel.calls * kernel.flops
        return dict(by_rate)
    flops = case.work.least_flops(case.phase, leaves_masked_half=True) if case.work else None
    return {case.precision.removesuffix("-unscaled"): flops} if flops else {}


def why_impossible(
    expectation: Expectation,
    rounds_seconds: list[float],
    device_seconds: list[float],
    measure_again: Callable[[str], float] | None,
) -> str | None:
    """None for a possible time, else one sentence why it is impossible, with the likeliest cause.

    Before a time is called impossible by measured ceilings, `measure_again` measures the matrix product rate of a
    precision once more: a neighbour may have slowed the first measurement.
    """
    seconds = median(rounds_seconds)
    if device_seconds and seconds < WALL_OVER_DEVICE * median(device_seconds):
        return (
            f"wall time is {seconds * 1e3:.4g} ms and device time {median(device_seconds) * 1e3:.4g} ms: the clock was "
            "read before the device finished. Most likely a synchronisation is missing."
        )
    least_seconds, rate = expectation.least_seconds()
    if seconds >= least_seconds:
        return None
    if expectation.gpu is None and measure_again is not None and expectation.ceilings is not None:
        for _ in range(MEASURED_AGAIN):
            expectation = _with_rates_of_now(expectation, measure_again)
            least_seconds, rate = expectation.least_seconds()
            if seconds >= least_seconds:
                return None
    flops = sum(expectation.least_flops.values())
    rate_reached = flops / seconds if seconds > 0 else float("inf")
    return (
        f"{seconds * 1e3:.4g} ms for {flops / 1e12:.4g} TFLOP is {rate_reached / 1e12:.4g} TFLOP/s; by {rate}, "
        f"{expectation.case.precision} takes at least {least_seconds * 1e3:.4g} ms. "
        f"Most likely {_likely_cause(expectation, rate_reached)}."
    )


def _with_rates_of_now(expectation: Expectation, measure_again: Callable[[str], float]) -> Expectation:
    assert expectation.ceilings is not None
    known = expectation.ceilings.highest_flops_per_second
    rates = {name: max(rate, measure_again(name)) for name, rate in known.items() if name in expectation.least_flops}
    return replace(expectation, ceilings=replace(expectation.ceilings, burst_flops_per_second={**known, **rates}))


def _likely_cause(expectation: Expectation, rate: float) -> str:
    tf32 = expectation.gpu.rates.get("tf32") if expectation.gpu else None
    if expectation.case.precision == "fp32" and tf32 is not None and rate <= tf32:
        return "TF32 products under the name fp32, or a missing synchronisation"
    return "a missing synchronisation, or less work than the case states: a smaller batch or context"


# What a training loop chooses beside its model: how AdamW runs, when gradients are cleared, what it still holds.


OPTIMIZERS = ("loop", "foreach", "fused")

CLEARED_EARLY = "gradients are cleared before the forward pass (--zero-grad before-forward)"
FREED_EARLY = "the loop frees the outputs of the former pass (no --hold former-pass)"


@dataclass(frozen=True)
class Condition:
    """What the loop must do for the step to fit."""

    words: str
    otherwise: PredictedCase
    """The step in the other order; it fits where the one asked for does not."""


@dataclass(frozen=True)
class ContextPrediction:
    """One training step at several context lengths, in the order asked for."""

    machine: TargetMachine
    steps: tuple[PredictedCase, ...]
    forwards: tuple[PredictedCase, ...]
    """The forward pass of each, as training pays it."""
    conditions: tuple[tuple[Condition, ...], ...]

    @property
    def fits(self) -> bool:
        return all(step.fits for step in self.steps)


def optimizer_variants(case: LanguageModelCase, machine: TargetMachine) -> dict[str, PredictedCase]:
    """The step of `case` under each implementation of AdamW; none where the optimizer is the user's own."""
    if case.own_optimizer is not None:
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
    steps = tuple(predict_case(replace(case, phase="full_step"), machine) for case in cases)
    forwards = tuple(predict_case(replace(case, phase="forward"), machine) for case in cases)
    return ContextPrediction(machine, steps, forwards, tuple(conditions_of(step, machine) for step in steps))


# Whether a training step fits when ranks share it, what they send, and how much of that a step waits for.


MOST_RANKS = 65536
"""No larger world is looked for."""


@dataclass(frozen=True)
class RankPrediction:
    """One rank of many: that with the most memory, and the mean of what ranks send."""

    machine: TargetMachine
    sharing: Sharing
    bytes_per_second: float | None
    """What one rank can send, in one direction; None where it is not known."""
    alone: PredictedCase
    """The same step on one device."""
    peak_part: str
    bytes_by_category: dict[str, int]
    """Adds up to the peak."""
    messages: tuple[Message, ...]
    exposed_seconds: tuple[float, float] | None
    """What a step waits for: with all overlap that the variant has, and with none. Without an interconnect, None."""
    smallest_world: int | None
    """The fewest ranks among whom the step fits; None where no number of them helps."""

    @property
    def peak_bytes(self) -> int:
        return sum(self.bytes_by_category.values())

    @property
    def verdict(self) -> str:
        return self.machine.room.verdict(self.peak_bytes)

    @property
    def sent_bytes(self) -> int:
        return round(sent_bytes(self.messages, self.sharing.world))

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Of a step: the range on one device and the exposed communication."""
        if self.exposed_seconds is None:
            return None
        return (self.alone.time.low_seconds + self.exposed_seconds[0],
                self.alone.time.high_seconds + self.exposed_seconds[1])  # fmt: skip


def rate(text: str) -> float:
    """`450GB/s` in bytes per second. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)GB/s", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--interconnect {text!r} is no rate; write what one rank can send as 450GB/s.")
    return float(found[1]) * 1e9


def predict_ranks(
    case: LanguageModelCase, machine: TargetMachine, sharing: Sharing, bytes_per_second: float | None = None
) -> RankPrediction:
    """One rank's share of the full step of `case`, whose batch is each rank's own. Raises as `predict_case` does."""
    step = predict_case(replace(case, phase="full_step"), machine)
    shapes = parameter_shapes(case.config)
    part, held = _peak(step, machine, shapes, sharing)
    way, reshard = sharing.parallel, not sharing.keeps_gathered
    messages = tuple(step_messages(way, shapes, sharing.world, sharing.bucket_mb, reshard))
    return RankPrediction(
        machine, sharing, bytes_per_second, step, part, held, messages,
        _exposed_seconds(case, machine, sharing, messages, bytes_per_second),
        smallest_world(step, machine, shapes, sharing),
    )  # fmt: skip


def _peak(
    step: PredictedCase, machine: TargetMachine, shapes: ParameterShapes, sharing: Sharing
) -> tuple[str, dict[str, int]]:
    """The part with the largest peak on a rank, and its bytes by category; buffers of the model count as parameters."""
    way, reshard = sharing.parallel, not sharing.keeps_gathered
    kept = dict(zip((PARAMETERS, GRADIENTS, OPTIMIZER_STATE), kept_bytes(way, shapes, sharing.world), strict=True))
    share = kept[OPTIMIZER_STATE] / (2 * shapes.bytes)
    by_part = {}
    for part in counters_of(step.case, libraries=machine.libraries).parts:
        held = {name: min(kept.get(name, size), size) for name, size in part.bytes_by_category.items()}
        held[PARAMETERS] = kept[PARAMETERS] + part.bytes_by_category[PARAMETERS] - shapes.bytes
        if part.part == "optimizer":
            held["temporaries"] = round(held.get("temporaries", 0) * share)
        by_part[part.part] = held | working_bytes(way, shapes, part.part, reshard)
    highest = max(by_part, key=lambda name: sum(by_part[name].values()))
    return highest, by_part[highest]


def smallest_world(
    step: PredictedCase, machine: TargetMachine, shapes: ParameterShapes, sharing: Sharing
) -> int | None:
    """The fewest ranks that fit; what a rank keeps does not grow with their number."""

    def fits(world: int) -> bool:
        held = _peak(step, machine, shapes, replace(sharing, world=world))[1]
        return machine.room.verdict(sum(held.values())) == FITS

    too_few, enough = 0, 1
    while not fits(enough):
        too_few, enough = enough, 2 * enough
        if enough > MOST_RANKS:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return enough


def _exposed_seconds(
    case: LanguageModelCase,
    machine: TargetMachine,
    sharing: Sharing,
    messages: tuple[Message, ...],
    bytes_per_second: float | None,
) -> tuple[float, float] | None:
    """Sums are added while the backward pass runs, weights gathered while either pass does; the last message waits.

    Li et al., arXiv:2006.15704, section 3.2.3: what remains is the larger of the last bucket and what does not overlap.
    """
    if bytes_per_second is None:
        return None
    by_kind = {
        kind: float(sent_bytes([one for one in messages if one.kind == kind], sharing.world)) / bytes_per_second
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    }
    everything = sum(by_kind.values())
    if sharing.parallel in AFTERWARDS:
        return everything, everything
    backward, forward = (
        predict_case(replace(case, phase=phase), machine).time.low_seconds for phase in ("backward", "forward")
    )
    if sharing.parallel in SHARDED:
        first = next(one for one in messages if one.kind == "all_gather")
        last = next(one for one in messages if one.kind == "reduce_scatter")  # of what is outside of blocks
        waits = float(sent_bytes([first, last], sharing.world)) / bytes_per_second + by_kind["all_reduce"]
        return max(waits, everything - forward - backward), everything
    last = [one for one in messages if one.kind == "all_reduce"][-1]
    waits = float(last.sent_bytes(sharing.world)) / bytes_per_second
    overlapped = max(waits, by_kind["all_reduce"] - backward)
    return overlapped + by_kind["broadcast"], everything


# The ceilings of this machine, measured once and then read from the user's cache, which all checkouts share.


FORMAT_VERSION = 3

MOST_OTHER_CORES = 0.5
"""That other processes may use, on average, while ceilings are measured that are to be kept."""

MEASURED_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

NARROW = ModelConfig(d_model=16, d_ff=16, num_layers=8, num_heads=2, vocab_size=16, context_length=4)
_ROUNDS = 20


def ceilings_here(device: Device) -> Ceilings:
    """This machine's ceilings: from the cache if it holds them, else measured in a few seconds and cached."""
    return kept_ceilings(device) or ceilings_of_now(device)


def kept_ceilings(device: Device) -> Ceilings | None:
    """From the cache; None where it is broken, of another machine, or empty."""
    return read_cached(cache_path(device.torch_device), machine_identity(device.torch_device))


def ceilings_of_now(device: Device) -> Ceilings:
    """Measured in a few seconds, and cached where that is allowed.

    Ceilings of a busy machine are not, or every later prediction would be too slow.
    """
    identity = machine_identity(device.torch_device)
    path = cache_path(device.torch_device)
    others = OtherProcesses()
    measured = measured_ceilings(device)
    if others.cores() > MOST_OTHER_CORES:
        source = "measured now on a busy machine and not cached; measure again on an idle one"
        return replace(measured, source=source)
    with suppress(OSError):  # or the next call measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"identity": identity, "ceilings": asdict(measured)}
        write_whole(path, json.dumps(content, allow_nan=False, indent=1).encode())
    return measured


def measured_ceilings(device: Device) -> Ceilings:
    """Measured now, in a few seconds, and memory given back."""
    precisions = [name for name in MEASURED_PRECISIONS if PRECISIONS[name].why_unsupported(device.torch_device) is None]
    rates = {name: matmul_rate(PRECISIONS[name], device) for name in precisions}
    PRECISIONS["fp32"].apply()
    bytes_per_second = memory_rate(device).sustained
    forward, backward, bare = launch_seconds(device)
    on_gpu = device.torch_device.type != "cpu"
    device.release_memory()
    return Ceilings(
        name=f"this {device.torch_device.type}",
        matmul_flops_per_second={name: rate.sustained for name, rate in rates.items()},
        bytes_per_second=bytes_per_second,
        launch_seconds=forward,
        backward_launch_seconds=backward,
        bare_launch_seconds=bare,
        launches_overlap=on_gpu,
        source=f"measured on this machine on {datetime.now(UTC):%Y-%m-%d}, cached in {cache_path(device.torch_device)}",
        burst_flops_per_second={name: rate.burst for name, rate in rates.items()},
        strided_elements_per_second=strided_rate(device).sustained if on_gpu else None,
        last_wave_elements=LAST_WAVE_ELEMENTS if on_gpu else 0,
        kernel_seconds=KERNEL_SECONDS if on_gpu else 0.0,
    )


def machine_identity(device: torch.device) -> dict[str, Any]:
    """Everything that must be equal for earlier ceilings to hold."""
    facts = stable_facts(device, torch.get_num_threads())
    cpu = next(iter(proc_values("cpuinfo", "model name")), platform.processor())
    return {**facts, "host": platform.node(), "cpu": cpu, "format_version": FORMAT_VERSION}


def cache_path(device: torch.device) -> Path:
    return cache_folder() / f"ceilings-{device.type}.json"


def read_cached(path: Path, identity: Mapping[str, Any]) -> Ceilings | None:
    """The ceilings in the file; None if it is broken or of another machine."""
    try:
        data = json.loads(path.read_bytes())
        if data["identity"] != json.loads(json.dumps(identity)):
            return None
        given = data["ceilings"]
        found = Ceilings(**{field.name: given[field.name] for field in fields(Ceilings)})
        return found if "fp32" in found.matmul_flops_per_second else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def launch_seconds(device: Device) -> tuple[float, float, float]:
    """Host seconds per launch of an eager forward pass, of an eager backward pass and of AdamW as a loop.

    The model is so narrow that its kernels take no time. A chain of bare operations would understate the overhead:
    between two launches of a model run its modules, views and autograd's bookkeeping.
    """
    model = TransformerLM(NARROW, ATTENTION["naive"].build()).to(device.torch_device)
    training = Training(model, PRECISIONS["fp32"], device.torch_device, "loop")
    tokens_BT = torch.zeros(1, NARROW.context_length, dtype=torch.int64, device=device.torch_device)
    forward_seconds, backward_seconds, update_seconds = [], [], []
    for _ in range(_ROUNDS):
        training.clear_gradients()
        device.synchronize()
        start = time.perf_counter()
        output = training.forward(tokens_BT).sum()
        device.synchronize()
        forward_end = time.perf_counter()
        training.backward(output)
        device.synchronize()
        backward_end = time.perf_counter()
        training.update()
        device.synchronize()
        update_seconds.append(time.perf_counter() - backward_end)
        forward_seconds.append(forward_end - start)
        backward_seconds.append(backward_end - forward_end)
    case = LanguageModelCase(
        phase="forward", size="narrow", config=NARROW, context_length=NARROW.context_length, batch_size=1,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer=None,
        device=device.torch_device.type, model="ours",
    )  # fmt: skip
    forward, backward = (counters_of(replace(case, phase=phase)) for phase in ("forward", "backward"))
    update = counters_of(replace(case, phase="optimizer", optimizer="loop"))
    return (
        min(forward_seconds) / forward.kernel_launches,
        min(backward_seconds) / backward.kernel_launches,
        min(update_seconds) / update.kernel_launches,
    )
