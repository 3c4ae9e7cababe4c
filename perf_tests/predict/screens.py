"""Predictions as lines for a terminal and as JSON: a step, several contexts or checkpoints, attention alone."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.model_names import tensors_and_autocast
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import FLASH, FRAGMENTATION_SHARE, Room, rate_name
from perf_tests_suite.perf_tests.phases import label_of, optimizer_label
from perf_tests_suite.perf_tests.predict.calibration import CALIBRATED_WORDS
from perf_tests_suite.perf_tests.predict.costs import LARGEST_INDEX
from perf_tests_suite.perf_tests.predict.parts import FORMER_PASS, WORKSPACES
from perf_tests_suite.perf_tests.predict.ranks import RankPrediction
from perf_tests_suite.perf_tests.predict.step import (
    MOST_SEQUENCES,
    AttentionPrediction,
    CheckpointChoice,
    Condition,
    ContextPrediction,
    PredictedCase,
    StepPrediction,
    TargetMachine,
    evidence_of,
)
from perf_tests_suite.perf_tests.records.format import DASH, duration, duration_range, table
from perf_tests_suite.perf_tests.records.record import Json

# A prediction as text for a terminal and as JSON: pure functions of the data.
CATEGORIES = (
    "parameters", "gradients", "optimizer state", "activations", "autocast's weight copies", "temporaries", "inputs",
    WORKSPACES, FORMER_PASS,
)  # fmt: skip


NOT_KNOWN, WIDEST_RANGE = "not known", 10
"""What is said of a range whose upper end is more than so many times its lower one."""


def range_text(low_seconds: float, high_seconds: float) -> str:
    return duration_range(low_seconds, high_seconds) if high_seconds <= WIDEST_RANGE * low_seconds else NOT_KNOWN


FIGURES: dict[str, Callable[[PredictedCase], str]] = {
    "peak": lambda cell: gb(cell.peak_bytes),
    "reached in": lambda cell: cell.peak_part,
    "verdict": lambda cell: cell.verdict,
    "predicted": lambda cell: duration(cell.time.seconds) if cell.time.seconds else "0 s",
    "full step": lambda cell: duration(cell.time.seconds),
    "range": lambda cell: (
        range_text(cell.time.low_seconds, cell.time.high_seconds) if cell.is_range_known else NOT_KNOWN
    ),
    "bound by": lambda cell: cell.time.bound,
    # Launching overlaps with kernels, so the shares need not add up to 100 %.
    "launching": lambda cell: f"{cell.time.shares[limits.LAUNCH]:.0%}",
    "arithmetic": lambda cell: f"{cell.time.shares[limits.COMPUTE]:.0%}",
    "memory traffic": lambda cell: f"{cell.time.shares[limits.MEMORY]:.0%}",
}
"""Columns by their heading, in any table of predictions."""


def cell_table(
    header: Sequence[str],
    cells: Iterable[tuple[str, PredictedCase]],
    left: Collection[str] = (),
    more: Mapping[str, Callable[[PredictedCase], str]] | None = None,
) -> list[str]:
    """One row for each named cell under a header of FIGURES, or of `more`."""
    figures = {**FIGURES, **(more or {})}
    return table(header, [(name, *(figures[column](cell) for column in header[1:])) for name, cell in cells], left)


def step_lines(prediction: StepPrediction, variants: Mapping[str, PredictedCase] | None = None) -> list[str]:
    """Verdict, peaks, times, and what would make it fit; the first line names the optimizer and its peak, and a loop's,
    which write-ups have."""
    step = prediction.step
    first, room = prediction.first_step, prediction.machine.room
    verdict = (
        f"{step.verdict} on {prediction.machine.name}: its peak is {_peak_with_held(step)}{_in_blocks(step, room)}"
    )
    # Passes alone may not fit where the step does, beside a former one whose graph nothing freed.
    held = [
        f"but {name} alone {cell.verdict}: its peak is {_peak_with_held(cell)}"
        for name, cell in prediction.phases.items()
        if prediction.fits and not cell.fits and FORMER_PASS in cell.bytes_by_category
    ]
    made = f"its first step, which makes the optimizer's state, {first.verdict}: its peak is {gb(first.peak_bytes)}"
    peak = _peak_by_optimizer(step, variants or {})
    lines = [
        f"{step_name(step)}, checkpoint {step.case.identity()['checkpoint']}: {peak}",
        verdict, *held, room_line(prediction.machine), *([made] if first.verdict != step.verdict else []), "",
        *_peak_lines(prediction.peaks), "", *time_lines(prediction.phases.items(), prediction.machine),
        *assumption_lines([*prediction.phases.values(), *prediction.remedies.values()], prediction.machine),
    ]  # fmt: skip
    if prediction.largest_batch is not None:
        or_more = " or more" if prediction.largest_batch >= MOST_SEQUENCES else ""
        lines += ["", f"largest batch that fits: {prediction.largest_batch}{or_more}"]
    if prediction.is_hopeless:
        static = gb(prediction.unavoidable_bytes)
        lines += ["", f"no option makes it fit: parameters, gradients and optimizer state alone take {static}"]
    if prediction.remedies:
        header = ("tried, cheapest first", "peak", "verdict", "full step")
        lines += ["", *cell_table(header, prediction.remedies.items())]
        if not any(one.fits for one in prediction.remedies.values()):
            lines += ["none of these makes it fit; take a smaller model or a larger card"]
    return lines


def _peak_by_optimizer(step: PredictedCase, variants: Mapping[str, PredictedCase]) -> str:
    loop = variants.get("loop", step)
    differs = loop.peak_bytes != step.peak_bytes
    return f"peak {gb(step.peak_bytes)}" + (f", {gb(loop.peak_bytes)} with AdamW as a loop" if differs else "")


def checkpoint_lines(choice: CheckpointChoice) -> list[str]:
    """Peak and time under each checkpoint, the smallest peak and the fastest that fits."""
    least = min(step.time.seconds for step in choice.steps)
    smallest, fastest = choice.smallest, choice.fastest_that_fits
    header = ("recomputed", "peak", "reached in", "verdict", "full step", "range", "bound by", "of the fastest")
    of_fastest = {"of the fastest": lambda step: f"{step.time.seconds / least:.2f} x"}
    said = f"{_checkpoint_option(fastest)}, {duration(fastest.time.seconds)}" if fastest else "none"
    return [
        f"{step_name(choice.steps[0])} on {choice.machine.name}", room_line(choice.machine), "",
        *cell_table(header, [(_checkpoint_option(step), step) for step in choice.steps], ("bound by",), of_fastest),
        *rate_lines(choice.steps, choice.machine), *assumption_lines(choice.steps, choice.machine), "",
        f"smallest peak: {_checkpoint_option(smallest)}, {gb(smallest.peak_bytes)}", f"fastest that fits: {said}",
    ]  # fmt: skip


def _checkpoint_option(step: PredictedCase) -> str:
    return f"--checkpoint {step.case.identity()['checkpoint']}"


def step_name(step: PredictedCase, without: Collection[str] = ()) -> str:
    """Name a step; `without` context or batch, which a table has instead."""
    assert isinstance(step.case, LanguageModelCase)
    case = step.case.identity()
    of_model = case["size"] if step.case.user_model is None else f"{case['size']} ({case['model']})"
    at_context = "" if "context" in without else f" at context {case['context_length']}"
    of_batch = "" if "batch" in without else f"batch {case['batch_size']}, "
    return (
        f"A training step of {of_model}{at_context}, {of_batch}"
        f"{case['precision']}, {case['attention']} attention, {optimizer_label(case['optimizer'])}"
    )


def attention_lines(prediction: AttentionPrediction) -> list[str]:
    """Every cell, and the largest blocks of the smallest that does not fit."""
    cells = [(_attention_name(cell), cell) for cell in prediction.cells]
    first = prediction.cells[0].case.identity()
    given = first["precision"]
    if given.endswith("-tensors"):
        given = f"{rate_name(given)} tensors without autocast"
    elif tensors_and_autocast(given)[1]:
        given = f"float32 tensors under {rate_name(given)} autocast"
    about = f"Attention alone, batch {first['batch_size']}, {given}, on {prediction.machine.name}"
    lines = [
        about, room_line(prediction.machine), "", *cell_table(("case", "peak", "verdict"), cells), "",
        *time_lines(cells, prediction.machine), *assumption_lines(prediction.cells, prediction.machine),
    ]  # fmt: skip
    evidence = evidence_of(prediction.cells[0].case, by_do_bench=True)
    timed = [(name, replace(cell, time=cell.by_do_bench, is_range_known=True)) for name, cell in cells
             if cell.by_do_bench]  # fmt: skip
    if timed and evidence is not None and prediction.machine.has_published_times:
        lines += [
            "", *cell_table(("by do_bench", "predicted", "range", "bound by"), timed, left=("bound by",)),
            "do_bench times without the host where launches run ahead, while the device clears its cache; in range:",
            _times_in_range(evidence),
        ]  # fmt: skip
    smallest = prediction.smallest_that_does_not_fit
    if smallest is None:
        return lines
    held = "; ".join(f"{name} {gb(size)}" for name, size in smallest.bytes_by_category.items() if size)
    peak = f"{_attention_name(smallest)}, peak {gb(smallest.peak_bytes)}"
    rows = [
        (f"{allocation.count} x {gb(allocation.bytes)}", allocation.operator, allocation.place or "backward pass")
        for allocation in smallest.largest_allocations
        if allocation.bytes >= smallest.peak_bytes / 100
    ]
    lines += ["", f"smallest case that does not fit: {peak}: {held}"]
    return [*lines, *table(("its largest blocks", "made by", "at"), rows)]


def _peak_with_held(cell: PredictedCase) -> str:
    held_bytes = cell.bytes_by_category.get(FORMER_PASS, 0)
    return gb(cell.peak_bytes) + (f" ({gb(held_bytes)} of it held from the former pass)" if held_bytes else "")


def _in_blocks(cell: PredictedCase, room: Room) -> str:
    """What the allocator needs beyond the peak; a constant share where its rules cannot be replayed."""
    if cell.in_blocks is None:
        needed = f", {gb(room.bytes_for(cell.peak_bytes))} with {FRAGMENTATION_SHARE:.0%} for fragmentation"
        return "" if cell.fits else needed
    reserved = cell.in_blocks.reserved_bytes
    on = "" if reserved <= room.bytes else " on a larger card"
    return f", {gb(cell.in_blocks.allocated_bytes)} in blocks, {gb(reserved)} reserved{on}"


def room_line(machine: TargetMachine) -> str:
    return f"room for tensors: {gb(machine.room.bytes)} ({machine.room.explanation})"


def _peak_lines(phases: Mapping[str, PredictedCase]) -> list[str]:
    """One row for each phase, one column for each category that occurs; GB are 1e9 bytes."""
    held = {name: cell.bytes_by_category for name, cell in phases.items()}
    shown = [name for name in CATEGORIES if any(parts.get(name, 0) >= 1e6 for parts in held.values())]
    sizes = {name: [phases[name].peak_bytes, *(parts.get(one, 0) for one in shown)] for name, parts in held.items()}
    if any(cell.in_blocks for cell in phases.values()):
        shown += ["reserved"]
        for name, cell in phases.items():
            sizes[name] += [cell.in_blocks.reserved_bytes if cell.in_blocks else 0]
    rows = [(name, *(f"{size / 1e9:.2f}" if size else DASH for size in row)) for name, row in sizes.items()]
    return table(("peak in GB", "total", *shown), rows)


def time_lines(phases: Iterable[tuple[str, PredictedCase]], machine: TargetMachine) -> list[str]:
    header = ("time", "predicted", "range", "bound by", "launching", "arithmetic", "memory traffic")
    named = list(phases)
    return [*cell_table(header, named, left=("bound by",)), *rate_lines((cell for _, cell in named), machine)]


def rate_lines(cells: Iterable[PredictedCase], machine: TargetMachine) -> list[str]:
    """Say where rates come from, and ranges where they are known, by the class of published times that they hold of."""
    cells = list(cells)
    lines, classes = [f"rates and launches: {machine.ceilings.source}"], dict[str, None]()
    classes.update(dict.fromkeys(name for cell in cells if cell.is_range_known and (name := evidence_of(cell.case))))
    calibrated = [cell for cell in cells if cell.without_calibration is not None]
    if (known := machine.calibration) is not None and calibrated:
        widths = [one.high_seconds / one.low_seconds for cell in calibrated
                  for one in (cell.time, cell.without_calibration) if one]  # fmt: skip
        lines += [
            f"range: calibrated by {'; '.join(known.by)}; without, {median(widths[1::2]):.1f} x wide in the median, "
            f"with it {median(widths[::2]):.1f} x; {CALIBRATED_WORDS}"
        ]
    elif classes:
        host = "a fast to a typical host" if machine.ceilings.host_spread > 1 else "this host"
        kernels = "kernels x {:g} to {:g}".format(*limits.DEVICE_RANGE)
        lines += [f"range: {host}, {kernels}; checked on published times not used for fitting, in range:"]
    return [*lines, *(() if calibrated else map(_times_in_range, classes)), *unknown_lines(cells)]


def unknown_lines(cells: Iterable[PredictedCase]) -> list[str]:
    """Say why ranges are not known, where they are not."""
    of = dict.fromkeys(cell.without_evidence for cell in cells if cell.without_evidence)
    return [f"range {NOT_KNOWN}: no published time is of {', '.join(of)}"] if of else []


def _times_in_range(name: str) -> str:
    counts = limits.IN_RANGE[name]
    said = [f"{count} of {of} bound by {bound}" for bound, (count, of) in counts.items()]
    none = [] if limits.MEMORY in counts else [f"none published bound by {limits.MEMORY}"]
    return f"  {name}: " + "; ".join([*said, *none])


def assumption_lines(cells: Iterable[PredictedCase], machine: TargetMachine) -> list[str]:
    """Rules of CUDA's libraries that changed a figure, one line each."""
    cells, libraries = list(cells), machine.libraries
    if libraries is None:
        return []
    lines = []
    if any(cell.bytes_by_category.get(WORKSPACES) for cell in cells):
        size = gb(libraries.workspace_bytes)
        lines += [f"{WORKSPACES}: {size} of cuBLAS per thread that multiplies matrices ({libraries.workspace_rule})"]
    if any(cell.case.attention == "sdpa" and rate_name(cell.case.precision) in ("bf16", "fp16") for cell in cells):
        holds = "backward with a float32 accumulator" if libraries.sdpa == FLASH else "assumed to hold what flash does"
        lines += [f"sdpa in 16 bits: {libraries.sdpa} ({libraries.sdpa_rule}), {holds}"]
    if any(cell.largest_allocations[0].bytes > LARGEST_INDEX for cell in cells):
        lines += [
            "launches: elementwise kernels and reductions above 2 GiB a tensor are split, all others assumed to be one"
        ]
    return lines


