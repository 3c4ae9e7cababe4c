"""What `predict` is asked for and answers: the arguments checked once, then the prediction that they call for."""

import argparse
import os
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.device import device_named
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.training import optimizer_that_runs
from perf_tests_suite.perf_tests.cases import options
from perf_tests_suite.perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests_suite.perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests_suite.perf_tests.cases.language_model import OF_ATTENTION_ALONE, LanguageModelCase, config_of
from perf_tests_suite.perf_tests.cases.options import one_of, whole_number, whole_numbers
from perf_tests_suite.perf_tests.cases.sharing import OF_SOME_WAYS, Sharing, why_without_effect
from perf_tests_suite.perf_tests.hardware.datasheets import FITS, Room, gpu_named, libraries_on, rate_name, room_on
from perf_tests_suite.perf_tests.hardware.device import open_device
from perf_tests_suite.perf_tests.hardware.limits import VARIANTS, ceilings_of
from perf_tests_suite.perf_tests.hardware.machine import physical_cores
from perf_tests_suite.perf_tests.phases import ATTENTION_ALONE, ZERO_GRAD, phases_of
from perf_tests_suite.perf_tests.predict import screens, step
from perf_tests_suite.perf_tests.predict.calibration import calibration_of, recorded_passes, typed_pass
from perf_tests_suite.perf_tests.predict.costs import libraries_here
from perf_tests_suite.perf_tests.predict.machine import ceilings_here
from perf_tests_suite.perf_tests.predict.ranks import MOST_RANKS, predict_ranks
from perf_tests_suite.perf_tests.predict.step import TargetMachine
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.model import (
    UserModel,
    check_first_layer,
    facts_of,
    is_configuration,
    size_name,
)

STEP_BATCH_SIZE = 4

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

    Raises ValueError with one sentence.
    """
    _check_eager(arguments)
    machine = _calibrated(arguments, requested_machine(arguments.gpu))

    def answer(lines: list[str], data: Json, fits: bool, *cases: Case) -> Answer:
        return Answer(lines, {**screens.machine_json(machine), "fits": fits, **data}, fits, cases, machine)

    if arguments.size is None and arguments.model is None:
        of_attention = _requested_attention(arguments, machine)
        cells = step.predict_attention(of_attention, machine)
        return answer(screens.attention_lines(cells), screens.attention_json(cells), cells.fits, *of_attention)
    contexts = whole_numbers(options.CONTEXTS, "--context", arguments.context)
    batches = whole_numbers((STEP_BATCH_SIZE,), "--batch-size", arguments.batch_size or "all")
    cases = [_requested_step(arguments, machine, context, batch) for context in contexts for batch in batches]
    case = cases[0]
    checkpoints = requested_checkpoints(arguments.checkpoint, case.config.num_layers)
    if (sharing := _requested_sharing(arguments)) is not None:
        if len(cases) * len(checkpoints) > 1 or case.user_model is not None or case.user_optimizer is not None:
            raise ValueError(
                "--parallel takes one context, batch size and checkpoint, and a model and optimizer of the suite's."
            )
        shared = predict_ranks(case, machine, sharing, link_rate(arguments.interconnect))
        return answer(screens.rank_lines(shared), screens.rank_json(shared), shared.verdict == FITS)
    if len(cases) > 1:
        if len(checkpoints) > 1:
            option = "--context" if len(contexts) > 1 else "--batch-size"
            raise ValueError(f"{option} and --checkpoint are both lists; compare one at a time.")
        table = step.predict_contexts(cases, machine)
        return answer(screens.context_lines(table), screens.context_json(table), table.fits, *cases)
    if len(checkpoints) > 1:
        choice = step.choose_checkpoint(case, checkpoints, machine)
        tried = [replace(case, checkpoint=one) for one in checkpoints]
        return answer(screens.checkpoint_lines(choice), screens.checkpoint_json(choice), choice.fits, *tried)
    predicted = step.predict_step(case, machine)
    variants, conditions = step.optimizer_variants(case, machine), step.conditions_of(predicted.step, machine)
    lines = [*screens.step_lines(predicted, variants), *screens.choice_lines(variants, conditions, predicted.step)]
    data = screens.step_json(predicted) | screens.choice_json(variants, conditions)
    return answer(lines, data, predicted.fits, case)


def requested_machine(text: str) -> TargetMachine:
    """`here`, a card's name, or its peaks; here is the GPU if there is one, else the CPU with all its cores."""
    if text.strip() != "here":
        gpu = gpu_named(text)
        libraries = libraries_on(gpu.compute_major, torch.__version__, os.environ)
        return TargetMachine(gpu.name, "cuda", room_on(gpu), ceilings_of(gpu), True, libraries)
    torch.set_num_threads(physical_cores())
    device = open_device(device_named("auto"))
    kind = device.torch_device.type
    room = Room(device.available_bytes(), "free now")
    on_gpu = kind == "cuda"
    name = torch.cuda.get_device_name(device.torch_device) if on_gpu else "this CPU"
    ceilings = replace(ceilings_here(device), name=name)
    # All published times are of GPUs.
    return TargetMachine(name, kind, room, ceilings, on_gpu, libraries_here(device.torch_device))


