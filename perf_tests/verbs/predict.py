"""`predict --size 2.7B --gpu A100-80GB`: say whether a step or attention fits on a machine, and how long it takes.

perf-tests predict --size 2.7B --context 1024 --gpu A100-80GB
perf-tests predict --model hf:CONFIG.json --gpu H100
"""

import argparse
import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UsageError
from perf_tests_suite.perf_tests.records.store import strict_json
from perf_tests_suite.perf_tests.user_code.named import UNDER_TEST, repository_of
from perf_tests_suite.perf_tests.user_code.own_names import look_in
from perf_tests_suite.perf_tests.verbs.diff import differences

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.cases.case import Case
    from perf_tests_suite.perf_tests.predict.request import Answer

OF_A_STEP: dict[str, str | list[str] | None] = {
    "model_arg": [], "vocab_size": None, "context": "512", "optimizer": "default", "zero_grad": "before-forward",
    "hold": None, "checkpoint": "none", "parallel": None, "world": None, "interconnect": None, "bucket_mb": None,
    "reshard": "yes",
}  # fmt: skip
"""Options that attention alone lacks, with their defaults: filled in after parsing, to tell what was typed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="a GPU's name, `here`, or its peaks (memory=..,fp32=..)")
    parser.add_argument("--size", help="a model size, or [NAME=]D_MODELxD_FFxLAYERSxHEADS, for a training step")
    parser.add_argument("--vocab-size", help="tokens in its vocabulary (default: 10000)")
    parser.add_argument("--model", help="your own: MODULE:FACTORY, FILE.py:FACTORY or hf:CONFIG.json")
    parser.add_argument(
        "--model-arg", action="append", metavar="NAME=VALUE", help="an argument of --model's factory; repeatable"
    )
    parser.add_argument("--context", help="tokens in a sequence; a list compares them (default: 512)")
    parser.add_argument("--batch-size", help="sequences in a batch; of a step a list (default: 4; 8 with --head-dim)")
    parser.add_argument(
        "--precision", default="fp32", help="fp32 (default), tf32, bf16, fp16, fp16-unscaled; alone bf16-tensors"
    )
    parser.add_argument("--attention", default="naive", help="naive, softmax or sdpa (default: naive)")
    parser.add_argument("--execution", default="eager", help="eager; what is compiled is not predicted")
    parser.add_argument(
        "--optimizer", help="AdamW as default, loop, foreach or fused, or your own: MODULE:FACTORY or FILE.py:FACTORY"
    )
    parser.add_argument("--zero-grad", help="before-forward, after-forward or before-step (before-forward)")
    parser.add_argument("--hold", help="former-pass: the loop keeps last step's outputs alive")
    parser.add_argument(
        "--checkpoint", help="none, attention, block or a number of blocks; a list or all compares them (default: none)"
    )
    parser.add_argument("--head-dim", help="head widths of attention alone, a list or all")
    parser.add_argument("--sequence-length", help="sequence lengths of attention alone, a list or all")
    parser.add_argument("--parallel", help="ddp-naive, ddp-flat, ddp, zero1, fsdp2 or fsdp2-bf16: one rank of --world")
    parser.add_argument("--world", help="ranks that share a step; --batch-size is each rank's own")
    parser.add_argument("--interconnect", help="what a rank can send in one direction, as 450GB/s")
    parser.add_argument("--bucket-mb", help="MiB of gradients that DDP sends at once (PyTorch's default: 25)")
    parser.add_argument(
        "--calibrate", action="append", default=[], metavar="RECORD",
        help="narrow ranges by what a record of the same card and host measured; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--measured", action="append", default=[], metavar="TEXT",
        help="the same by a time that is typed: 'full_step small 512 bf16=41.2ms'; repeatable",
    )  # fmt: skip
    parser.add_argument("--against", metavar="REV", help="also what changed since this git revision, and by how much")
    parser.add_argument("--reshard", help="whether FSDP2 gathers a block again: yes or no (yes)")


def run(arguments: argparse.Namespace) -> int:
    alone = arguments.head_dim is not None or arguments.sequence_length is not None
    if alone == (arguments.size is not None or arguments.model is not None):
        raise UsageError(
            "give --size or --model for a training step, or --head-dim and --sequence-length for attention alone."
        )
    typed = [name for name in OF_A_STEP if getattr(arguments, name) is not None]
    if alone and typed:
        option = "--" + typed[0].replace("_", "-")
        raise UsageError(f"{option} is for a training step; it does not apply to attention alone.")
    for name in OF_A_STEP.keys() - typed:
        setattr(arguments, name, OF_A_STEP[name])
    was_enabled = gc.isenabled()
    gc.disable()  # importing torch and counting steps leaves little garbage; collecting it takes a sixth of the time
    try:
        with UsageError.instead_of(ValueError):
            # Only this verb counts a model's operations, which needs torch; the others start without it.
            from perf_tests_suite.perf_tests.predict.request import predict

            look_in(Path.cwd())
            answer = predict(arguments)
    finally:
        if was_enabled:
            gc.enable()
    if arguments.against is not None:
        answer = _since(arguments, answer)
    print(strict_json(answer.data) if arguments.json else "\n".join(answer.lines))
    return FINE if answer.fits else FINDINGS


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
