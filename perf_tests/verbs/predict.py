"""`predict --size 2.7B --gpu A100-80GB`: say whether a step or attention fits on a machine, and how long it takes.

perf-tests predict --size 2.7B --context 1024 --gpu A100-80GB
perf-tests predict --model hf:CONFIG.json --gpu H100
"""

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UsageError
from perf_tests_suite.perf_tests.records.store import strict_json
from perf_tests_suite.perf_tests.user_code.named import UNDER_TEST, repository_of
from perf_tests_suite.perf_tests.user_code.own_names import look_in
from perf_tests_suite.perf_tests.verbs.diff import differences

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.cases.case import Case
    from perf_tests_suite.perf_tests.predict.request import Answer

OF_A_STEP = (
    "model_arg", "vocab_size", "context", "optimizer", "zero_grad", "hold", "checkpoint", "parallel", "world",
    "interconnect", "bucket_mb", "reshard",
)  # fmt: skip
"""Options that attention alone lacks."""

OF_RUN = (
    "--size", "--vocab-size", "--context", "--batch-size", "--precision", "--attention", "--execution", "--checkpoint",
    "--head-dim", "--sequence-length", "--optimizer", "--zero-grad", "--model", "--model-arg", "--parallel", "--world",
    "--bucket-mb", "--reshard",
)  # fmt: skip
"""Options of `perf-tests run` that it takes too."""

DEFAULTS = {"context": "512", "precision": "fp32", "attention": "naive"}
"""Texts of options that were not typed; the defaults of a run would select several cases."""

QUIET_SECONDS = 5.0
COUNTING = "counting the operations of the model on fake tensors, layer by layer; a deep one takes some seconds more"
MEASURING = "measuring this machine where no earlier run has, then counting the operations of the model"
REPLAYING = "replaying recorded operations of the model; a busy machine takes some seconds more"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="a GPU's name, `here`, or its peaks (memory=..,fp32=..)")
    parser.add_argument("--hold", help="former-pass: the loop keeps last step's outputs alive")
    parser.add_argument("--interconnect", help="what a rank can send in one direction, as 450GB/s")
    parser.add_argument(
        "--calibrate", action="append", default=[], metavar="RECORD",
        help="narrow ranges by what a record of the same card and host measured; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--measured", action="append", default=[], metavar="TEXT",
        help="the same by a time that is typed: 'full_step small 512 bf16=41.2ms'; repeatable",
    )  # fmt: skip
    parser.add_argument("--against", metavar="REV", help="also what changed since this git revision, and by how much")
    parser.add_argument_group(
        "what is predicted, by options of `perf-tests run`, whose --help lists their values",
        f"{', '.join(OF_RUN)}. Unless typed: {', '.join(f'{name} {text}' for name, text in DEFAULTS.items())}. "
        "Lists of contexts, batch sizes or checkpoints are compared; with --parallel a batch is each rank's own.",
    )


def run(arguments: argparse.Namespace) -> int:
    with UsageError.instead_of(ValueError):
        # Only this verb and `diff` count a model's operations, which needs torch; the others start without it.
        from perf_tests_suite.perf_tests.cases.gate_options import argparse_keywords
        from perf_tests_suite.perf_tests.cases.options import OPTIONS
        from perf_tests_suite.perf_tests.predict.request import predict
    parser = argparse.ArgumentParser("perf-tests predict")
    for option in OPTIONS:
        if option.name in OF_RUN:
            parser.add_argument(option.name, **argparse_keywords(option))
    parser.parse_args(arguments.of_run, arguments)
    alone = arguments.head_dim is not None or arguments.sequence_length is not None
    if alone == (arguments.size is not None or arguments.model is not None):
        raise UsageError(
            "give --size or --model for a training step, or --head-dim and --sequence-length for attention alone."
        )
    if alone and (typed := [name for name in OF_A_STEP if getattr(arguments, name) is not None]):
        name = "--" + typed[0].replace("_", "-")
        raise UsageError(f"{name} is for a training step; it does not apply to attention alone.")
    for name, text in DEFAULTS.items():
        # The attention inside a model of the user's is its own.
        if getattr(arguments, name) is None and not (name == "attention" and arguments.model is not None):
            setattr(arguments, name, text)
    patience = Timer(QUIET_SECONDS, say_what_takes_long)
    patience.daemon = True
    was_enabled = gc.isenabled()
    gc.disable()  # importing torch and counting steps leaves little garbage; collecting it takes a sixth of the time
    try:
        with UsageError.instead_of(ValueError):
            look_in(Path.cwd())
            patience.start()
            answer = predict(arguments)
    finally:
        patience.cancel()
        if was_enabled:
            gc.enable()
    if arguments.against is not None:
        answer = _since(arguments, answer)
    print(strict_json(answer.data) if arguments.json else "\n".join(answer.lines))
    return FINE if answer.fits else FINDINGS


def say_what_takes_long() -> None:
    """Print what this process does, by what it has loaded for it."""
    sentences = {"machine": MEASURING, "fake_run": COUNTING}
    loaded = [name for name in sentences if f"perf_tests_suite.perf_tests.predict.{name}" in sys.modules]
    print(sentences[loaded[0]] if loaded else REPLAYING, file=sys.stderr)


def _since(arguments: argparse.Namespace, answer: "Answer") -> "Answer":
    """The answer with what the working tree changes of each case. Raises UsageError."""
    from perf_tests_suite.perf_tests.predict.difference import difference_json, difference_lines

    if not answer.cases:
        raise UsageError(f"--against {arguments.against} compares steps on one device; leave --parallel out.")
    with UsageError.instead_of(ValueError):
        repository = repository_of({name: getattr(arguments, name[2:]) for name in UNDER_TEST}, Path.cwd())
    found = differences(repository, arguments.against, None, answer.cases, answer.machine.ceilings)
    lines, data = [*answer.lines], []
    for case, one in zip(answer.cases, found, strict=True):
        lines += ["", f"{case.phase} {_name(case)} against {arguments.against}:"]
        lines += [one] if isinstance(one, str) else difference_lines(one)
        told = {"why_not": one} if isinstance(one, str) else difference_json(one)
        data.append({"identity": case.identity(), **told})
    return replace(answer, lines=lines, data={**answer.data, "against": data})


def _name(case: "Case") -> str:
    """The case's id: `small-ctx512-fp32-naive`, `d64-seq1024-fp32-naive`."""
    names = {"model_size": "size"}
    values = {axis: getattr(case, names.get(axis, axis), None) for axis in type(case).axes}
    return case.id_of(*values.values())