def _calibrated(arguments: argparse.Namespace, machine: TargetMachine) -> TargetMachine:
    """The machine with what measured passes tell of it, if any are given. Raises ValueError."""
    measured = [one for path in arguments.calibrate for one in recorded_passes(Path(path), machine)]
    optimizer = arguments.optimizer if arguments.optimizer in ("loop", "fused") else "foreach"
    measured += [typed_pass(text, machine, optimizer) for text in arguments.measured]
    return replace(machine, calibration=calibration_of(measured, machine)) if measured else machine


def _check_eager(arguments: argparse.Namespace) -> None:
    """Refuse, by ValueError, code that is to be compiled: what a compiler fuses shows when it has compiled."""
    attentions = [name for name, attention in ATTENTION.items() if attention.is_compiled]
    for option, value, compiled in (
        ("--execution", arguments.execution, [name for name in options.EXECUTIONS if name != "eager"]),
        ("--attention", arguments.attention, attentions),
    ):
        if value in compiled:
            raise ValueError(
                f"{option} {value} is not predicted: how many kernels a compiled graph launches, what they move and "
                "what they hold is not known before it is compiled; measure it with "
                f"`perf-tests run {option} {value} --kernels --memory`."
            )
    one_of(options.EXECUTIONS, "--execution", arguments.execution)


def _requested_step(
    arguments: argparse.Namespace, machine: TargetMachine, context: int, batch_size: int
) -> LanguageModelCase:
    own = _requested_model(arguments)
    size = _requested_size(arguments, own)
    vocabulary = None if arguments.vocab_size is None else whole_number("--vocab-size", arguments.vocab_size)
    config = config_of(own, size, context, vocabulary)
    if own is not None and arguments.size is None and not is_configuration(own.name):
        # It may ignore the shape that it is asked for; then its file or module names the model.
        taken = [name for name, value in facts_of(own, config).shape.items() if value is not None]
        if taken:
            raise ValueError(f"--model {own.name} asks for {', '.join(taken)}; give the shape with --size.")
        size = Path(own.name.rpartition(":")[0]).name.removesuffix(".py").rpartition(".")[2]
    checkpoint = requested_checkpoints(arguments.checkpoint, config.num_layers)[0]
    named_optimizer = options.optimizer("--optimizer", arguments.optimizer)
    precision = _precision(arguments.precision, machine)
    if precision.endswith("-tensors"):
        raise ValueError("--precision " + OF_ATTENTION_ALONE.format(precision))
    return LanguageModelCase(
        phase="full_step", size=options.size_label(size), config=config, context_length=context,
        batch_size=batch_size,
        precision=precision,
        attention="own" if own else one_of(COUNTED_ATTENTION, "--attention", arguments.attention), execution="eager",
        checkpoint=checkpoint, optimizer=optimizer_that_runs(named_optimizer, torch.device(machine.device)),
        device=machine.device, model="ours" if own is None else own.name,
        model_arguments=() if own is None else own.arguments,
        zero_grad=one_of(ZERO_GRAD, "--zero-grad", arguments.zero_grad),
        holds_former_pass=arguments.hold is not None and bool(one_of(HOLDS, "--hold", arguments.hold)),
    )  # fmt: skip