def _attention_name(cell: PredictedCase) -> str:
    case = cell.case.identity()
    phase = label_of(case["phase"])
    return f"{phase} d{case['head_dim']}-seq{case['sequence_length']}-{case['precision']}-{case['attention']}"


def gb(count: int) -> str:
    """Format GB of 1e9 bytes, as in datasheets and published tables."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def step_json(prediction: StepPrediction) -> Json:
    return {
        "verdict": prediction.step.verdict,
        "largest_batch": prediction.largest_batch,
        "phases": {name: case_json(cell) for name, cell in prediction.phases.items()},
        "first_step": peak_json(prediction.first_step),
        "tried": [{"change": change, **case_json(step)} for change, step in prediction.remedies.items()],
    }


def checkpoint_json(choice: CheckpointChoice) -> Json:
    fastest = choice.fastest_that_fits
    return {
        "checkpoints": [case_json(step) for step in choice.steps],
        "smallest_peak": choice.smallest.case.identity()["checkpoint"],
        "fastest_that_fits": None if fastest is None else fastest.case.identity()["checkpoint"],
    }


def attention_json(prediction: AttentionPrediction) -> Json:
    smallest = prediction.smallest_that_does_not_fit
    return {
        "cells": [case_json(cell) for cell in prediction.cells],
        "smallest_that_does_not_fit": None if smallest is None else case_json(smallest),
    }


def machine_json(machine: TargetMachine) -> Json:
    known = machine.calibration
    by = {} if known is None else {"calibrated_by": list(known.by)}
    return {
        **by,
        "machine": machine.name,
        "room_bytes": machine.room.bytes,
        **{name: rate for name, rate in vars(machine.ceilings).items() if name not in ("name", "launches_overlap")},
    }


def peak_json(cell: PredictedCase) -> Json:
    known = {name: getattr(cell, name) for name in ("verdict", "peak_bytes", "peak_part", "bytes_by_category")}
    in_blocks = {f"peak_{name}": getattr(cell.in_blocks, name, None) for name in ("allocated_bytes", "reserved_bytes")}
    return known | in_blocks


def case_json(cell: PredictedCase) -> Json:
    return {
        "identity": cell.case.identity(),
        **peak_json(cell),
        "predicted_seconds": cell.time.seconds,
        "range_seconds": [cell.time.low_seconds, cell.time.high_seconds] if cell.is_range_known else None,
        "no_published_time_is_of": cell.without_evidence,
        "bound": cell.time.bound,
        "shares": cell.time.shares,
        "largest_allocations": [vars(allocation) for allocation in cell.largest_allocations],
        "do_bench_seconds": cell.by_do_bench and cell.by_do_bench.seconds,
        "do_bench_range_seconds": cell.by_do_bench and [cell.by_do_bench.low_seconds, cell.by_do_bench.high_seconds],
    }


# What a training loop chooses, as text for a terminal and as JSON: pure functions of the data.
COURSE_ADAMW = (
    "the course's own AdamW makes 16 launches a parameter, 1776 for small, where PyTorch's loop makes 10; "
    "give one's own as --optimizer FILE.py:FACTORY"
)


def choice_lines(
    variants: Mapping[str, PredictedCase], conditions: Sequence[Condition], step: PredictedCase
) -> list[str]:
    """The step under each implementation of AdamW, what it is assumed to do, and what decides whether it fits."""
    header = ("AdamW's variants", "peak", "reached in", "verdict", "full step", "range")
    named = [(f"--optimizer {name}", one) for name, one in variants.items()]
    table_of = cell_table(header, named, left=("reached in",))
    lines = ["", *table_of, *unknown_lines(variants.values()), COURSE_ADAMW] if named else []
    return [*lines, "", assumption(step), *condition_lines(conditions, step)]


BATCHED_EXPERTS = "experts_implementation=batched_mm"


def assumption(step: PredictedCase) -> str:
    """Everything that the step is assumed to do and that its peak depends on."""
    case = step.case
    assert isinstance(case, LanguageModelCase)
    state = "whose state exists" if case.updates else "which never has gradients to make state from"
    held = "the outputs of the previous step are" if case.holds_former_pass else "no tensors of the previous step are"
    where = case.zero_grad.replace("-", " the ").replace("forward", "forward pass")
    experts = "; experts by batched_mm gather weights for each token: the peak is many times a dense model's"
    is_gathered = any(one.replace(" ", "") == BATCHED_EXPERTS for one in case.model_arguments)
    return (
        f"assumes {optimizer_label(case.identity()['optimizer'])}, {state}; "
        f"gradients set to None {where} (--zero-grad); "
        f"{held} kept (--hold); eager execution" + (experts if is_gathered else "")
    )


def condition_lines(conditions: Sequence[Condition], step: PredictedCase) -> list[str]:
    """`fits only if ...`, with the peak of the other order."""
    word = "otherwise" if step.fits else "then"
    return [
        f"fits only if {one.text}; {word} its peak is {gb(one.otherwise.peak_bytes)}: {one.otherwise.verdict}"
        for one in conditions
    ]


def context_lines(prediction: ContextPrediction) -> list[str]:
    """A row for each context and batch; a dash where the step does not fit, with its peak and its conditions below."""
    first, identities = prediction.rows[0][0], [step.case.identity() for step, _, _ in prediction.rows]
    columns = {"context": "context_length", "batch": "batch_size"}
    varied = [name for name, field in columns.items() if len({identity[field] for identity in identities}) > 1]
    rows, below = [], []
    for identity, (step, forward, conditions) in zip(identities, prediction.rows, strict=True):
        values = {name: str(identity[columns[name]]) for name in varied}
        reached = (gb(step.peak_bytes), step.peak_part) if step.fits else (DASH, DASH)
        rows.append((*values.values(), gb(forward.peak_bytes), *reached, step.verdict, duration(step.time.seconds)))
        place = ", ".join(f"{name} {value}" for name, value in values.items())
        if not step.fits:
            needed = _in_blocks(step, prediction.machine.room)
            below += [f"{place} {step.verdict}: its peak is {gb(step.peak_bytes)}{needed}"]
        below += [f"{place} {line}" for line in condition_lines(conditions, step)]
    header = (*varied, "forward pass", "full step", "reached in", "verdict", "time of a step")
    return [
        f"{step_name(first, without=varied)} on {prediction.machine.name}", room_line(prediction.machine), "",
        *table(header, rows, left=("reached in",)), "", assumption(first), *below,
    ]  # fmt: skip


def choice_json(variants: Mapping[str, PredictedCase], conditions: Sequence[Condition]) -> Json:
    return {
        "optimizers": {name: case_json(one) for name, one in variants.items()},
        "fits_only_if": [{"condition": one.text, "otherwise_or_then": case_json(one.otherwise)} for one in conditions],
    }


def context_json(prediction: ContextPrediction) -> Json:
    return {
        "contexts": [
            {"step": case_json(step), "forward": case_json(forward), **choice_json({}, conditions)}
            for step, forward, conditions in prediction.rows
        ]
    }


# One rank of many.


def rank_lines(prediction: RankPrediction) -> list[str]:
    """Verdict, memory, messages and times of one rank."""
    sharing, machine = prediction.sharing, prediction.machine
    held = sorted(prediction.bytes_by_category.items(), key=lambda item: -item[1])
    fewest = prediction.smallest_world
    counts = Counter(message.kind for message in prediction.messages)
    messages = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    times = ["no time: give what a rank can send with --interconnect 450GB/s"]
    if prediction.exposed_seconds is not None and prediction.seconds is not None:
        ranges = {
            "step on one device": (prediction.alone.time.low_seconds, prediction.alone.time.high_seconds),
            "exposed communication": prediction.exposed_seconds,
            "step": prediction.seconds,
        }
        rows = [(name, range_text(low, high) if high else DASH) for name, (low, high) in ranges.items()]
        of_link = "{1:g} of the interconnect's rate, to none of it at {0:g}".format(*limits.LINK_EFFICIENCY)
        times = ["", *table(("time", "range"), rows), f"exposed: with all overlap that the variant has at {of_link}"]
    return [
        f"{step_name(prediction.alone)} on each of {sharing.world} ranks, {sharing.parallel}",
        f"{prediction.verdict} on {machine.name}: a rank's peak is {gb(prediction.peak_bytes)}",
        room_line(machine), "",
        *table(("a rank's peak", "GB"), [(name, f"{size / 1e9:.2f}") for name, size in held if size >= 1e6]), "",
        f"a rank sends {gb(prediction.sent_bytes)} a step: {messages}",
        *times, "",
        f"fewest ranks that fit: {fewest}" if fewest else "no number of ranks makes it fit",
        f"assumes {gb(prediction.alone.peak_bytes)} for the step on one device; not confirmed on several GPUs",
    ]  # fmt: skip


def rank_json(prediction: RankPrediction) -> Json:
    sharing = prediction.sharing
    told = ("verdict", "peak_bytes", "peak_part", "bytes_by_category", "sent_bytes")
    return {
        "parallel": sharing.parallel,
        "world": sharing.world,
        "bucket_mb": sharing.bucket_mb,
        "reshard": not sharing.keeps_gathered,
        "interconnect_bytes_per_second": prediction.bytes_per_second,
        **{name: getattr(prediction, name) for name in told},
        "messages": [vars(message) for message in prediction.messages],
        "exposed_seconds": prediction.exposed_seconds,
        "range_seconds": prediction.seconds,
        "smallest_world_that_fits": prediction.smallest_world,
        "alone": case_json(prediction.alone),
    }
