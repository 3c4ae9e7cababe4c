"""What `predict` is asked for and answers: the arguments checked once, then the prediction that they call for."""

import argparse
import os
import re
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import pytest

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases import options
from perf_tests_suite.perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests_suite.perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests_suite.perf_tests.cases.gate_options import one_of
from perf_tests_suite.perf_tests.cases.language_model import OF_ATTENTION_ALONE, LanguageModelCase
from perf_tests_suite.perf_tests.cases.options import whole_number
from perf_tests_suite.perf_tests.cases.settings import Settings, Typed, settings_on
from perf_tests_suite.perf_tests.hardware.datasheets import FITS, gpu_named, libraries_on, rate_name, room_on
from perf_tests_suite.perf_tests.hardware.limits import ceilings_of
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, phases_of
from perf_tests_suite.perf_tests.predict import recorded, screens, step
from perf_tests_suite.perf_tests.predict.calibration import calibration_of, recorded_passes, typed_pass
from perf_tests_suite.perf_tests.predict.ranks import MOST_RANKS, predict_ranks
from perf_tests_suite.perf_tests.predict.step import TargetMachine
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.given import is_configuration

HOLDS = ("former-pass",)
"""What a loop may still hold when the next pass begins."""


@dataclass(frozen=True)
class Answer:
    """A prediction as it is printed."""

    lines: list[str]
    data: Json
    """The same for machines."""
    fits: bool
    cases: tuple[Case, ...]
    """The predicted ones, of a step the whole; none where several ranks share it."""
    machine: TargetMachine


def predict(arguments: argparse.Namespace) -> Answer:
    """Predict what is asked for: attention alone, one rank of many, contexts, batch sizes, checkpoints, or one step.

    What the record of `model/` holds is not counted again. Raises ValueError with one sentence.
    """
    with recorded.in_use():
        return _predict(arguments)


def _predict(arguments: argparse.Namespace) -> Answer:
    machine = _calibrated(arguments, requested_machine(arguments.gpu))

    def answer(lines: list[str], data: Json, fits: bool, *cases: Case) -> Answer:
        return Answer(lines, {**screens.machine_json(machine), "fits": fits, **data}, fits, cases, machine)

    alone = arguments.head_dim is not None or arguments.sequence_length is not None
    settings = _requested_settings(arguments, machine, alone)
    if alone:
        of_attention = _requested_attention(arguments, settings)
        cells = step.predict_attention(of_attention, machine)
        return answer(screens.attention_lines(cells), screens.attention_json(cells), cells.fits, *of_attention)
    cases = _requested_steps(arguments, settings)
    case = cases[0]
    if case.sharing is not None:
        if len(cases) > 1 or case.user_model is not None or case.user_optimizer is not None:
            raise ValueError(
                "--parallel takes one context, batch size and checkpoint, and a model and optimizer of the suite's."
            )
        shared = predict_ranks(replace(case, sharing=None), machine, case.sharing, link_rate(arguments.interconnect))
        return answer(screens.rank_lines(shared), screens.rank_json(shared), shared.verdict == FITS)
    if len(settings.checkpoints) > 1:
        for option, values in (("--context", settings.contexts), ("--batch-size", settings.batch_sizes)):
            if len(values) > 1:
                raise ValueError(f"{option} and --checkpoint are both lists; compare one at a time.")
        choice = step.choose_checkpoint(case, settings.checkpoints, machine)
        return answer(screens.checkpoint_lines(choice), screens.checkpoint_json(choice), choice.fits, *cases)
    if len(cases) > 1:
        table = step.predict_contexts(cases, machine)
        return answer(screens.context_lines(table), screens.context_json(table), table.fits, *cases)
    predicted = step.predict_step(case, machine)
    variants, conditions = step.optimizer_variants(case, machine), step.conditions_of(predicted.step, machine)
    lines = [*screens.step_lines(predicted, variants), *screens.choice_lines(variants, conditions, predicted.step)]
    data = screens.step_json(predicted) | screens.choice_json(variants, conditions)
    return answer(lines, data, predicted.fits, case)


def requested_machine(text: str) -> TargetMachine:
    """`here`, a card's name, or its peaks; here is the GPU if there is one, else the CPU with all its cores."""
    if text.strip() != "here":
        gpu = gpu_named(text)
        libraries = libraries_on(gpu.compute_major, version("torch"), os.environ)
        return TargetMachine(gpu.name, "cuda", room_on(gpu), ceilings_of(gpu), True, libraries)
    from perf_tests_suite.perf_tests.predict.machine import this_machine  # late: it measures, by torch

    return this_machine()


def _calibrated(arguments: argparse.Namespace, machine: TargetMachine) -> TargetMachine:
    """The machine with what measured passes tell of it, if any are given. Raises ValueError."""
    measured = [one for path in arguments.calibrate for one in recorded_passes(Path(path), machine)]
    optimizer = arguments.optimizer if arguments.optimizer in ("loop", "fused") else "foreach"
    measured += [typed_pass(text, machine, optimizer) for text in arguments.measured]
    return replace(machine, calibration=calibration_of(measured, machine)) if measured else machine


