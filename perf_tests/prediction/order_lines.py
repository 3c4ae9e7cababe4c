"""What a training loop chooses, as text for a terminal and as JSON: pure functions of the data."""

from collections.abc import Mapping, Sequence

from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.identity import optimizer_in_words
from perf_tests.prediction.lines import case_json, gb, machine_json, room_line, step_name
from perf_tests.prediction.orders import Condition, ContextPrediction
from perf_tests.prediction.step import PredictedCase
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, duration, table


def choice_lines(
    variants: Mapping[str, PredictedCase], conditions: Sequence[Condition], step: PredictedCase
) -> list[str]:
    """The step under each implementation of AdamW, what it is assumed to do, and what decides whether it fits."""
    rows = [
        (f"--optimizer {name}", gb(one.peak_bytes), one.peak_part, one.verdict, duration(one.time.seconds))
        for name, one in variants.items()
    ]
    lines = (
        []
        if not rows
        else [
            "",
            *table(("AdamW's variants", "peak", "reached in", "verdict", "full step"), rows, left=("reached in",)),
        ]
    )
    return [*lines, "", assumption(step), *condition_lines(conditions, step)]


def assumption(step: PredictedCase) -> str:
    """Everything that the step is assumed to do and that its peak depends on."""
    case = step.case
    assert isinstance(case, LanguageModelCase)
    state = "whose state exists" if case.updates else "which never has gradients to make state from"
    held = "the outputs of the former pass are still held" if case.holds_former_pass else "nothing of the former pass"
    where = case.zero_grad.replace("-", " the ").replace("forward", "forward pass")
    return (
        f"assumes {optimizer_in_words(case.identity()['optimizer'])}, {state}; "
        f"gradients set to None {where} (--zero-grad); "
        f"{held}{'' if case.holds_former_pass else ' is held'} (--hold); eager execution"
    )


def condition_lines(conditions: Sequence[Condition], step: PredictedCase) -> list[str]:
    """`fits only if ...`, with the peak of the other order."""
    word = "otherwise" if step.fits else "then"
    return [
        f"fits only if {one.words}; {word} its peak is {gb(one.otherwise.peak_bytes)}: {one.otherwise.verdict}"
        for one in conditions
    ]


def context_lines(prediction: ContextPrediction) -> list[str]:
    """A row for each context; a dash where the step does not fit, with its peak and its conditions below."""
    first = prediction.steps[0]
    rows = [
        (
            str(step.case.identity()["context_length"]),
            gb(forward.peak_bytes),
            gb(step.peak_bytes) if step.fits else DASH,
            step.peak_part if step.fits else DASH,
            step.verdict,
            duration(step.time.seconds),
        )
        for step, forward in zip(prediction.steps, prediction.forwards, strict=True)
    ]
    header = ("context", "forward pass", "full step", "reached in", "verdict", "time of a step")
    lines = [
        f"{step_name(first, with_context=False)} on {prediction.machine.name}", room_line(prediction.machine), "",
        *table(header, rows, left=("reached in",)), "", assumption(first),
    ]  # fmt: skip
    for step, conditions in zip(prediction.steps, prediction.conditions, strict=True):
        context = step.case.identity()["context_length"]
        if not step.fits:
            needed = gb(prediction.machine.room.bytes_for(step.peak_bytes))
            lines += [
                f"context {context} {step.verdict}: its peak is {gb(step.peak_bytes)}, {needed} with fragmentation"
            ]
        lines += [f"context {context} {line}" for line in condition_lines(conditions, step)]
    return lines


def choice_json(variants: Mapping[str, PredictedCase], conditions: Sequence[Condition]) -> Json:
    return {
        "optimizers": {name: case_json(one) for name, one in variants.items()},
        "fits_only_if": [{"condition": one.words, "otherwise_or_then": case_json(one.otherwise)} for one in conditions],
    }


def context_json(prediction: ContextPrediction) -> Json:
    return {
        **machine_json(prediction.machine),
        "fits": prediction.fits,
        "contexts": [
            {"step": case_json(step), "forward": case_json(forward), **choice_json({}, conditions)}
            for step, forward, conditions in zip(
                prediction.steps, prediction.forwards, prediction.conditions, strict=True
            )
        ],
    }