def _requested_model(arguments: argparse.Namespace) -> UserModel | None:
    """The model of --model, checked; None for ours."""
    if arguments.model is None:
        if arguments.model_arg:
            raise ValueError("--model-arg is for a factory of your own; name it with --model.")
        return None
    for option, value, default in (
        ("--attention", arguments.attention, "naive"), ("--checkpoint", arguments.checkpoint, "none")
    ):  # fmt: skip
        if value != default:
            raise ValueError(f"{option} does not apply: the model of --model has its own.")
    options.user_arguments("--model-arg", "\n".join(arguments.model_arg))
    own = UserModel(options.user_model("--model", arguments.model), tuple(arguments.model_arg))
    if is_configuration(own.name):
        check_first_layer(own)
    return own


def _requested_size(arguments: argparse.Namespace, own: UserModel | None) -> str:
    if own is None or not is_configuration(own.name):
        if arguments.size is None:
            return next(iter(SIZES))  # a factory may ignore the shape that it is asked for
        chosen = options.sizes("--size", arguments.size)
        if len(chosen) > 1:
            raise ValueError(f"--size {arguments.size!r} names {len(chosen)} sizes; predict takes one.")
        return chosen[0]
    if arguments.size is not None or arguments.vocab_size is not None:
        raise ValueError("--size and --vocab-size do not apply: the configuration says the shape; use --model-arg.")
    return size_name(own.name)


def _requested_sharing(arguments: argparse.Namespace) -> Sharing | None:
    """How ranks share the step; None for one device. Raises ValueError."""
    typed = {
        "--world": arguments.world is not None, "--interconnect": arguments.interconnect is not None,
        "--bucket-mb": arguments.bucket_mb is not None, "--reshard": arguments.reshard != "yes",
    }  # fmt: skip
    given = [option for option, is_typed in typed.items() if is_typed]
    if arguments.parallel is None:
        if given:
            raise ValueError(f"{given[0]} is for ranks; name how they share the step with --parallel.")
        return None
    if arguments.world is None:
        raise ValueError("--parallel needs the number of ranks; give it with --world.")
    way = one_of(VARIANTS, "--parallel", arguments.parallel)
    for option in (option for option in OF_SOME_WAYS if option in given):
        if reason := why_without_effect(option, (way,)):
            raise ValueError(reason)
    return Sharing(
        way,
        whole_number("--world", arguments.world, most=MOST_RANKS),
        "weak",
        None if arguments.bucket_mb is None else whole_number("--bucket-mb", arguments.bucket_mb),
        one_of(("yes", "no"), "--reshard", arguments.reshard) == "no",
    )


def link_rate(text: str | None) -> float | None:
    """Return what one rank can send in bytes per second, of `450GB/s`; None of None. Raises ValueError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)GB/s", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--interconnect {text!r} is not a rate; write what one rank can send as 450GB/s.")
    return float(found[1]) * 1e9


def requested_checkpoints(text: str, num_layers: int) -> list[str]:
    """A comma-separated list in the order typed; `all` is every one worth trying for this number of layers."""
    chosen = options.checkpoints(step.worthwhile_checkpoints(num_layers), "--checkpoint", text)
    options.check_checkpoints(chosen, num_layers)
    return list(chosen)


def _requested_attention(arguments: argparse.Namespace, machine: TargetMachine) -> list[AttentionCase]:
    """The grid of attention alone, smallest cell first, forward before backward."""
    precision = _precision(arguments.precision, machine)
    attention = one_of(COUNTED_ATTENTION, "--attention", arguments.attention)
    length, width = arguments.sequence_length, arguments.head_dim
    lengths = whole_numbers(options.SEQUENCE_LENGTHS, "--sequence-length", "all" if length is None else length)
    widths = whole_numbers(options.HEAD_DIMS, "--head-dim", "all" if width is None else width)
    batch_size, *others = whole_numbers((ATTENTION_BATCH_SIZE,), "--batch-size", arguments.batch_size or "all")
    if others:
        raise ValueError(f"--batch-size {arguments.batch_size!r} is a list; attention alone takes one batch size.")
    return [
        AttentionCase(phase.name, width, length, batch_size, precision, attention, machine.device)
        for length, width, phase in product(lengths, widths, phases_of(ATTENTION_ALONE))
    ]


def _precision(text: str, machine: TargetMachine) -> str:
    precision = one_of(PRECISIONS, "--precision", text)
    known = machine.ceilings.matmul_flops_per_second
    if rate_name(precision) not in known:
        raise ValueError(f"{machine.name} has no {precision} path, or only emulates it; it has {', '.join(known)}.")
    return precision