def _requested_settings(arguments: argparse.Namespace, machine: TargetMachine, alone: bool) -> Settings:
    """What the options select, on the machine's device, each axis that is not compared of one value; ValueError."""
    own = arguments.model is not None and not is_configuration(arguments.model)
    values = {**vars(arguments), "against": None, "scaling": "weak"}
    if own and arguments.size is None:
        values["size"] = next(iter(SIZES))  # a factory may ignore the shape that it is asked for
    if alone:
        axes = ("head_dim", "sequence_length")
        values |= {name: "all" if getattr(arguments, name) is None else getattr(arguments, name) for name in axes}
    of_ranks = {name: getattr(arguments, name) for name in ("world", "interconnect", "bucket_mb", "reshard")}
    given = ["--" + name.replace("_", "-") for name, text in of_ranks.items() if text is not None]
    if given and arguments.parallel is None:
        raise ValueError(f"{given[0]} is for ranks; name how they share the step with --parallel.")
    if arguments.parallel is not None and arguments.world is None:
        raise ValueError("--parallel needs the number of ranks; give it with --world.")
    if arguments.world is not None:
        whole_number("--world", arguments.world, most=MOST_RANKS)
    try:
        settings = replace(settings_on("cpu", (), Typed(values)), device=machine.device)
    except pytest.UsageError as error:
        raise ValueError(str(error)) from error
    one_each = {
        "--size": settings.sizes, "--execution": settings.executions, "--parallel": settings.parallels,
        "--precision": settings.attention_alone_precisions if alone else settings.precisions,
        "--attention": settings.attention_alone_implementations if alone else settings.attentions,
    }  # fmt: skip
    for option, chosen in one_each.items():
        if len(chosen) > 1:
            raise ValueError(f"{option} {getattr(arguments, option[2:])!r} names {len(chosen)}; predict takes one.")
        _check_eager(option, chosen[0] if chosen else None)
    precision = (settings.attention_alone_precisions if alone else settings.precisions)[0]
    known = machine.ceilings.matmul_flops_per_second
    if rate_name(precision) not in known:
        raise ValueError(f"{machine.name} has no {precision} path, or only emulates it; it has {', '.join(known)}.")
    if precision.endswith("-tensors") and not alone:
        raise ValueError("--precision " + OF_ATTENTION_ALONE.format(precision))
    if arguments.checkpoint == "all" and settings.model is None:
        worthwhile = step.worthwhile_checkpoints(options.shape_named(settings.sizes[0]).num_layers)
        settings = replace(settings, checkpoints=tuple(worthwhile))
    return settings


def _check_eager(option: str, value: str | None) -> None:
    """Refuse, by ValueError, code that is to be compiled: what a compiler fuses shows when it has compiled."""
    compiled = {"--execution": options.EXECUTIONS[1:], "--attention": set(options.ATTENTION) - set(COUNTED_ATTENTION)}
    if value in compiled.get(option, ()):
        raise ValueError(
            f"{option} {value} is not predicted: how many kernels a compiled graph launches, what they move and "
            "what they hold is not known before it is compiled; measure it with "
            f"`perf-tests run {option} {value} --kernels --memory`."
        )


def _requested_steps(arguments: argparse.Namespace, settings: Settings) -> list[LanguageModelCase]:
    """The full step of each combination, in the order of the axes."""
    cases = [
        replace(
            LanguageModelCase.of("full_step", dict(zip(LanguageModelCase.axes, values, strict=True)), settings),
            holds_former_pass=arguments.hold is not None and bool(one_of(HOLDS, "--hold", arguments.hold)),
        )
        for values in LanguageModelCase.grid(settings)
    ]
    own = cases[0].user_model
    if own is None:
        return cases
    from perf_tests_suite.perf_tests.user_code.model import check_first_layer, facts_of  # late: it is built, by torch

    if is_configuration(own.name):
        check_first_layer(own)
    elif arguments.size is None:
        # Its file or module names the model.
        taken = [name for name, value in facts_of(own, cases[0].config).shape.items() if value is not None]
        if taken:
            raise ValueError(f"--model {own.name} asks for {', '.join(taken)}; give the shape with --size.")
        size = Path(own.name.rpartition(":")[0]).name.removesuffix(".py").rpartition(".")[2]
        cases = [replace(case, size=size) for case in cases]
    return cases


def link_rate(text: str | None) -> float | None:
    """Return what one rank can send in bytes per second, of `450GB/s`; None of None. Raises ValueError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)GB/s", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--interconnect {text!r} is not a rate; write what one rank can send as 450GB/s.")
    return float(found[1]) * 1e9


def _requested_attention(arguments: argparse.Namespace, settings: Settings) -> list[AttentionCase]:
    """The grid of attention alone, shortest sequences first, forward before backward."""
    if len(settings.batch_sizes) > 1:
        raise ValueError(f"--batch-size {arguments.batch_size!r} is a list; attention alone takes one batch size.")
    batch_size = ATTENTION_BATCH_SIZE if arguments.batch_size is None else settings.batch_sizes[0]
    return [
        replace(AttentionCase.of(phase.name, axes, settings), batch_size=batch_size)
        for axes in sorted(
            (dict(zip(AttentionCase.axes, values, strict=True)) for values in AttentionCase.grid(settings)),
            key=lambda axes: (axes["sequence_length"], axes["head_dim"]),
        )
        for phase in phases_of(ATTENTION_ALONE)
    ]
